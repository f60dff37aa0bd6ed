"""The results of a run's prompts so far, and the plan: how many rollouts each prompt gets next.

The allocator reads `stats`, and `record_plan` stores its result. A training step only reads `plan`. This module imports
no torch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from winnow.records import FloatArray, Group, IntArray, Prompt, PromptStats


class Seen(NamedTuple):
    """The results of one prompt. At each visit the earlier ones are multiplied by `decay`, so that rollouts of older
    policies count for less.
    """

    verified: float = 0.0  # rollouts with a verdict
    correct: float = 0.0  # of these, correct
    gradient_norm: float | None = None  # at the last visit with a correct rollout; None if never measured

    @property
    def pass_rate(self) -> float:
        return self.correct / self.verified if self.verified else math.nan

    def then(self, group: Group, gradient_norm: float, decay: float) -> Seen:
        """The results after one more visit."""
        measured = not math.isnan(gradient_norm) and bool(group.correct.any())
        return Seen(
            verified=decay * self.verified + int(group.valid.sum()),
            correct=decay * self.correct + int(group.correct.sum()),
            gradient_norm=float(gradient_norm) if measured else self.gradient_norm,
        )


class Planned(NamedTuple):
    """The plan for one prompt."""

    rollouts: int  # to generate
    pass_rate: float | None  # the estimate that the count is based on; None without one


class History:
    """The results of every prompt and the current plan; both are restored at a resume through `state_dict`.

    The results of a probe are separate from those of training. They were measured with the same weights for all prompts
    of a plan, and the next probe replaces them.

    The results of training are stored for every prompt that was ever sampled, also in the checkpoints; see
    docs/allocation.md for the number of bytes. They are stored only with `remember`, for an allocator or a weighting
    that reads them.
    """

    def __init__(self, *, decay: float = 1.0, remember: bool = True) -> None:
        self._decay = decay
        self._remember = remember
        self._seen: dict[str, Seen] = {}
        self._probed: dict[str, Seen] = {}
        self._plan: dict[str, Planned] = {}

    def stats(self, prompts: Sequence[Prompt]) -> PromptStats:
        """The results of training for G prompts: NaN and 0 trials for a prompt that was never verified."""
        return _stats(prompts, self._seen)

    def probed(self, prompts: Sequence[Prompt]) -> PromptStats:
        """The results of the last probe for G prompts."""
        return _stats(prompts, self._probed)

    def observe(self, groups: Sequence[Group], gradient_norms: FloatArray | None = None) -> None:
        """Add the verdicts of a step (without failed ones), and [G] gradient norms where they were measured."""
        if self._remember:
            self._seen = self._seen | self._after(self._seen, groups, gradient_norms, self._decay)

    def snapshot(self) -> History:
        """A copy that later observations and plans do not change."""
        return copy.copy(self)  # shallow is enough: the tables are replaced, never modified

    def record_probe(self, groups: Sequence[Group], gradient_norms: FloatArray | None = None) -> None:
        """Replace the results of the last probe."""
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
        """Replace the plan: [G] rollouts per prompt and the [G] pass rates (NaN: unknown) that they are based on.

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
            plan[prompt.id] = Planned(rollouts=int(count), pass_rate=None if math.isnan(rate) else float(rate))
        self._plan = plan

    def has_plan(self, prompts: Sequence[Prompt]) -> bool:
        """Whether each of these prompts is in the plan."""
        return all(prompt.id in self._plan for prompt in prompts)

    def plan(self, prompts: Sequence[Prompt], step: int) -> IntArray:
        """[G] rollouts to generate for the prompts of a step. Raises ValueError for a prompt outside the plan."""
        for prompt in prompts:
            if prompt.id not in self._plan:
                raise ValueError(f"step {step}: prompt {prompt.id!r} has no planned count; record a plan first")
        return np.array([self._plan[prompt.id].rollouts for prompt in prompts], dtype=np.int64)

    def planned_pass_rates(self, prompts: Sequence[Prompt]) -> FloatArray:
        """[G] the pass rates that the plan is based on; NaN where unknown, and for prompts outside the plan."""
        planned = [self._plan.get(prompt.id) for prompt in prompts]
        return np.array([math.nan if p is None or p.pass_rate is None else p.pass_rate for p in planned])

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON: a prompt's results as [verified, correct, gradient norm], its plan as [count, rate]."""
        return {"seen": dict(self._seen), "probed": dict(self._probed), "plan": dict(self._plan)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._seen, self._probed = ({name: Seen(*of) for name, of in state[key].items()} for key in ("seen", "probed"))
        self._plan = {name: Planned(*of) for name, of in state["plan"].items()}


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
