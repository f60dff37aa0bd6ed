"""Runs the reward in the trainer: with verify.workers = 0, or where no other process can import the reward."""

from __future__ import annotations

import itertools

from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.compose import Score
from winnow.verify.worker import judge


class Inline:
    """Judges a rollout when its result is requested; a reward that hangs here hangs the run."""

    def __init__(self, reward: Score) -> None:
        self._reward = reward
        self._numbers = itertools.count()
        self._tasks: dict[int, tuple[Prompt, Rollout]] = {}

    def submit(self, prompt: Prompt, rollout: Rollout) -> int:
        """The ticket by which `result` returns the verdict."""
        ticket = next(self._numbers)
        self._tasks[ticket] = prompt, rollout
        return ticket

    def result(self, ticket: int) -> Outcome:
        """The verdict of a ticket; each ticket is valid once."""
        return judge(self._reward, *self._tasks.pop(ticket))

    def close(self) -> None:
        """Does nothing: there is no process to stop."""
