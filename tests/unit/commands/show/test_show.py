from __future__ import annotations

import dataclasses
import json
import re
import shutil

import click
import numpy as np
import pytest

from golden_files import assert_golden
from refusals import refused
from synthetic_run import FAILED, RIGHT, WRONG, batch, group, metrics, write_run
from winnow.commands.show import Choice, format_rollouts, paint_turns
from winnow.errors import DataError
from winnow.models.folder import BUNDLED
from winnow.records import Outcome
from winnow.state.logbook import Logbook


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "toy", steps=3)


def test_the_last_step_is_shown_group_by_group(run):
    """A golden file: blocks with verdicts, rewards, advantages, weights, reasons and details; texts are escaped."""
    assert_golden("show", "\n".join(format_rollouts(run, Choice())))


def test_model_text_is_escaped_and_shortened(run):
    _, hard = format_rollouts(run, Choice())

    assert "\x1b" not in hard
    assert r"6 \x1b[31mred" in hard
    assert r"[bold]markup[/bold] \u202e\ud800" in hard
    assert ("4,400" in hard, "x" * 400 in hard) == (True, False)


def test_full_texts_on_request(run):
    (hard,) = format_rollouts(run, Choice(prompt="toy-hard", step=0, full=True))
    assert "x" * 5000 in hard


@pytest.mark.parametrize(("choice", "name"), [(Choice(worst=1), "toy-hard"), (Choice(best=1), "toy-easy")])
def test_worst_and_best_rank_prompts_by_mean_reward(run, choice, name):
    ranking, block = format_rollouts(run, choice)
    assert ranking.startswith("1 of 2 prompts")
    assert name in block


def test_worst_lists_all_groups_if_they_are_few_the_worst_first(run):
    ranking, first, second = format_rollouts(run, Choice(worst=5))
    assert ranking.startswith("2 of 2 prompts")
    assert "toy-hard" in first
    assert "toy-easy" in second


def test_prompts_that_are_as_bad_as_the_worst_shown_are_counted(tmp_path):
    log = Logbook(tmp_path, seed=3)
    alike = [group(f"toy-{i}", (WRONG, WRONG)) for i in range(3)]
    groups = [*alike, group("toy-mixed", (RIGHT, WRONG))]
    log.write(0, metrics(0), groups, [batch(groups)])
    assert next(format_rollouts(tmp_path, Choice(worst=1))).startswith(
        "1 of 4 prompts, with the lowest mean reward; 2 "
    )
    assert ";" not in next(format_rollouts(tmp_path, Choice(worst=3)))
    assert ";" not in next(format_rollouts(tmp_path, Choice(best=1)))


def test_only_dropped_rollouts(run):
    easy, hard = format_rollouts(run, Choice(dropped=True))
    assert "#0" not in easy
    assert "#2" in easy
    assert [f"#{i}" in hard for i in range(4)] == [False, False, True, True]


def test_failures_are_searched_in_every_step(run):
    blocks = list(format_rollouts(run, Choice(failed=True)))
    assert [block[:6] for block in blocks] == ["step 0", "step 1", "step 2"]
    assert all("#2 failed" in block and "#1" not in block for block in blocks)


def test_a_prefix_of_an_id_selects_a_prompt_in_every_step(run):
    assert [block[:16] for block in format_rollouts(run, Choice(prompt="toy-e"))] == [
        "step 0  toy-easy",
        "step 1  toy-easy",
        "step 2  toy-easy",
    ]


def test_the_folder_of_rollouts_and_a_file_of_it_can_be_named(run):
    assert list(format_rollouts(run / "rollouts", Choice())) == list(format_rollouts(run, Choice()))
    (easy, _) = format_rollouts(run / "rollouts" / "step-000001.parquet", Choice())
    assert easy.startswith("step 1  toy-easy")


def test_one_step_is_shown_without_reading_another(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "rollouts" / "step-000000.parquet").write_bytes(b"garbled")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"garbled")
    assert list(format_rollouts(tmp_path / "run", Choice())) == list(format_rollouts(run, Choice()))
    with refused(DataError, "step-000000.parquet"):
        list(format_rollouts(tmp_path / "run", Choice(failed=True)))


def test_a_rollout_without_a_logged_text_has_its_numbers(tmp_path):
    log = Logbook(tmp_path, seed=0, rollouts="kept")
    log.write(0, {}, [group("toy", (RIGHT, WRONG))], [])
    (block,) = format_rollouts(tmp_path, Choice())
    assert ("answer 0" in block, "answer 1" in block) == (True, False)
    _, dropped = block.split("#1")
    assert dropped.split()[:3] == ["wrong", "reward", "0.000"]


def test_the_parts_of_a_reward_are_shown_beside_it(tmp_path):
    short = Outcome(reward=1.4, correct=False, kind="wrong", parts={"right": 0.0, "short\x1b[2J": 1.4})
    whole = Outcome(reward=1.0, correct=True, kind="correct", parts={"right": 1.0})
    Logbook(tmp_path, seed=0).write(0, {}, [group("toy", (short, whole))], [])
    (block,) = format_rollouts(tmp_path, Choice())
    first, second = block.split("#1")
    assert ["right 0.000" in first, "short" in first, "1.400" in first] == [True] * 3
    assert "\x1b" not in block
    assert ("1.000" in second, "right" in second) == (True, False), "a single part is the reward itself"


def test_a_group_without_a_verdict_is_neither_best_nor_worst(tmp_path):
    Logbook(tmp_path, seed=0).write(0, {"budget/rollouts": 2}, [group("lost", (FAILED, FAILED))], [])
    (block,) = format_rollouts(tmp_path, Choice())
    assert "lost" in block
    with refused(DataError, tmp_path, code="data.empty"):
        list(format_rollouts(tmp_path, Choice(worst=1)))


def test_a_missing_step_or_folder_and_a_run_without_steps_are_refused(run, tmp_path):
    with refused(DataError, run, 9):
        list(format_rollouts(run, Choice(step=9)))
    with refused(DataError, tmp_path / "nowhere", code="data.missing"):
        list(format_rollouts(tmp_path / "nowhere", Choice()))
    Logbook(tmp_path, seed=0).write_between(0, {"eval/seconds": 1.0})
    with refused(DataError, tmp_path):
        list(format_rollouts(tmp_path, Choice()))


def valued(*, length=3):
    """Two rollouts: one with values and an advantage per token, and one without values."""
    made = group("toy", (RIGHT, WRONG))
    rollouts = tuple(
        dataclasses.replace(r, tokens=np.arange(length), logprobs=np.full(length, -0.25), trainable=mask)
        for r, mask in zip(made.rollouts, (np.arange(length) != 1, None), strict=True)
    )
    rising, nothing = np.linspace(-0.5, 1.0, length), np.full(length, np.nan)
    return dataclasses.replace(
        made,
        rollouts=rollouts,
        values=(rising, nothing),
        returns=(np.ones(length), nothing),
        advantages=(1.0 - rising, np.zeros(length)),
    )


def test_an_advantage_is_the_mean_over_the_tokens_of_the_policy(tmp_path):
    made = dataclasses.replace(valued(), advantages=(np.array([1.5, 0.0, 0.5]), np.zeros(3)))
    Logbook(tmp_path, seed=0).write(0, {}, [made], [])
    (block,) = format_rollouts(tmp_path, Choice())
    assert "advantage +1.000" in block


@pytest.mark.parametrize(
    ("name", "removes"), [("config.toml", False), ("data.parquet", False), ("step-000000.parquet", True)]
)
def test_only_a_damaged_file_of_rollouts_is_to_be_removed(tmp_path, name, removes):
    (tmp_path / name).write_text("steps = 3\n")
    with refused(DataError, name, code="data.malformed") as error:
        list(format_rollouts(tmp_path / name, Choice()))
    assert ("remove" in error.value.remedy) is removes


def test_tokens_have_log_probs_values_returns_and_advantages(tmp_path):
    Logbook(tmp_path, seed=0).write(0, {}, [valued()], [])
    assert_golden("show_tokens", "\n".join(format_rollouts(tmp_path, Choice(tokens=True))))


def test_the_tokens_at_both_ends_of_a_long_rollout_are_listed(tmp_path):
    Logbook(tmp_path, seed=0).write(0, {}, [valued(length=1_500)], [])
    _, block = format_rollouts(tmp_path, Choice(tokens=True))
    lines = block.splitlines()
    assert sum("1,460" in line for line in lines) == 2
    places = [int(line.split()[0]) for line in lines if line.endswith(("| ", "policy's)")) and line.startswith("     ")]
    assert places == [*range(20), *range(1_480, 1_500)] * 2
    _, whole = format_rollouts(tmp_path, Choice(tokens=True, full=True))
    assert len(whole.splitlines()) == len(lines) + 2 * 1_459


def test_tokens_have_escaped_texts_from_the_runs_tokenizer(tmp_path):
    """The bundled tokenizer has a token for each byte, also for the escape character of terminal sequences."""
    shutil.copytree(BUNDLED, tmp_path / "checkpoints" / "step-000001")
    (tmp_path / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {"model": {"path": "nowhere"}}}))
    vocabulary = json.loads((BUNDLED / "tokenizer.json").read_text())["model"]["vocab"]
    escape, newline, word = (vocabulary[name] for name in ("\u011b", "\u010a", "\u0120that"))
    made = valued(length=4)
    tokens = np.array([escape, newline, word, 2**31 - 1])
    changed = dataclasses.replace(made, rollouts=tuple(dataclasses.replace(r, tokens=tokens) for r in made.rollouts))
    Logbook(tmp_path, seed=0).write(0, {}, [changed], [])

    (block,) = format_rollouts(tmp_path, Choice(tokens=True))
    texts = [line.partition("  | ")[2] for line in block.splitlines()[6:10]]
    assert [text.partition("  (")[0] for text in texts] == ["\\x1b", "\\n", " that", ""]
    assert "\x1b" not in block
    assert list(format_rollouts(tmp_path / "rollouts" / "step-000000.parquet", Choice(tokens=True))) == [block]


def test_tokens_have_numbers_without_a_tokenizer(tmp_path):
    manifest = {"winnow_run": 1, "config": {"model": {"path": str(tmp_path / "\x1bgone")}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    Logbook(tmp_path, seed=0).write(0, {}, [valued()], [])
    note, block = format_rollouts(tmp_path, Choice(tokens=True))
    assert ("model.path" in note, "\x1b" in note) == (True, False)
    assert "log-prob" in block


def test_tokens_that_were_not_logged_are_not_listed(tmp_path):
    Logbook(tmp_path, seed=0, rollouts="kept").write(0, {}, [valued()], [])
    _, block = format_rollouts(tmp_path, Choice(tokens=True))
    assert block.count("place") == 1
    assert ("answer 0" in block, "answer 1" in block) == (True, False)


def test_the_turns_of_policy_and_environment_differ_in_colour():
    text = "\n".join(
        ["step 0", "    turn 1, policy:", "      | 16", "    turn 1, environment:", "      | turn 2, policy:", "after"]
    )
    lines = paint_turns(text).split("\n")
    assert [click.unstyle(line) for line in lines] == text.split("\n")
    colors = [re.match(r"\x1b\[([\d;]+)m", line) for line in lines]
    policy, environment = colors[1], colors[3]
    assert [colors[0], colors[5]] == [None, None]
    assert policy[0] == colors[2][0]
    assert environment[0] == colors[4][0] != policy[0], "a text cannot imitate a heading"


def test_another_trainers_log_beside_a_run_hides_no_token(tmp_path):
    run = tmp_path / "runs" / "mine"
    shutil.copytree(BUNDLED, run / "checkpoints" / "step-000001")
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {}}))
    Logbook(run, seed=0).write(0, {}, [valued()], [])
    alone = list(format_rollouts(run, Choice(tokens=True)))
    (run.parent / "verl").mkdir()
    (run.parent / "verl" / "1.jsonl").touch()
    (tmp_path / "completions").mkdir()
    assert list(format_rollouts(run, Choice(tokens=True))) == alone


def test_a_gold_that_consists_of_tests_is_shortened(tmp_path):
    of = group("toy-code", (RIGHT, WRONG))
    tests = {"tests": [{"stdin": "1" * 10_000, "stdout": "2"}]}
    of = dataclasses.replace(of, prompt=dataclasses.replace(of.prompt, answer=tests))
    Logbook(tmp_path, seed=3).write(0, metrics(0), [of], [batch([of])])
    assert max(map(len, "\n".join(format_rollouts(tmp_path, Choice())).splitlines())) < 1_000
    assert "1" * 10_000 in "\n".join(format_rollouts(tmp_path, Choice(full=True)))
