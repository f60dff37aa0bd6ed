from __future__ import annotations

import json
import tomllib

import pytest
from synthetic_run import FAILED, NASTY, RIGHT, UNREAD, WRONG, group

from winnow.config import validate
from winnow.errors import ConfigError, DataError
from winnow.evaluation import Evaluation
from winnow.report.evaluation import analysis, check_reward, evaluate_model, headline, report_path, write
from winnow.report.output import check_new
from winnow.report.settings import settings_for, toml

SAMPLED = (group("a", (RIGHT, WRONG, WRONG, UNREAD)), group("b", (RIGHT, RIGHT, FAILED, WRONG), texts=[NASTY] * 4))
METRICS = {"eval/accuracy_sampled": 0.458, "eval/length_mean": 3.0, "eval/truncated": 0.25, "eval/seconds": 61.0}


def judged(sampled=SAMPLED, greedy=()):
    return Evaluation(METRICS, tuple(sampled), tuple(greedy))


def test_the_headline():
    assert headline(judged(greedy=[group("a", (RIGHT, WRONG))])).splitlines() == [
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
    check_new(output, report_path(output))
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
    assert report_path(tmp_path / "a.b.jsonl").name == "a.b.txt"
    assert report_path(tmp_path / "a.txt").name == "a.txt.txt"  # never the rollouts' own file


def test_a_report_beside_the_rows_is_not_overwritten_either(tmp_path):
    (tmp_path / "eval.txt").write_text("mine")
    with pytest.raises(DataError, match=r"eval\.txt already exists"):
        check_new(tmp_path / "eval.jsonl", report_path(tmp_path / "eval.jsonl"))


@pytest.mark.parametrize("reward", [{"use": "short_and_right"}, {"parts": [{"use": "r1_zero"}, {"use": "short"}]}])
def test_a_reward_that_was_a_function_needs_to_be_named(tmp_path, reward):
    with pytest.raises(ConfigError, match=r"reward: no reward is called 'short.*--set reward\.use=file\.py:function"):
        check_reward(validate({"reward": reward}), tmp_path)


def test_a_reward_that_is_still_there_passes(tmp_path):
    (tmp_path / "mine.py").write_text("def short(prompt, rollout):\n    return 1.0\n")
    check_reward(validate({"reward": {"parts": [{"use": "r1_zero"}, {"use": "mine.py:short"}]}}), tmp_path)


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


def test_a_checkpoint_brings_the_configuration_of_its_run(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    trained = {"model": {"path": "base", "lora": {"rank": 2}}, "task": {"use": "jsonl", "path": "x"}, "seed": 7}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": trained}))

    config, _ = settings_for(str(checkpoint), None, ["evaluate.problems=3", "task.path=y"])

    assert config.model.path == str(checkpoint)
    assert config.model.lora is None
    assert (config.seed, config.task.options, config.evaluate.problems) == (7, {"path": "y"}, 3)


def test_a_configuration_by_name_wins_and_gives_its_folder(tmp_path):
    (tmp_path / "mine.toml").write_text("seed = 5\n")
    config, base = settings_for("bundled", tmp_path / "mine.toml", [])
    assert (config.seed, config.model.path, base) == (5, "bundled", tmp_path)


def test_other_models_get_the_defaults(tmp_path):
    config, _ = settings_for("owner/name", None, ["task=gsm8k"])
    assert (config.model.path, config.task.label) == ("owner/name", "gsm8k")
    with pytest.raises(ConfigError, match="did you mean 'problems'"):
        settings_for("bundled", None, ["evaluate.problem=3"])


def test_a_damaged_manifest_is_an_error(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"not JSON .* --config"):
        settings_for(str(checkpoint), None, [])


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
