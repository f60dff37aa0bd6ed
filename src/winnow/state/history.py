"""What a run has learned about its prompts, and how many rollouts each is to get next.

The allocator reads `stats` and its answer is written back with `record_plan`; a training step only reads `plan`.
This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.records import FloatArray, Group, IntArray, Prompt, PromptStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The totals of one prompt over all steps so far."""

    generated: int = 0  # rollouts
    verified: int = 0  # of these, with a verdict
    correct: int = 0  # of these, correct
    last_step: int = -1

    @property
    def pass_rate(self) -> float:
        return self.correct / self.verified if self.verified else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the plan says about one prompt."""

    count: int  # rollouts to generate
    pass_rate: float | None  # the estimate the count was made from; None where nothing was known


class History:
    """Per-prompt totals and the current plan; both survive a resume through `state_dict`."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._plan: dict[str, Planned] = {}

    def stats(self, prompts: Sequence[Prompt]) -> PromptStats:
        """What is known about G prompts; one never verified has pass rate NaN and 0 trials. Gradient norms are NaN."""
        seen = [self._seen.get(prompt.id, Seen()) for prompt in prompts]
        return PromptStats(
            ids=tuple(prompt.id for prompt in prompts),
            pass_rate=np.array([s.pass_rate for s in seen], dtype=np.float64),
            gradient_norm=np.full(len(seen), np.nan),
            trials=np.array([s.verified for s in seen], dtype=np.float64),
            correct=np.array([s.correct for s in seen], dtype=np.float64),
        )

    def record_plan(self, prompts: Sequence[Prompt], counts: IntArray, pass_rates: FloatArray) -> None:
        """Replace the plan: [G] rollouts per prompt and the [G] pass rates (NaN: unknown) they were made from.

        Raises ValueError for lengths that differ, a negative count or a prompt planned twice.
        """
        if not len(prompts) == len(counts) == len(pass_rates):
            raise ValueError(
                f"a plan for {len(prompts)} prompts got {len(counts)} counts, {len(pass_rates)} pass rates"
            )
        plan: dict[str, Planned] = {}
        for prompt, count, rate in zip(prompts, counts, pass_rates, strict=True):
            if count < 0 or prompt.id in plan:
                why = f"{count} rollouts" if count < 0 else "two counts"
                raise ValueError(f"the plan gives prompt {prompt.id!r} {why}")
            plan[prompt.id] = Planned(count=int(count), pass_rate=None if math.isnan(rate) else float(rate))
        self._plan = plan

    def plan(self, prompts: Sequence[Prompt], step: int) -> IntArray:
        """[G] rollouts to generate for the prompts of a step. Raises ValueError for a prompt outside the plan."""
        return np.array([self._planned(prompt, step).count for prompt in prompts], dtype=np.int64)

    def planned_pass_rates(self, prompts: Sequence[Prompt], step: int) -> FloatArray:
        """[G] the pass rates the plan was made from, NaN where none was known."""
        rates = [self._planned(prompt, step).pass_rate for prompt in prompts]
        return np.array([math.nan if rate is None else rate for rate in rates], dtype=np.float64)

    def observe(self, groups: Iterable[Group], step: int) -> None:
        """Add the verdicts of a step; failed ones count as generated only."""
        for group in groups:
            before = self._seen.get(group.prompt.id, Seen())
            self._seen[group.prompt.id] = Seen(
                generated=before.generated + len(group.rollouts),
                verified=before.verified + int(group.valid.sum()),
                correct=before.correct + int(group.correct.sum()),
                last_step=step,
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "seen": {name: dataclasses.asdict(seen) for name, seen in self._seen.items()},
            "plan": {name: dataclasses.asdict(planned) for name, planned in self._plan.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` described."""
        self._seen = {name: Seen(**seen) for name, seen in state["seen"].items()}
        self._plan = {name: Planned(**planned) for name, planned in state["plan"].items()}

    def _planned(self, prompt: Prompt, step: int) -> Planned:
        try:
            return self._plan[prompt.id]
        except KeyError:
            raise ValueError(f"step {step}: prompt {prompt.id!r} has no planned count; record a plan first") from None
