from __future__ import annotations

import json
import tomllib

import pytest

from synthetic_run import FAILED, NASTY, RIGHT, UNREAD, WRONG, group
from winnow.algos.loss import clip
from winnow.commands.evaluate import (
    Measured,
    analysis,
    beside,
    check_found,
    evaluate_model,
    headline,
    write,
    write_metrics,
)
from winnow.commands.output import check_new
from winnow.commands.run_settings import toml
from winnow.config import dump
from winnow.config_file import validate
from winnow.errors import ConfigError, DataError

SAMPLED = (group("a", (RIGHT, WRONG, WRONG, UNREAD)), group("b", (RIGHT, RIGHT, FAILED, WRONG), texts=[NASTY] * 4))
METRICS = {"eval/accuracy_sampled": 0.458, "eval/length_mean": 3.0, "eval/truncated": 0.25, "eval/seconds": 61.0}


CONFIG = validate(
    {
        "model": "some/model",
        "task": {"use": "jsonl", "path": "x"},
        "prompt": {"template": "r1_zero"},
        "reward": {"parts": [{"use": "math"}, {"use": "format", "weight": 0.5}]},
        "rollout": {"engine": "hf", "max_new_tokens": 99, "temperature": 0.7},
        "evaluate": {"split": "test", "rollouts_per_prompt": 4, "top_p": 0.9},
        "seed": 3,
    }
)


def judged(sampled=SAMPLED, greedy=(), dropped=0, **metrics):
    return Measured(
        metrics=METRICS | metrics, sampled=tuple(sampled), greedy=tuple(greedy), config=CONFIG, dropped=dropped
    )


def test_the_headline():
    assert headline(judged(greedy=[group("a", (RIGHT, WRONG))], dropped=1200)).splitlines() == [
        "model      some/model",
        "task       jsonl (path = x), 2 test problems, x 4, and once greedily",
        "dropped    1,200 more, whose prompts are longer than prompt.max_prompt_tokens = 512",
        "prompts    template r1_zero, at most 99 new tokens",
        "reward     math + 0.5 format",
        "sampling   temperature 0.7, top_p 0.9, engine hf, seed 3",
        "accuracy   sampled 45.8%",
        # a: 1 of 4 correct; b: 2 of 3 verdicts. @1 (1/4 + 2/3) / 2; @2 (1 - 3/6 + 1 - 0/3) / 2; @4: a alone
        "pass       @1 45.8%, @2 75.0%, @4 100.0%",
        "length     3.0 tokens on average, 25.0% cut off",
        "sampled    correct 3 (37.5%), readable but wrong 3 (37.5%), no readable answer 1 (12.5%), "
        "verifier failed 1 (12.5%)",
        "greedy     correct 1 (50.0%), readable but wrong 1 (50.0%), no readable answer 0 (0.0%)",
        "time       1:01",
    ]


def test_examples_are_of_different_problems_first_and_at_most_five():
    many = [group(f"p{i}", (RIGHT, RIGHT)) for i in range(7)]
    text = analysis(judged(many))
    assert [line for line in text.splitlines() if line.endswith(" #0")] == [f"p{i} #0" for i in range(5)]
    assert " #1\n" not in text
    assert text.count("==") == 2  # one heading: the other kinds did not occur


def test_rows_and_report_are_written_side_by_side(tmp_path):
    output = tmp_path / "eval.jsonl"
    check_new(output, beside(output, ".txt"))
    write(judged(greedy=[group("a", (RIGHT,))]), output)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    report = (tmp_path / "eval.txt").read_text()

    assert [row["mode"] for row in rows] == ["sampled"] * 8 + ["greedy"]
    assert rows[4]["text"] == NASTY
    assert (rows[6]["kind"], rows[6]["reward"], rows[6]["cause"]) == ("failed", None, "timeout")
    assert "== readable but wrong ==" in report
    assert "\x1b" not in report
    assert "answer read: 6; gold: 132" in report
    with pytest.raises(DataError, match="already exists"):
        check_new(output)


def test_a_missing_folder_is_noticed_before_the_evaluation(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        check_new(tmp_path / "no" / "eval.jsonl")
    assert beside(tmp_path / "a.b.jsonl", ".txt").name == "a.b.txt"
    assert beside(tmp_path / "a.txt", ".txt").name == "a.txt.txt"  # never the rollouts' own file
    with pytest.raises(DataError, match="two things would be written"):
        check_new(tmp_path / "a.jsonl", tmp_path / "a.txt", tmp_path / "a.jsonl")


def test_an_id_that_is_no_text_for_utf_8_is_written_all_the_same(tmp_path):
    odd = "p-\ud800"
    write(judged([group(odd, (RIGHT, WRONG))]), tmp_path / "eval.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_bytes().splitlines()]
    assert [row["prompt_id"] for row in rows] == [odd, odd]
    assert r"p-\ud800 #0" in (tmp_path / "eval.txt").read_text()


def test_metrics_are_json_with_what_they_are_of(tmp_path):
    write_metrics(judged(**{"eval/accuracy_sampled_sem": float("nan")}), tmp_path / "eval.json")
    found = json.loads((tmp_path / "eval.json").read_text(), parse_constant=pytest.fail)
    assert found["metrics"] == {**METRICS, "eval/accuracy_sampled_sem": None}
    asked = {"model": "some/model", "task": "jsonl", "split": "test", "problems": 2, "dropped": 0, "temperature": 0.7}
    assert asked.items() <= found.items()
    assert (found["reward"], found["template"], found["max_new_tokens"]) == ("math + 0.5 format", "r1_zero", 99)
    assert (found["system"], found["suffix"], found["template_options"]) == (None, None, {})
    # a: 1 of 4; b: 2 of 3 verdicts
    assert found["pass_at"] == pytest.approx({"1": 11 / 24, "2": 0.75, "4": 1.0})
    assert validate(found["config"]) == CONFIG


def test_a_report_beside_the_rows_is_not_overwritten_either(tmp_path):
    (tmp_path / "eval.txt").write_text("mine")
    with pytest.raises(DataError, match=r"eval\.txt already exists"):
        check_new(tmp_path / "eval.jsonl", beside(tmp_path / "eval.jsonl", ".txt"))


def test_a_function_that_is_called_like_a_member_is_not_taken_for_it(tmp_path):
    """All that a manifest keeps of it is a name, which is then no member's."""

    def boxed(prompt, rollout):
        return 0.25

    saved = dump(validate({"reward": boxed}))
    assert saved["reward"]["use"].endswith("boxed (given from Python)")
    with pytest.raises(
        ConfigError, match=r"reward: only the name of .*boxed.* was saved; give the same function again"
    ):
        check_found(validate(saved), tmp_path)
    assert dump(validate({"loss": clip}))["loss"]["use"] == "clip"


@pytest.mark.parametrize("reward", [{"use": "short_and_right"}, {"parts": [{"use": "r1_zero"}, {"use": "short"}]}])
def test_a_reward_that_was_a_function_needs_to_be_named(tmp_path, reward):
    with pytest.raises(ConfigError, match=r'reward: no reward is called .short.*anew, reward = "file\.py:function"'):
        check_found(validate({"reward": reward}), tmp_path)
    with pytest.raises(ConfigError, match=r"task: no task is called 'mine'.*given from Python"):
        check_found(validate({"task": "mine"}), tmp_path)


def test_a_reward_that_is_still_there_passes(tmp_path):
    (tmp_path / "mine.py").write_text("def short(prompt, rollout):\n    return 1.0\n")
    check_found(validate({"reward": {"parts": [{"use": "r1_zero"}, {"use": "mine.py:short"}]}}), tmp_path)


def test_the_resolved_configuration_is_toml_that_means_the_same():
    lora = {"rank": 4, "targets": ["q_proj"]}
    config = validate(
        {
            "model": {"path": 'a "quoted" \\ path ±', "lora": lora},
            "reward": {"parts": [{"use": "r1_zero"}, {"use": "format", "weight": 0.5}]},
            "task": {"use": "arithmetic", "levels": [2, 3]},
            "select": ["all", {"use": "random", "keep_per_prompt": 0.5}],
        }
    )
    assert validate(tomllib.loads(toml(config))) == config


def test_the_bundled_model_is_evaluated_as_in_training(tmp_path):
    script = {"use": "scripted", "script": ["</think> <answer>1</answer>", "no idea"]}
    config = validate(
        {
            "device": "cpu",
            "rollout": {"engine": script, "max_new_tokens": 40},
            "task": {"use": "arithmetic", "size": 64},
            "reward": {"use": "r1_zero"},
            "evaluate": {"split": "test", "problems": 3, "rollouts_per_prompt": 2},
            "verify": {"workers": 0},
        }
    )
    evaluation = evaluate_model(config, tmp_path)

    kinds = [[outcome.kind for outcome in g.outcomes] for g in evaluation.sampled]
    assert [row[1] for row in kinds] == ["unparsable"] * 3
    assert all(row[0] in ("correct", "wrong") for row in kinds)
    assert [len(g.rollouts) for g in evaluation.greedy] == [1, 1, 1]
