from __future__ import annotations

import json
import math
import re
import warnings

import numpy as np
import pytest

from golden_files import assert_golden
from refusals import refused
from synthetic_run import evaluation, metrics, write_run
from winnow.commands.export import training_history
from winnow.config import dump
from winnow.config_file import validate
from winnow.errors import DataError
from winnow.run_view.configuration import heading
from winnow.run_view.panels import panels
from winnow.run_view.plot import draw
from winnow.run_view.summary import hints, summary
from winnow.state.logbook import read_metrics
from winnow.state.saved_runs import manifest_of
from winnow.view.drawing import new_figure, save_figure


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return read_metrics(write_run(tmp_path_factory.mktemp("runs") / "toy"))


@pytest.fixture(scope="module")
def figure(rows):
    """The picture of the rows, for tests that only read it."""
    return draw(rows, title="toy")


def hint(*steps):
    return " ".join(hints(steps))


def test_the_picture_is_a_png(rows, tmp_path):
    figure = draw(rows, title="toy [run] $\\frac$ 两", subtitle="bundled, $")
    save_figure(figure, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "plot.png").stat().st_size > 20_000


def curves(axes):
    """[(label, x, y), ...] of one of the picture's axes; the second scale of a panel is a further axes at the end."""
    lines = [*axes.get_lines(), *(bars[0] for bars in axes.containers)]
    named = [(line.get_label(), tuple(line.get_xdata()), tuple(line.get_ydata())) for line in lines]
    return [curve for curve in named if not curve[0].startswith("_")]


def panel(figure, title):
    """The axes of the panel with this title."""
    (axes,) = (axes for axes in figure.axes if axes.get_title() == title)
    return axes


BUDGET = "budget: what the tokens bought"


def test_accuracy_comes_first_and_panels_without_data_are_omitted(rows, figure):
    drawn = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert drawn == [
        "accuracy", "reward", "completion length", "policy loss", "signal", BUDGET, "entropy", "gradient norm",
    ]  # fmt: skip
    more = {"loss/kl": 0.1, "policy/move_followed": 0.5}
    with_more = [{**row, **more} if "budget/rollouts" in row else row for row in rows]
    assert [one.title for one in panels(with_more)][8:] == ["weights", "KL divergence from the reference"]
    assert len(panels([{"step": 0, "budget/rollouts": 4, "reward/mean": 0.5}])) == 5


def test_a_reward_of_0_and_1_has_a_band_of_one_standard_error():
    ends = {"reward/min": 0.0, "reward/max": 1.0}
    of_prompts = {"reward/mean_of_prompts": 0.5, "reward/mean_of_prompts_sem": 0.125, "reward/accuracy_of_prompts": 0.5}
    rows = [{"step": i, **metrics(i, **ends, **of_prompts)} for i in range(2)]
    (line,) = next(one for one in panels(rows) if one.title == "reward").series
    assert (line.band, line.band_label) == (((0.375, 0.375), (0.625, 0.625)), "± 1 s.e.")
    (older,) = next(
        one for one in panels([{"step": i, **metrics(i, **ends)} for i in range(2)]) if one.title == "reward"
    ).series
    assert (older.band, older.band_label) == (None, None)  # a log that does not have it


def test_the_reward_has_a_band_from_its_smallest_to_its_largest_value():
    rows = [{"step": i, **metrics(i, **{"reward/min": -1.0 - i, "reward/max": 2.0 + i})} for i in range(3)]
    (reward,) = (one for one in panels(rows) if one.title == "reward")
    (line,) = reward.series
    assert line.y == pytest.approx((0.1, 0.2, 0.3))
    assert line.band == ((-1.0, -2.0, -3.0), (2.0, 3.0, 4.0))
    (shaded,) = panel(draw(rows, title="toy"), "reward").collections
    assert (shaded.get_paths()[0].vertices[:, 1].min(), shaded.get_paths()[0].vertices[:, 1].max()) == (-3.0, 4.0)


def test_a_quantity_has_one_style_in_every_panel(rows):
    looks = {}
    for one in panels([*rows, *(valued(i, 0.5, **{"loss/kl": 0.1, "reward/kl": 0.1}) for i in range(10, 13))]):
        for series in one.series:
            looks.setdefault(series.quantity, set()).add((series.style, series.color, series.marker))
        assert len({(series.style, series.marker) for series in one.series}) == len(one.series)
    assert {len(styles) for styles in looks.values()} == {1}
    assert {"training", "held out, sampled", "held out, greedy", "KL term", "mean return"} <= set(looks)


def test_no_panel_but_the_reward_s_repeats_the_curve_of_training(figure):
    accuracy, *others = (axes for axes in figure.axes if axes.get_title() != "reward")
    (training,) = (y for label, _, y in curves(accuracy) if label == "training")
    assert training == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert not [y for axes in others for _, _, y in curves(axes) if y == training]


def test_every_axis_has_a_name_and_a_unit(figure):
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == [
        ("training step", "correct (%)"),
        ("training step", "reward"),
        ("training step", "tokens"),
        ("training step", "loss"),
        ("training step", "share of groups, of rollouts (%)"),
        ("tokens generated so far", "correct, held out (%)"),
        ("training step", "nats per token"),
        ("training step", "norm before clipping"),
        ("", "cut off at max_new_tokens (%)"),
    ]


def test_the_budget_is_the_tokens_sampled_before_an_evaluation(figure):
    (greedy,) = (c for c in curves(panel(figure, BUDGET)) if c[0] == "held out, greedy")
    assert greedy == ("held out, greedy", (0.0, 5000.0, 10_000.0), (0.04, 0.7, 0.66))


def test_probes_count_in_the_budget():
    rows = [
        {"step": 0, **metrics(0), "budget/probe_tokens": 500.0, **evaluation(0.1, 0.1)},
        {"step": 1, **metrics(1), **evaluation(0.2, 0.2)},
    ]
    figure = draw(rows, title="toy")
    budget = panel(figure, BUDGET)
    assert [x for label, x, _ in curves(budget) if label == "held out, greedy"] == [(0.0, 1500.0)]
    assert budget.get_xlabel() == "tokens generated so far, probes included"


def test_the_signal_is_in_shares():
    rows = [{"step": i, **metrics(i, **{"select/kept": 4, "select/trained": 2, "group/flat": i})} for i in range(3)]
    assert {label: y for label, _, y in curves(panel(draw(rows, title="toy"), "signal"))} == {
        "flat groups": (0.0, 0.25, 0.5),
        "rollouts kept": (0.25, 0.25, 0.25),
        "rollouts trained on": (0.125, 0.125, 0.125),
    }


def valued(step, explained, **changes):
    """A step with a value model."""
    critic = {"loss": 0.2, "explained_variance": explained, "value_mean": 0.1 * step, "return_mean": 0.5}
    return {"step": step, **metrics(step), **{f"critic/{name}": number for name, number in critic.items()}, **changes}


def test_a_value_model_has_two_further_panels():
    """The explained variance, clipped at -1, with the loss on the right scale; and values with returns."""
    explained = [-40.0, math.nan, 0.25, 0.75]
    figure = draw([valued(i, e, **{"critic/return_std": 0.5}) for i, e in enumerate(explained)], title="toy")
    model, values = panel(figure, "value model"), panel(figure, "values and returns")
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in (model, values)] == [
        ("training step", "explained variance (-1: or below)"),
        ("training step", "reward to come, mean over tokens"),
    ]
    ((label, x, y),) = curves(model)
    assert (label, x) == ("explained variance", (0, 1, 2, 3))
    np.testing.assert_array_equal(y, [-1.0, math.nan, 0.25, 0.75])
    assert model.get_ylim()[0] < -1
    (beside,) = (axes for axes in figure.axes if axes.get_ylabel() == "value loss")
    assert curves(beside) == [("value loss", (0, 1, 2, 3), (0.2,) * 4)]
    assert curves(values) == [
        ("mean return", (0, 1, 2, 3), (0.5,) * 4),
        ("mean value", (0, 1, 2, 3), pytest.approx((0.0, 0.1, 0.2, 0.3))),
    ]


def test_steps_that_trained_the_value_model_alone_are_shaded():
    held = {"critic/updates": 1, "budget/updates": 0}
    rows = [valued(i, 0.5, **(held if i < 3 or i == 5 else {"critic/updates": 1})) for i in range(8)]
    (span,) = (p for p in panel(draw(rows, title="toy"), "value model").patches if p.get_label() == "policy held")
    assert (span.get_x(), span.get_width()) == (-0.5, 3.0)
    rows = [valued(i, 0.5, **({} if i == 0 else held)) for i in range(3)]
    assert [one.spans for one in panels(rows) if one.title == "value model"] == [()]


def test_a_critic_that_is_not_trained_has_no_loss_and_no_returns():
    rows = [{"step": i, **metrics(i, **{"critic/explained_variance": 0.5, "critic/value_mean": 0.5})} for i in range(3)]
    figure = draw(rows, title="toy")
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert "explained variance" in labels
    assert "value loss" not in labels
    assert [label for label, _, _ in curves(panel(figure, "values and returns"))] == ["mean value"]


def test_the_summary_has_the_explained_variance_and_time_of_a_value_model():
    rows = [valued(i, -0.5 + 0.1 * i, **{"seconds/critic": 1.0, "seconds/step": 5.0}) for i in range(10)]
    text = summary(rows)
    (line,) = (line for line in text.splitlines() if line.startswith("values"))
    assert re.findall(r"[+-]?\d\.\d+", line) == ["-0.500", "0.400", "+0.900"]
    assert "critic 20%" in text
    assert "explain" not in summary([{"step": 0, **metrics(0)}])


def test_a_reward_that_is_not_the_accuracy_has_a_separate_scale():
    shaped = [{"step": i, **metrics(i, **{"reward/mean": -2.0 + i})} for i in range(3)]
    figure = draw(shaped, title="toy")
    assert [y for _, _, y in curves(panel(figure, "reward"))] == [(-2.0, -1.0, 0.0)]
    assert [y for _, _, y in curves(panel(figure, "accuracy"))] == [pytest.approx((0.1, 0.2, 0.3))]


def test_rollouts_that_move_to_hard_prompts_lower_no_curve_of_training():
    """An allocator's steps: the means over rollouts fall, those over prompts do not."""
    alike = {"reward/mean_of_prompts": 0.7, "reward/accuracy_of_prompts": 0.7}
    uneven = [
        {"step": i, **metrics(i, **{"reward/mean": 0.7 - 0.2 * i, "reward/accuracy": 0.7 - 0.2 * i}, **alike)}
        for i in range(3)
    ]
    figure = draw(uneven, title="toy")
    for title in ("accuracy", "reward"):
        assert [y for _, _, y in curves(panel(figure, title))] == [(0.7, 0.7, 0.7)]
    text = summary(uneven)
    assert text.count("0.700") == 2
    assert text.count("70.0%") == 2


def test_no_text_of_a_run_has_empty_parentheses():
    """Another trainer logs no phases, no tokens that were trained on, and no verdicts."""
    rows = [{"step": i, "reward/mean": 0.5, "seconds/step": 2.0, "budget/rollouts": 4} for i in range(3)]
    for some in (
        rows,
        [{"step": 0, "budget/rollouts": 4}],
        [{**row, "group/count": 0, "group/flat": 0} for row in rows],
    ):
        assert "()" not in summary(some)
        assert [one.title for one in panels(some) if "()" in "".join(line.label for line in one.series)] == []


def test_a_step_without_a_verdict_leaves_the_band_of_a_0_1_reward_a_standard_error():
    of_step = {"reward/mean_of_prompts": 0.5, "reward/mean_of_prompts_sem": 0.1, "reward/min": 0.0, "reward/max": 1.0}
    lost = dict.fromkeys(of_step, math.nan)
    rows = [{"step": i, "budget/rollouts": 4, **row} for i, row in enumerate((of_step, lost, of_step))]
    (reward,) = (one for one in panels(rows) if one.title == "reward")
    assert [low for low in reward.series[0].band[0] if not math.isnan(low)] == pytest.approx([0.4, 0.4])


def test_a_single_step_without_an_evaluation_can_be_plotted(tmp_path):
    save_figure(draw([{"step": 0, **metrics(0)}], title="one"), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()


def test_without_an_evaluation_the_budget_shows_training():
    rows = [{"step": i, **metrics(i)} for i in range(3)]
    assert curves(panel(draw(rows, title="toy"), BUDGET)) == [
        ("training (no evaluation yet)", (0.0, 1000.0, 2000.0), pytest.approx((0.1, 0.2, 0.3)))
    ]


@pytest.mark.parametrize("name", ["a $x^{$ run", "$\\frac$", "pay $5 for $10", "两 run", "a\nb\x1b[2J\u202e"])
def test_a_name_is_drawn_as_it_is(name):
    picture = draw([{"step": 0, "budget/rollouts": 4, "reward/mean": 0.5}], title=name, subtitle="bundled, $")
    (title,) = picture.texts
    with warnings.catch_warnings(action="ignore"):  # of a character that the font lacks
        title.draw(picture.canvas.get_renderer())  # alone: all around it takes a second
    assert not title.get_parse_math()
    (shown, below) = title.get_text().split("\n")
    assert shown == name.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert below == "bundled, $"


def test_the_heading_is_the_configuration_in_short(smallest):
    config = smallest(
        model={"lora": {"rank": 4}, "path": "/models/of/mine/Qwen"},
        terms=[{"use": "kl", "coefficient": 0.1}],
        allocate="gvm",
        select=["max_variance", {"use": "threshold", "low": 0.5}],
        critic={"form": "shared"},
    )
    assert heading(dump(validate(config))) == (
        "mine/Qwen, LoRA 4, clip + kl on grpo, value model (shared), 4 -> 4 rollouts of 4 prompts per step, "
        "gvm allocation"
    )


@pytest.mark.parametrize(
    "manifest",
    [
        "", "[]", "[" * 3000, '{"winnow_run": 1, "config": 3}',
        '{"winnow_run": 1, "config": {"model": "x", "select": 4, "terms": [1]}}',
        '{"winnow_run": 1, "config": {"select": [{"use": [], "keep_per_prompt": {}}], '
        '"rollout": {"rollouts_per_prompt": [], "prompts_per_step": "x"}, "loss": {"use": 5}}}',
    ],
    ids=range(6),
)  # fmt: skip
def test_an_unreadable_manifest_has_an_empty_heading(tmp_path, manifest):
    assert heading(manifest_of(tmp_path).config) == ""
    (tmp_path / "manifest.json").write_text(manifest)
    assert heading(manifest_of(tmp_path).config) == ""


def test_a_run_without_a_step_and_a_missing_folder_are_refused(tmp_path):
    with refused(DataError, code="data.empty"):
        summary([{"step": 0, "eval/seconds": 1.0}])
    with refused(DataError, tmp_path / "no" / "plot.png"):
        save_figure(new_figure(1, 1), tmp_path / "no" / "plot.png")


def test_the_summary_has_improvements_evaluations_and_costs(rows):
    assert_golden("run_summary", summary(rows))


def test_long_runs_are_compared_over_a_tenth_of_their_steps():
    rows = [{"step": i, **metrics(0, **{"reward/mean": 1.0 if i == 0 else 0.0})} for i in range(40)]
    (line,) = (line for line in summary(rows).splitlines() if line.startswith("reward"))
    assert re.findall(r"-?\d\.\d+", line) == ["0.250", "0.000", "-0.250"]
    assert re.search(r"\b4 steps", line)


def test_a_run_without_a_step_has_no_summary():
    with refused(DataError, code="data.empty"):
        summary([{"step": 0, "eval/seconds": 1.0}])


def test_a_healthy_run_gets_no_hint():
    assert hint(metrics(0), metrics(1)) == ""


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"group/flat": 4, "group/all_wrong": 3, "group/all_correct": 1}, ["100.0%", "3 all wrong", "hard"]),
        ({"group/flat": 4, "group/all_wrong": 0, "group/all_correct": 4}, ["100.0%", "4 all correct", "easy"]),
        ({"group/flat": 4, "reward/min": 0.0, "reward/max": 0.0}, ["flat", "range"]),
        ({"rollout/truncated": 0.9}, ["90.0%", "rollout.max_new_tokens"]),
        ({"outcome/unparsable": 15}, ["93.8%", "format"]),
        ({"outcome/failed": 2}, ["4", "--failed"]),
        ({"policy/entropy": 0.001}, ["entropy", "0.01"]),
        ({"policy/skipped_updates": 1}, ["2 updates"]),
        ({"critic/explained_variance": -0.01}, ["docs/ppo.md"]),
    ],
)
def test_a_hint_names_each_symptom(changes, names):
    text = hint(metrics(0, **changes), metrics(1, **changes))
    assert [name for name in names if name not in text] == []


def test_a_hint_about_rewards_without_verdicts_counts_none():
    unlogged = ("group/all_correct", "group/all_wrong", "reward/min", "reward/max")
    text = hint({name: value for name, value in metrics(0, **{"group/flat": 4}).items() if name not in unlogged})
    assert ["too easy or too hard" in text, "wrong" in text, "range" in text] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("rollout/truncated", {"rollout/truncated": 0.9}, {"rollout/truncated": 0.4}),
        ("outcome/unparsable", {"outcome/unparsable": 15}, {"outcome/unparsable": 1}),
        ("group/flat", {"group/flat": 4, "group/all_wrong": 4}, {"group/flat": 1, "group/all_wrong": 1}),
    ],
)
def test_a_share_that_has_fallen_gives_no_hint(name, bad, good):
    """Of 40 steps, the last quarter is bad in the mean, and its last 5 steps are good; and the other way round."""
    over = [metrics(i, **(bad if i < 35 else good)) for i in range(40)]
    assert hint(*over) == ""
    begun = [metrics(i, **(good if i < 35 else bad)) for i in range(40)]
    assert "of the last 5 steps" in hint(*begun)
    assert "of the last 2 steps" in hint(*(metrics(i, **bad) for i in range(8)))
    assert "of the last step " in hint(metrics(0, **bad))


def test_steps_that_train_the_value_model_alone_skip_no_update():
    skipped = {"policy/skipped_updates": 2, "critic/updates": 1}
    assert hint(metrics(0, **skipped, **{"budget/updates": 0}), metrics(1, **{"critic/updates": 1})) == ""
    assert "2 updates" in hint(metrics(0, **skipped, **{"budget/updates": 0, "select/trained": 3}))
    values = hint(metrics(0, **{"critic/skipped_updates": 5}))
    assert ("5 updates" in values, "value model" in values) == (True, True)


def test_the_summary_lists_alarms_instead_of_hints():
    rows = [{"step": i, **metrics(0, **{"rollout/truncated": 0.9 if i % 20 < 10 else 0.1})} for i in range(70)]
    config = {"alarms": {"clear_steps": 5, "off": ["no_learning"]}, "rollout": {"max_new_tokens": 7}}
    text = " ".join(summary(rows, config).split())
    for part in ("step 4: all_truncated: 90%", "rollout.max_new_tokens (7)", "step 69", "4 times"):
        assert part in text
    assert text.count("90") == 1, "the hint about truncation is omitted"
    assert "step 2: all_truncated" in " ".join(summary(rows, {"alarms": {"steps": 3}}).split())


def test_the_reward_range_of_a_step_with_a_spread_has_not_collapsed():
    assert "range" not in hint(metrics(0, **{"group/flat": 4}))


def test_the_history_has_the_older_schema():
    rows = [
        {"step": 0, **metrics(0), "policy/clip_fraction": 0.25, "reward/part/format": 0.5},
        {"step": 1, **metrics(1), "policy/loss": math.nan, "eval/accuracy_sampled": 0.3},
        {"step": 2, "eval/accuracy_sampled": 0.4},
    ]
    first, second = training_history(rows)

    assert first == {
        "grpo_step": 1, "reward_mean": 0.1, "reward_std": 0.4, "reward_max": 1.0, "reward_min": 0.0,
        "answer_reward_mean": 0.1, "format_reward_mean": 0.5, "advantage_mean": 0.0, "advantage_std": 0.9,
        "loss": 0.0, "grad_norm": 0.3, "clip_fraction": 0.25, "val_reward": 0.3,
    }  # fmt: skip
    assert second["grpo_step"] == 2
    assert second["loss"] is None
    assert second["format_reward_mean"] is None
    assert "clip_fraction" not in second
    assert second["val_reward"] == 0.4
    json.dumps([first, second], allow_nan=False)
