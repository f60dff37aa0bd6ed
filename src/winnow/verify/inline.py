"""Runs the reward in the trainer itself: for a function that no other process can import, or by choice."""

from __future__ import annotations

import itertools

from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.compose import Score
from winnow.verify.worker import judge


class Inline:
    """Judges when asked for the result; a reward that hangs here hangs the run."""

    def __init__(self, reward: Score) -> None:
        self._reward = reward
        self._numbers = itertools.count()
        self._tasks: dict[int, tuple[Prompt, Rollout]] = {}

    def submit(self, prompt: Prompt, rollout: Rollout) -> int:
        """The ticket to ask `result` for."""
        ticket = next(self._numbers)
        self._tasks[ticket] = prompt, rollout
        return ticket

    def result(self, ticket: int) -> Outcome:
        """The verdict, once."""
        return judge(self._reward, *self._tasks.pop(ticket))

    def close(self) -> None:
        """Nothing to end."""
