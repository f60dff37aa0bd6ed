from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from synthetic_run import FAILED, RIGHT, WRONG, group, write_run
from winnow.errors import DataError
from winnow.models.model_folder import BUNDLED
from winnow.records import Outcome
from winnow.report.show import Choice, show
from winnow.state.logbook import Logbook


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "toy", steps=3)


def test_the_last_step_is_shown_group_by_group(run):
    easy, hard = show(run, Choice())

    assert easy.startswith("step 2  toy-easy  trained on 2 of 3 rollouts  mean reward 0.667")
    assert "  | What is 47 + 85?\n  gold: 132" in easy
    assert "#0 correct  reward 1.000  advantage +0.500  weight 0.125  3 tokens, ended  trained" in easy
    assert "#2 wrong  reward 0.000  advantage +0.000  3 tokens, ended  not selected" in easy
    assert "#1 unparsable  reward 0.000  advantage +0.500  weight 0.125  3 tokens, cut off  trained" in hard
    assert "#2 failed (timeout)  advantage +0.000  3 tokens, ended  failed: timeout" in hard
    assert "took 5 s" in hard


def test_model_text_is_escaped_and_shortened(run):
    _, hard = show(run, Choice())

    assert "\x1b" not in hard
    assert r"6 \x1b[31mred" in hard
    assert r"[bold]markup[/bold] \u202e\ud800" in hard
    assert "[... 4,400 characters ...]" in hard


def test_full_texts_on_request(run):
    (hard,) = show(run, Choice(prompt="toy-hard", step=0, full=True))
    assert "x" * 5000 in hard


@pytest.mark.parametrize(("choice", "name"), [(Choice(worst=1), "toy-hard"), (Choice(best=1), "toy-easy")])
def test_worst_and_best_rank_prompts_by_mean_reward(run, choice, name):
    (block,) = show(run, choice)
    assert name in block


def test_worst_takes_as_many_as_there_are_and_lists_the_worst_first(run):
    first, second = show(run, Choice(worst=5))
    assert "toy-hard" in first
    assert "toy-easy" in second


def test_only_dropped_rollouts(run):
    easy, hard = show(run, Choice(dropped=True))
    assert "#0" not in easy
    assert "#2" in easy
    assert [f"#{i}" in hard for i in range(4)] == [False, False, True, True]


def test_failures_are_looked_for_in_every_step(run):
    blocks = list(show(run, Choice(failed=True)))
    assert [block[:6] for block in blocks] == ["step 0", "step 1", "step 2"]
    assert all("#2 failed" in block and "#1" not in block for block in blocks)


def test_a_prompt_is_followed_through_the_run_by_the_beginning_of_its_id(run):
    assert [block[:16] for block in show(run, Choice(prompt="toy-e"))] == [
        "step 0  toy-easy",
        "step 1  toy-easy",
        "step 2  toy-easy",
    ]


def test_the_folder_of_rollouts_and_a_file_of_it_can_be_named(run):
    assert list(show(run / "rollouts", Choice())) == list(show(run, Choice()))
    (easy, _) = show(run / "rollouts" / "step-000001.parquet", Choice())
    assert easy.startswith("step 1  toy-easy")


def test_one_step_is_shown_without_a_look_at_another(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "rollouts" / "step-000000.parquet").write_bytes(b"garbled")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"garbled")
    assert list(show(tmp_path / "run", Choice())) == list(show(run, Choice()))
    with pytest.raises(DataError, match=r"step-000000\.parquet"):
        list(show(tmp_path / "run", Choice(failed=True)))


def test_of_texts_that_were_not_logged_the_numbers_are_shown(tmp_path):
    log = Logbook(tmp_path, seed=0, rollouts="kept")
    log.write(0, {}, [group("toy", (RIGHT, WRONG))], [])
    (block,) = show(tmp_path, Choice())
    assert "answer 0" in block
    assert (
        "#1 wrong  reward 0.000  advantage +0.000  3 tokens, cut off  not selected\n    its text was not logged"
        in block
    )


def test_the_parts_of_a_reward_are_shown_beside_it(tmp_path):
    short = Outcome(reward=1.4, correct=False, kind="wrong", parts={"right": 0.0, "short\x1b[2J": 1.4})
    whole = Outcome(reward=1.0, correct=True, kind="correct", parts={"right": 1.0})
    Logbook(tmp_path, seed=0).write(0, {}, [group("toy", (short, whole))], [])
    (block,) = show(tmp_path, Choice())
    assert "reward 1.400 (right 0.000, short" in block
    assert "\x1b" not in block
    assert "reward 1.000 (" not in block, "of one part the reward is all there is to say"


def test_a_group_without_a_verdict_is_neither_best_nor_worst(tmp_path):
    Logbook(tmp_path, seed=0).write(0, {"budget/rollouts": 2}, [group("lost", (FAILED, FAILED))], [])
    (block,) = show(tmp_path, Choice())
    assert "mean reward none" in block
    with pytest.raises(DataError, match="no such rollouts"):
        list(show(tmp_path, Choice(worst=1)))


def test_what_is_not_there_is_an_error(run, tmp_path):
    with pytest.raises(DataError, match="no such rollouts in step 9"):
        list(show(run, Choice(step=9)))
    with pytest.raises(DataError, match=r"cannot read .*nowhere: there is no such"):
        list(show(tmp_path / "nowhere", Choice()))
    Logbook(tmp_path, seed=0).write_between(0, {"eval/seconds": 1.0})
    with pytest.raises(DataError, match="no step was finished yet"):
        list(show(tmp_path, Choice()))


def valued(*, length=3):
    """Two rollouts: one that a value model has read and that has credit per token, and one that it has not read."""
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


def test_tokens_stand_beside_what_was_expected_and_taught(tmp_path):
    Logbook(tmp_path, seed=0).write(0, {}, [valued()], [])
    note, block = show(tmp_path, Choice(tokens=True))

    assert note.startswith("note: tokens have no text here: these rollouts lie in no run folder")
    assert block.splitlines()[3:14] == [
        "  #0 correct  reward 1.000  value -0.500 at first  advantage +0.750  3 tokens, ended  not scheduled",
        "    | answer 0",
        "      place   token   log-prob      value     return  advantage",
        "          0       0     -0.250     -0.500      1.000      1.500  | ",
        "          1       1     -0.250      0.250      1.000      0.750  |   (not the policy's)",
        "          2       2     -0.250      1.000      1.000      0.000  | ",
        "    answer read: 132",
        "  #1 wrong  reward 0.000  advantage +0.000  3 tokens, cut off  not selected",
        "    | answer 1",
        "      place   token   log-prob  advantage",
        "          0       0     -0.250      0.000  | ",
    ]


def test_of_a_long_rollout_the_tokens_at_its_ends_are_listed(tmp_path):
    Logbook(tmp_path, seed=0).write(0, {}, [valued(length=1_500)], [])
    _, block = show(tmp_path, Choice(tokens=True))
    lines = block.splitlines()
    assert lines.count("    [... 1,460 tokens ...]") == 2
    places = [int(line.split()[0]) for line in lines if line.endswith(("| ", "policy's)")) and line.startswith("     ")]
    assert places == [*range(20), *range(1_480, 1_500)] * 2
    _, whole = show(tmp_path, Choice(tokens=True, full=True))
    assert len(whole.splitlines()) == len(lines) + 2 * 1_459


def test_tokens_have_the_text_that_the_run_s_tokenizer_gives_them_and_it_is_harmless(tmp_path):
    """The bundled tokenizer has a token for each byte, as of the escape that begins what a terminal acts on."""
    shutil.copytree(BUNDLED, tmp_path / "checkpoints" / "step-000001")
    (tmp_path / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {"model": {"path": "nowhere"}}}))
    vocabulary = json.loads((BUNDLED / "tokenizer.json").read_text())["model"]["vocab"]
    escape, newline, word = (vocabulary[name] for name in ("\u011b", "\u010a", "\u0120that"))
    made = valued(length=4)
    tokens = np.array([escape, newline, word, 2**31 - 1])
    asked = dataclasses.replace(made, rollouts=tuple(dataclasses.replace(r, tokens=tokens) for r in made.rollouts))
    Logbook(tmp_path, seed=0).write(0, {}, [asked], [])

    (block,) = show(tmp_path, Choice(tokens=True))
    assert [line.partition("  | ")[2] for line in block.splitlines()[6:10]] == [
        "\\x1b",
        "\\n  (not the policy's)",
        " that",
        "",
    ]
    assert "\x1b" not in block
    assert list(show(tmp_path / "rollouts" / "step-000000.parquet", Choice(tokens=True))) == [block]


def test_without_a_tokenizer_the_numbers_are_shown_all_the_same(tmp_path):
    manifest = {"winnow_run": 1, "config": {"model": {"path": str(tmp_path / "\x1bgone")}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    Logbook(tmp_path, seed=0).write(0, {}, [valued()], [])
    note, block = show(tmp_path, Choice(tokens=True))
    said = " ".join(note.split())
    assert said.startswith("note: tokens have no text here: model.path: there is no folder")
    assert "\x1b" not in said
    assert "log-prob" in block


def test_tokens_that_were_not_logged_are_not_listed(tmp_path):
    Logbook(tmp_path, seed=0, rollouts="kept").write(0, {}, [valued()], [])
    _, block = show(tmp_path, Choice(tokens=True))
    assert block.count("place") == 1
    assert "its text was not logged" in block
