"""The generator of an unfinished rollout is kept by one worker, and replayed by another after that one has ended."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from forked import fork_supervisors
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.verify.verifiers import Verifiers

PLAYED = Path(__file__).with_name("played.py")
PROMPTS = [Prompt(id=f"p{n}", tokens=np.array([1]), text="?", answer="1", task="t") for n in range(4)]


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_supervisors(monkeypatch)


def rollout(*turns: str, finish: str = "stop") -> Rollout:
    none = np.zeros(0)
    return Rollout(index=0, tokens=none.astype(int), logprobs=none, text="", finish=finish, version=0, turns=turns)


def verifiers(name: str, *, workers: int = 1, timeout: float = 60.0, memory: int = 512, **options: object) -> Verifiers:
    spec = {"environment": f"{PLAYED}:{name}", "options": options, "max_turns": 8}
    return Verifiers(spec, workers=workers, timeout_seconds=timeout, memory_mb=memory, max_failure_share=1.0)


def lines(log: Path) -> list[tuple[int, str]]:
    rows = (line.partition(" ") for line in log.read_text().splitlines())
    return [(int(process), text) for process, _, text in rows]


def counts(log: Path) -> Counter[str]:
    return Counter(text.partition(" ")[0] for _, text in lines(log))


def play(verifiers: Verifiers, *, kill_after: int | None = None, log: Path, kept: bool = True) -> list[object]:
    """Four turns of each prompt. After turn `kill_after` the worker of the last prompt is killed."""
    episodes = [verifiers.new_episode() if kept else None for _ in PROMPTS]
    turns = [["x" * place] for place in range(1, 5)]
    outcomes = list[object]()
    for turn in range(1, 5):
        tickets = [
            verifiers.request(*each) for each in zip(PROMPTS, (rollout(*t) for t in turns), episodes, strict=True)
        ]
        answers = [verifiers.answer(ticket) for ticket in tickets]
        for conversation, answer in zip(turns, answers, strict=True):
            if isinstance(answer, Reply):
                conversation += [answer.text, "y" * turn]
            else:
                outcomes.append((answer.reward, answer.kind, tuple(conversation)))
        if turn == kill_after:
            os.kill(lines(log)[-1][0], signal.SIGKILL)
    return outcomes


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_turn_is_executed_once_and_the_answers_are_those_of_replays(workers: int, tmp_path: Path):
    log, replayed = tmp_path / "log", tmp_path / "replayed"
    with verifiers("count", workers=workers, log=str(log)) as playing:
        outcomes = play(playing, log=log)
    with verifiers("count", workers=1, log=str(replayed)) as playing:
        assert play(playing, log=replayed, kept=False) == outcomes
    assert counts(log) == {"start": 4, "turn": 16, "end": 4}
    assert counts(replayed) == {"start": 16, "turn": 4 * (1 + 2 + 3 + 4), "end": 16}
    assert [reward for reward, *_ in outcomes] == [7.0, 8.0, 9.0, 10.0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_worker_that_is_killed_between_two_turns_changes_no_answer(workers: int, turn: int, tmp_path: Path):
    log, whole = tmp_path / "log", tmp_path / "whole"
    with verifiers("count", workers=workers, log=str(log)) as playing:
        outcomes = play(playing, log=log, kill_after=turn)
    with verifiers("count", workers=workers, log=str(whole)) as playing:
        assert play(playing, log=whole) == outcomes
    lost = counts(log)["start"] - 4
    assert 1 <= lost <= 4
    assert workers > 1 or lost == 4, "the only worker had all generators"
    assert counts(log)["turn"] == 16 + lost * turn, "only what was lost is executed again"


def test_the_generators_of_rollouts_that_are_given_up_are_closed(tmp_path: Path):
    for workers in (0, 1):
        log = tmp_path / f"log-{workers}"
        with verifiers("count", workers=workers, log=str(log)) as playing:
            episodes = [playing.new_episode() for _ in PROMPTS]
            for prompt, episode in zip(PROMPTS, episodes, strict=True):
                playing.answer(playing.request(prompt, rollout("x"), episode))
            playing.give_up(episodes[:3])
            answer = playing.answer(playing.request(PROMPTS[3], rollout("x")))
            assert isinstance(answer, Reply)
            assert counts(log) == {"start": 5, "turn": 5, "end": 4}, "three that are given up, and one without a number"


def test_a_rollout_without_room_ends_in_its_own_generator(tmp_path: Path):
    log = tmp_path / "log"
    with verifiers("count", log=str(log)) as playing:
        episode = playing.new_episode()
        assert isinstance(playing.answer(playing.request(PROMPTS[0], rollout("x"), episode)), Reply)
        ended = playing.answer(playing.request(PROMPTS[0], rollout("x", finish="length"), episode))
    assert isinstance(ended, Outcome)
    assert (ended.kind, ended.reward) == ("wrong", 0.0)
    assert counts(log) == {"start": 1, "turn": 1, "end": 1}


def test_another_conversation_under_the_same_number_is_replayed(tmp_path: Path):
    log = tmp_path / "log"
    with verifiers("count", log=str(log)) as playing:
        first = playing.answer(playing.request(PROMPTS[0], rollout("x"), 5))
        again = playing.answer(playing.request(PROMPTS[0], rollout("x"), 5))
        other = playing.answer(playing.request(PROMPTS[0], rollout("xyz"), 5))
    assert isinstance(first, Reply)
    assert isinstance(again, Reply)
    assert isinstance(other, Reply)
    assert (first.text, first.text[:4], other.text[:4]) == (again.text, "1 1 ", "1 3 ")
    assert counts(log)["start"] == 3


def test_a_replay_gets_the_time_limit_of_each_of_its_turns(tmp_path: Path):
    """Turns of 2 s with a limit of 3.5 s: a replay of three turns needs 6 s. A single turn of 6 s would be killed."""
    log = tmp_path / "log"
    with verifiers("slow_start", timeout=3.5, log=str(log), seconds=2.0) as playing:
        warm = playing.answer(playing.request(PROMPTS[1], rollout("x")))  # a first verdict may take longer
        ended = playing.answer(playing.request(PROMPTS[0], rollout("x", "0", "y", "1", "z")))
    assert isinstance(warm, Reply)
    assert isinstance(ended, Outcome)
    assert ended.reward == 1.0


def test_memory_that_other_generators_took_fails_no_rollout(tmp_path: Path):
    """Each of four generators keeps 80 MB, and a worker may have 256."""
    log = tmp_path / "log"
    with verifiers("heavy", memory=256, log=str(log), megabytes=80) as playing:
        episodes = [playing.new_episode() for _ in PROMPTS]
        for prompt, episode in zip(PROMPTS, episodes, strict=True):
            assert isinstance(playing.answer(playing.request(prompt, rollout("x"), episode)), Reply)
        for prompt, episode in zip(PROMPTS, episodes, strict=True):
            ended = playing.answer(playing.request(prompt, rollout("x", "?", "y"), episode))
            assert isinstance(ended, Outcome)
            assert ended.reward == 1.0, ended.detail
    assert len({process for process, _ in lines(log)}) > 1
