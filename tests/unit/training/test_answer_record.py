"""The record of an environment's answers: what is found again, what begins anew, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from refusals import refused
from winnow.errors import DataError, RunFolderError
from winnow.records import Outcome, Prompt, Reply, Rollout, ToolAnswer
from winnow.rewards.outcomes import failure
from winnow.training.answers import RequestRecord

SEED = (3, "rollout", 4)
NAME = "rollout-000004-000007.rank-0.jsonl"
PROMPT = Prompt(id="p", tokens=np.array([1]), text="Go.", answer="7", task="t", meta={"level": 1})
PAID = Outcome(reward=0.5, correct=False, kind="wrong", parts={"a": 0.5})


def rollout(*turns: str, index: int = 0, finish: str = "stop") -> Rollout:
    none = np.zeros(0)
    return Rollout(index=index, tokens=none.astype(int), logprobs=none, text="", finish=finish, version=0, turns=turns)


def opened(run: Path, *, greedy: bool = False, seed=SEED, version: int = 7):
    return RequestRecord(run, seed, version, greedy=greedy)


def played(run: Path, *answers, index: int = 0, end: bool = True):
    """Records a rollout with the turns "0", "1", ...; returns what was asked at each turn."""
    record, turns, asked = opened(run), [], []
    for turn, answer in enumerate(answers):
        turns.append(str(turn))
        asked.append(rollout(*turns, index=index))
        record.add(PROMPT, asked[-1], answer)
        record.sync()
        if isinstance(answer, Reply):
            turns.append(answer.text)
    if end:
        record.end()
    return asked


def test_every_kind_of_answer_is_found_as_it_was(tmp_path):
    tools = Reply(text="x\ny", seconds=0.25, answers=(ToolAnswer(text="é\n", name="f", call_id="c"),))
    asked = played(tmp_path, Reply(text="one"), tools, PAID)
    record = opened(tmp_path)
    assert [record.find(PROMPT, each) for each in asked] == [Reply(text="one"), tools, PAID]
    assert record.find(PROMPT, rollout("0", index=1)) is None
    failed = played(tmp_path, failure("timeout", "slow"), index=2)[0]
    found = opened(tmp_path).find(PROMPT, failed)
    assert isinstance(found, Outcome)
    assert (found.cause, found.late, math.isnan(found.reward)) == ("timeout", True, True)


def test_a_request_is_named_by_purpose_step_version_and_kind(tmp_path):
    played(tmp_path, PAID)
    assert [path.name for path in (tmp_path / "answers").iterdir()] == [NAME]
    for other in (
        {"version": 8}, {"greedy": True}, {"seed": (3, "rollout", 5)}, {"seed": (3, "rollout", 4, "round", 1)},
        {"seed": (3, "probe", 4)},
    ):  # fmt: skip
        assert opened(tmp_path, **other).find(PROMPT, rollout("0")) is None
    assert opened(tmp_path, seed=(4, "rollout", 4)).find(PROMPT, rollout("0")) == PAID, "the run's seed is not named"


def test_a_rollout_without_an_outcome_begins_anew_and_its_later_lines_count(tmp_path):
    first = played(tmp_path, Reply(text="one"), Reply(text="two"), end=False)
    assert [opened(tmp_path).find(PROMPT, each) for each in first] == [None, None]
    second = played(tmp_path, Reply(text="other"), PAID)
    record = opened(tmp_path)
    assert [record.find(PROMPT, each) for each in second] == [Reply(text="other"), PAID]


def test_an_incomplete_last_line_was_never_used_and_is_removed(tmp_path):
    asked = played(tmp_path, Reply(text="one"), PAID, end=False)
    path = tmp_path / "answers" / NAME
    whole = path.read_bytes()
    for end in (1, 20, 60):
        path.write_bytes(whole + whole[:end].rstrip(b"\n"))
        record = opened(tmp_path)
        assert path.read_bytes() == whole
        assert [record.find(PROMPT, each) for each in asked] == [Reply(text="one"), PAID]


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "Went."}, {"answer": "8"}, {"meta": {"level": 2}},
    ],
)  # fmt: skip
def test_another_question_is_refused_once_the_request_has_ended(changed, tmp_path):
    played(tmp_path, Reply(text="one"), PAID)
    prompt = Prompt(
        **{**{name: getattr(PROMPT, name) for name in ("id", "tokens", "text", "answer", "task", "meta")}, **changed}
    )
    with refused(DataError, f"{NAME}:1", f"answers/{NAME}", key="environment.recorded", code="data.malformed"):
        opened(tmp_path).find(prompt, rollout("0"))
    with refused(DataError, f"{NAME}:2", key="environment.recorded"):
        opened(tmp_path).find(PROMPT, rollout("0", "one", "2"))
    (tmp_path / "answers" / NAME).unlink()
    assert opened(tmp_path).find(prompt, rollout("0")) is None, "the remedy"


def test_another_question_of_an_interrupted_request_is_asked(tmp_path):
    played(tmp_path, PAID, end=False)
    assert opened(tmp_path).find(PROMPT, rollout("other")) is None


def test_the_end_without_room_is_another_question_than_the_turn_before_it(tmp_path):
    record = opened(tmp_path)
    record.add(PROMPT, rollout("0"), Reply(text="one"))
    record.add(PROMPT, rollout("0", finish="length"), PAID)
    record.end()
    record = opened(tmp_path)
    assert record.find(PROMPT, rollout("0")) == Reply(text="one")
    assert record.find(PROMPT, rollout("0", finish="length")) == PAID


def test_the_answers_of_every_rank_are_read(tmp_path):
    played(tmp_path, PAID)
    folder = tmp_path / "answers"
    (folder / NAME).rename(folder / NAME.replace("rank-0", "rank-1"))
    assert opened(tmp_path).find(PROMPT, rollout("0")) == PAID


def test_a_request_that_another_rank_has_ended_is_not_ended_for_this_one(tmp_path):
    """This rank was killed after its last answer, and before it marked the end."""
    played(tmp_path, PAID)
    folder = tmp_path / "answers"
    (folder / NAME).rename(folder / NAME.replace("rank-0", "rank-1"))
    played(tmp_path, PAID, index=1, end=False)
    opened(tmp_path).end()
    with refused(DataError, f"{NAME}:1", key="environment.recorded"):
        opened(tmp_path).find(PROMPT, rollout("other", index=1))


@pytest.mark.parametrize("line", ["{", "[]", '{"task": "t"}', '{"asked": 1}'])
def test_a_line_that_is_no_answer_is_named(line, tmp_path):
    played(tmp_path, PAID)
    path = tmp_path / "answers" / NAME
    path.write_text(f"{path.read_text()}{line}\n")
    with refused(DataError, f"{path}, line 3", code="data.malformed"):
        opened(tmp_path)


def test_something_else_in_the_place_of_a_file_or_of_the_folder_is_named(tmp_path):
    (tmp_path / "answers").write_text("")
    with refused(RunFolderError, "answers", code="run_folder.unwritable"):
        opened(tmp_path)
    (tmp_path / "answers").unlink()
    (tmp_path / "answers" / NAME).mkdir(parents=True)
    with refused(RunFolderError, NAME, code="run_folder.unwritable"):
        opened(tmp_path)


def test_a_line_is_plain_json_with_its_place(tmp_path):
    played(tmp_path, Reply(text="é"))
    first = json.loads((tmp_path / "answers" / NAME).read_text().splitlines()[0])
    assert (first["task"], first["prompt"], first["rollout"], first["turn"]) == ("t", "p", 0, 0)
    assert len(first["asked"]) == 64
    assert first["answer"]["reply"] == "é"


def test_the_remedy_names_the_file_of_the_rank_that_recorded(tmp_path):
    played(tmp_path, PAID)
    folder, other = tmp_path / "answers", NAME.replace("rank-0", "rank-1")
    (folder / NAME).rename(folder / other)
    with refused(DataError, f"remove answers/{other}", key="environment.recorded"):
        opened(tmp_path).find(PROMPT, rollout("other"))
    (folder / other).unlink()
    assert opened(tmp_path).find(PROMPT, rollout("other")) is None, "the remedy"


def test_an_ended_answer_is_found_beside_the_interrupted_one_of_another_rank(tmp_path):
    """A resume with fewer ranks: the rollout of rank 1 is now sampled by rank 0, and differs from its second turn."""
    played(tmp_path, Reply(text="one"), PAID, end=False)
    folder = tmp_path / "answers"
    (folder / NAME).rename(folder / NAME.replace("rank-0", "rank-1"))
    first, other, record = rollout("0"), rollout("0", "one", "other"), opened(tmp_path)
    assert [record.find(PROMPT, each) for each in (first, other)] == [Reply(text="one"), None]
    record.add(PROMPT, other, PAID)
    record.end()
    record = opened(tmp_path)
    assert [record.find(PROMPT, each) for each in (first, other)] == [Reply(text="one"), PAID]
    with refused(DataError, key="environment.recorded", code="data.malformed"):
        record.find(PROMPT, rollout("0", "one", "third"))


def test_a_failure_counts_once_its_request_has_ended(tmp_path):
    (asked,) = played(tmp_path, failure("raised", "down"), end=False)
    assert opened(tmp_path).find(PROMPT, asked) is None
