from __future__ import annotations

import csv
import math
import re
import sys
import xml.etree.ElementTree

import pytest
from typer.testing import CliRunner
from written_runs import write_run

from golden_files import assert_golden
from synthetic_run import NASTY, RIGHT, WRONG
from winnow.commands import app
from winnow.view.text import format_duration
from winnow_lab.compare.comparison import compare_inputs
from winnow_lab.compare.picture import draw_comparison
from winnow_lab.compare.text import NO_DIFFERENCE


def winnow(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def curves(tmp_path):
    """GRPO reaches 60% after 3 hours, PODS 59.5% after 1.5 and 61% after 2; two seeds each."""
    rows = ["group,seed,hours,tokens_generated,accuracy,length,formatted,correct_and_formatted"]
    for seed, off in ((0, -1), (1, 1)):
        rows += [f"GRPO,{seed},{x},{x * 1000},{y + off},{200 + x},{y},{y - 5}" for x, y in ((0, 10), (1, 50), (3, 60))]
        rows += [f"PODS,{seed},{x},{x * 4000},{y + off},250,{y},{y}" for x, y in ((0, 10), (1.5, 59.5), (2, 61))]
    path = tmp_path / "curves.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_table_has_values_level_times_and_speed_ups(curves, monkeypatch):
    monkeypatch.chdir(curves.parent)
    result = winnow("compare", curves.name)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 100
    assert_golden("compare_table", result.output)
    table, _, notes = result.output.partition("\nnote: ")
    assert len(notes.splitlines()) < len(table.splitlines())
    assert re.search(r"GRPO \(2 of 2 seeds: 0, 1\), PODS \(2 of 2 seeds: 0, 1\): ", result.output)  # one note for both
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    # two seeds at 59 and 61: standard error 1, and 12.706 of them to either side by Student's t
    assert any(line.startswith("GRPO 2 60.0 ± 2.0 [47.3, 72.7] 60.0 ± 2.0 [47.3, 72.7] 3:00:00") for line in lines)
    assert "level: accuracy 52.2%" in result.output  # 95% of the mean of 50 and 60
    (seconds,) = (line for line in lines if line.startswith("seconds"))
    # means of GRPO: 0.3 0.4 0.55, of PODS 0.3475 0.435 0.6025, of the seeds 0.01 less and more. To 0.5225:
    grpo = math.sqrt((1 + 2 * (0.5225 - 0.39) / 0.15) * (1 + 2 * (0.5225 - 0.41) / 0.15))
    pods = math.sqrt((1.5 + 0.5 * (0.5225 - 0.425) / 0.1675) * (1.5 + 0.5 * (0.5225 - 0.445) / 0.1675))
    assert seconds.split()[1:4] == [format_duration(3600 * grpo), format_duration(3600 * pods), f"{grpo / pods:.2f}x"]


def cells_of(result, label):
    """The cells behind a label in the output; two spaces or more are between two cells."""
    lines = [re.split(" {2,}", line.strip()) for line in result.output.splitlines()]
    return next(cells[1:] for cells in lines if cells[0] == label)


def test_wide_times_are_columns_of_their_own(tmp_path):
    rows = ["group,seed,tokens_generated,steps,accuracy"]
    rows += [f"A,{seed},{x * 1000},{x},{0.1 * x}" for seed in range(12) for x in (1, 2, 3)]
    rows += [f"B,{seed},{x * 1000},{x},0.6" for seed in range(12) for x in (1, 2, 3)]
    (tmp_path / "c.csv").write_text("\n".join(rows) + "\n")
    result = winnow("compare", tmp_path / "c.csv", "--baseline", "B")
    assert cells_of(result, "tokens generated")[:2] == ["12 of 12 at once", "12 of 12 never"]
    assert max(map(len, result.output.splitlines())) <= 100


def test_wide_values_are_columns_of_their_own(tmp_path):
    for seed, reward in enumerate((-0.0123, -0.0246)):
        write_run(
            tmp_path / f"run-{seed}", (0.1, 0.2), seed=seed, step=lambda _, reward=reward: {"reward/mean": reward}
        )
    cells = cells_of(winnow("compare", tmp_path, "--measure", "reward/mean"), "run")
    # mean -0.01845, standard error 0.00615: 1.96 of them, and 12.706 to either side
    shown = ["-0.0185 ± 0.0121", "[-0.0966, 0.0597]"]
    assert cells[:5] == ["2", *shown, *shown]


@pytest.mark.parametrize(("reward", "mean"), [(1e307, "1.00e+307"), (-1e-300, "-1.00e-300")])
def test_a_damaged_number_is_short_in_every_cell(tmp_path, reward, mean):
    for seed in (0, 1):
        write_run(
            tmp_path / f"run-{seed}",
            (0.1, 0.2, 0.3),
            seed=seed,
            seconds=abs(reward),
            step=lambda _: {"reward/mean": reward, "budget/tokens_generated": abs(reward)},
        )
    result = winnow("compare", f"a={tmp_path / 'run-0'}", f"b={tmp_path / 'run-1'}", "--measure", "reward/mean")
    assert result.exit_code == 0, result.output
    assert cells_of(result, "a")[1] == mean
    assert max(map(len, result.output.splitlines())) <= 120


@pytest.mark.parametrize(("scale", "words"), [(1.0, True), (3.0, False)])
def test_a_row_whose_interval_contains_1_shows_no_difference(tmp_path, scale, words):
    rows = ["group,seed,steps,tokens_generated,accuracy"]
    for group, slow in (("A", scale), ("B", 1.0)):
        for seed, late in enumerate((1.0, 1.02, 0.99) if group == "A" else (1.01, 1.0, 1.0)):
            rows += [f"{group},{seed},{x},{x * late * slow},{min(60, 10 * x + 10)}" for x in range(9)]
    (tmp_path / "c.csv").write_text("\n".join(rows) + "\n")
    result = winnow("compare", tmp_path / "c.csv")
    (line,) = (line for line in result.output.splitlines() if line.startswith("  tokens generated"))
    assert (NO_DIFFERENCE in line) is words


def test_the_files_have_the_times_of_every_seed_and_the_speed_ups(curves, tmp_path):
    assert winnow("compare", curves, "-o", tmp_path / "out", "--no-plot").exit_code == 0
    with (tmp_path / "out" / "times.csv").open() as file:
        times = {(row["group"], row["seed"], row["axis"]): row for row in csv.DictReader(file)}
    assert len(times) == 8
    with (tmp_path / "out" / "speed_ups.csv").open() as file:
        (seconds, tokens) = csv.DictReader(file)
    own = [float(times["GRPO", seed, "seconds"]["time"]) for seed in "01"]
    assert float(seconds["baseline_time"]) == pytest.approx((own[0] * own[1]) ** 0.5)
    columns = ("axis", "measure", "seeds", "paired", "still_rising", "censored_group", "censored_baseline")
    assert [seconds[name] for name in columns] == ["seconds", "accuracy", "2", "yes", "yes", "0", "0"]
    assert float(tokens["level"]) == pytest.approx(0.5225)
    assert float(tokens["low"]) < float(tokens["ratio"]) < float(tokens["high"])
    assert seconds["pods_99"] == "2.0"  # 59.4% after 3 hours and after 1.5


def test_the_tables_have_every_point_and_nothing_is_overwritten(curves, tmp_path):
    out = tmp_path / "out"
    assert winnow("compare", curves, "-o", out, "--no-plot").exit_code == 0
    assert sorted(file.name for file in out.iterdir()) == ["curves.csv", "speed_ups.csv", "times.csv"]
    with (out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    (last,) = (
        r for r in rows if (r["group"], r["axis"], r["x"], r["measure"]) == ("GRPO", "seconds", "10800.0", "accuracy")
    )
    assert float(last["mean"]) == pytest.approx(0.6)
    assert float(last["standard_error"]) == pytest.approx(0.01)
    assert float(last["low"]) == pytest.approx(0.6 - 0.127062, rel=1e-5)
    assert last["seeds"] == "2"
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert winnow("compare", curves, "-o", out, "--no-plot").exit_code == 2
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_the_picture_has_a_panel_for_every_measurement(curves, tmp_path):
    out = tmp_path / "out"
    assert winnow("compare", curves, "-o", out).exit_code == 0
    assert (out / "comparison.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert xml.etree.ElementTree.parse(out / "comparison.svg").getroot().tag.endswith("svg")
    panels = draw_comparison(compare_inputs([str(curves)])).axes
    assert [(panel.get_xlabel(), panel.get_ylabel()) for panel in panels] == [
        ("training time (hours)", "held-out accuracy (%)"),
        ("tokens generated", "held-out accuracy (%)"),
        ("training time (hours)", "mean completion length (tokens)"),
        ("training time (hours)", "held-out rollouts (%)"),
    ]
    mean = next(line for line in panels[0].get_lines() if line.get_color() == "#000000")
    assert mean.get_xdata().tolist() == [0, 1, 3]
    assert mean.get_ydata() == pytest.approx([0.1, 0.5, 0.6])
    assert [text.get_text()[:7] for text in panels[0].get_legend().get_texts()] == ["PODS: 1"]


def test_groups_differ_in_more_than_their_colour(tmp_path):
    (tmp_path / "many.csv").write_text(
        "group,steps,accuracy\n" + "".join(f"{name},{x},{0.1 * x}\n" for name in "ABCDEFG" for x in (0, 1))
    )
    lines = draw_comparison(compare_inputs([str(tmp_path / "many.csv")])).axes[0].get_lines()[:7]
    assert len({line.get_color() for line in lines}) == 7
    assert len({line.get_marker() for line in lines}) == 7


def test_an_allocation_has_a_panel_and_a_table(tmp_path):
    run = write_run(tmp_path / "gvm", (0.1, 0.4), rollouts=(RIGHT, WRONG), allocate="gvm_online")
    assert winnow("compare", run, "-o", tmp_path / "out").exit_code == 0
    with (tmp_path / "out" / "allocation.csv").open() as file:
        assert [(row["pass_rate"], row["mean"]) for row in csv.DictReader(file)] == [("≤50", "2.0")]
    panel = draw_comparison(compare_inputs([str(run)])).axes[-1]
    assert panel.get_ylabel() == "rollouts of a prompt"


def test_seeds_that_share_no_pass_rate_have_an_empty_panel(tmp_path):
    """Every prompt of seed 0 is solved, and none of seed 1."""
    for seed, outcome in enumerate((RIGHT, WRONG)):
        write_run(tmp_path / f"gvm-{seed}", (0.1, 0.4), seed=seed, rollouts=(outcome, outcome), allocate="gvm_online")
    panel = draw_comparison(compare_inputs([str(tmp_path)])).axes[-1]
    assert panel.get_ylabel() == "rollouts of a prompt"


def test_without_matplotlib_the_error_names_the_extra(curves, tmp_path, monkeypatch):
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("winnow.view.drawing", "winnow_lab.compare.picture"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    result = winnow("compare", curves, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert ("winnow-rl[plot]" in result.stderr, "--no-plot" in result.stderr) == (True, True)
    assert not (tmp_path / "out").exists()
    assert winnow("compare", curves, "-o", tmp_path / "out", "--no-plot").exit_code == 0
    assert winnow("compare", curves).exit_code == 0


def test_a_hostile_name_is_escaped_in_text_and_picture(tmp_path):
    (tmp_path / "c.csv").write_text("steps,accuracy\n0,0.1\n1,0.2\n")
    label = NASTY.replace("/", "").replace("\ud800", "") + "$x^{$"
    result = winnow("compare", f"{label}={tmp_path / 'c.csv'}", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
