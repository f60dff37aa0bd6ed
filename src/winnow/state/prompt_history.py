"""What a run has learned about its prompts, and how many rollouts each is to get next.

The allocator reads `stats` and its answer is written back with `record_plan`; a training step only reads `plan`.
This module imports no torch.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.records import FloatArray, Group, IntArray, Prompt, PromptStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one prompt has shown. Each visit fades by `decay` at the next, so that an old policy's answers count for
    less.
    """

    verified: float = 0.0  # rollouts with a verdict
    correct: float = 0.0  # of these, correct
    gradient_norm: float | None = None  # at the last visit with a correct rollout; None where it was never measured

    @property
    def pass_rate(self) -> float:
        return self.correct / self.verified if self.verified else math.nan

    def then(self, group: Group, gradient_norm: float, decay: float) -> Seen:
        """After one more visit."""
        measured = not math.isnan(gradient_norm) and bool(group.correct.any())
        return Seen(
            verified=decay * self.verified + int(group.valid.sum()),
            correct=decay * self.correct + int(group.correct.sum()),
            gradient_norm=float(gradient_norm) if measured else self.gradient_norm,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the plan says about one prompt."""

    count: int  # rollouts to generate
    pass_rate: float | None  # the estimate the count was made from; None where nothing was known


class History:
    """What every prompt has shown and the current plan; both survive a resume through `state_dict`.

    A probe's findings are kept apart from those of training: they were measured at once, under the same weights, for
    all prompts of a plan, and are replaced by the next probe's.

    What training has shown is kept for every prompt it has ever met, in the checkpoints too (docs/allocation.md says
    how many bytes that is), and only where `remember` says that something plans or weighs by it.
    """

    def __init__(self, *, decay: float = 1.0, remember: bool = True) -> None:
        self._decay = decay
        self._remember = remember
        self._seen: dict[str, Seen] = {}
        self._probed: dict[str, Seen] = {}
        self._plan: dict[str, Planned] = {}

    def stats(self, prompts: Sequence[Prompt]) -> PromptStats:
        """What training has shown of G prompts: NaN and 0 trials for one never verified."""
        return _stats(prompts, self._seen)

    def probed(self, prompts: Sequence[Prompt]) -> PromptStats:
        """What the last probe has shown of G prompts."""
        return _stats(prompts, self._probed)

    def observe(self, groups: Sequence[Group], gradient_norms: FloatArray | None = None) -> None:
        """Add the verdicts of a step, failed ones left out, and [G] gradient norms where they were measured."""
        if self._remember:
            self._seen = self._seen | self._after(self._seen, groups, gradient_norms, self._decay)

    def snapshot(self) -> History:
        """As it is now, whatever is observed and planned later: what it holds is replaced, never changed."""
        return copy.copy(self)

    def record_probe(self, groups: Sequence[Group], gradient_norms: FloatArray | None = None) -> None:
        """Replace the last probe's findings."""
        self._probed = self._after({}, groups, gradient_norms, 1.0)

    @staticmethod
    def _after(
        before: Mapping[str, Seen], groups: Sequence[Group], norms: FloatArray | None, decay: float
    ) -> dict[str, Seen]:
        measured = np.full(len(groups), np.nan) if norms is None else norms
        return {
            group.prompt.id: before.get(group.prompt.id, Seen()).then(group, norm, decay)
            for group, norm in zip(groups, measured.tolist(), strict=True)
            if group.rollouts
        }

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

    def has_plan(self, prompts: Sequence[Prompt]) -> bool:
        """Whether `plan` knows every one of these prompts."""
        return all(prompt.id in self._plan for prompt in prompts)

    def plan(self, prompts: Sequence[Prompt], step: int) -> IntArray:
        """[G] rollouts to generate for the prompts of a step. Raises ValueError for a prompt outside the plan."""
        return np.array([self._planned(prompt, step).count for prompt in prompts], dtype=np.int64)

    def planned_pass_rates(self, prompts: Sequence[Prompt]) -> FloatArray:
        """[G] the pass rates the plan was made from, NaN where none was known or nothing was planned (a refill)."""
        planned = [self._plan.get(prompt.id) for prompt in prompts]
        return np.array([math.nan if p is None or p.pass_rate is None else p.pass_rate for p in planned])

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "seen": {name: dataclasses.asdict(seen) for name, seen in self._seen.items()},
            "probed": {name: dataclasses.asdict(seen) for name, seen in self._probed.items()},
            "plan": {name: dataclasses.asdict(planned) for name, planned in self._plan.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` described."""
        self._seen = {name: Seen(**seen) for name, seen in state["seen"].items()}
        self._probed = {name: Seen(**seen) for name, seen in state["probed"].items()}
        self._plan = {name: Planned(**planned) for name, planned in state["plan"].items()}

    def _planned(self, prompt: Prompt, step: int) -> Planned:
        try:
            return self._plan[prompt.id]
        except KeyError:
            raise ValueError(f"step {step}: prompt {prompt.id!r} has no planned count; record a plan first") from None


def _stats(prompts: Sequence[Prompt], known: Mapping[str, Seen]) -> PromptStats:
    seen = [known.get(prompt.id, Seen()) for prompt in prompts]
    norms = [math.nan if s.gradient_norm is None else s.gradient_norm for s in seen]
    return PromptStats(
        ids=tuple(prompt.id for prompt in prompts),
        pass_rate=np.array([s.pass_rate for s in seen], dtype=np.float64),
        gradient_norm=np.array(norms, dtype=np.float64),
        trials=np.array([s.verified for s in seen], dtype=np.float64),
        correct=np.array([s.correct for s in seen], dtype=np.float64),
    )
