"""The progress of an evaluation, as an interface between the sampling and a display."""

from __future__ import annotations


class EvaluationProgress:
    """Receives the progress of an evaluation. This class ignores it; a display overrides the methods."""

    def begin(self, rollouts: int) -> None:
        """The total number of rollouts, including those that an interrupted evaluation already has."""

    def resumed(self, task: str, rollouts: int) -> None:
        """The number of rollouts of a task that an interrupted evaluation already has."""

    def loading(self, model: str) -> None:
        """The model is about to be loaded."""

    def start_task(self, task: str) -> None:
        """The task that is sampled from now on."""

    def rollout(self, tokens: int) -> None:
        """A rollout with this number of tokens is finished."""

    def part(self, problems: int, of: int) -> None:
        """So many problems of the task are done."""
