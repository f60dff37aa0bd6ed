"""From a request to waves of rollouts, and from finished rollouts back to groups: what every engine shares."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from winnow.engines.base import OnRollout
from winnow.engines.stopping import StopRule
from winnow.errors import EngineError
from winnow.records import FloatArray, Group, IntArray, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class Slot:
    """A rollout still to be sampled."""

    place: int  # of its prompt in the request
    prompt: Prompt
    index: int  # among its prompt's rollouts


def slots(prompts: Sequence[Prompt], counts: Sequence[int]) -> list[Slot]:
    """Every rollout a request asks for, in order. Raises EngineError when the request makes no sense."""
    if len(prompts) != len(counts):
        raise EngineError(f"{len(prompts)} prompts but {len(counts)} counts; an engine needs one count per prompt")
    for prompt, count in zip(prompts, counts, strict=True):
        if count < 0:
            raise EngineError(f"prompt {prompt.id!r}: a count of {count}; counts are 0 or more")
        if len(prompt.tokens) == 0:
            raise EngineError(f"prompt {prompt.id!r} has no tokens; its template must render at least one")
    return [Slot(place, prompt, i) for place, prompt in enumerate(prompts) for i in range(counts[place])]


def waves(wanted: Sequence[Slot], at_once: int) -> list[list[Slot]]:
    """Cut into as few waves as the limit allows, equally full, prompts of like length together (least padding)."""
    number = -(-len(wanted) // at_once)
    by_length = sorted(wanted, key=lambda slot: len(slot.prompt.tokens))
    edges = [len(wanted) * i // number for i in range(number + 1)] if number else []
    return [by_length[a:b] for a, b in itertools.pairwise(edges)]


class Harvest:
    """Where finished rollouts arrive, in any order."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        *,
        rule: StopRule,
        version: int,
        on_rollout: OnRollout | None,
    ) -> None:
        self.slots = slots(prompts, counts)
        self._prompts = prompts
        self._rollouts: dict[tuple[int, int], Rollout] = {}
        self._rule = rule
        self._version = version
        self._on_rollout = on_rollout

    def add(self, slot: Slot, tokens: IntArray, logprobs: FloatArray) -> None:
        """Make the rollout of a finished slot and announce it."""
        text, stopped = self._rule.read(tokens)
        rollout = Rollout(
            index=slot.index,
            tokens=tokens,
            logprobs=logprobs,
            text=text,
            finish="stop" if stopped else "length",
            version=self._version,
        )
        self._rollouts[slot.place, slot.index] = rollout
        if self._on_rollout is not None:
            self._on_rollout(slot.prompt, rollout)

    def groups(self) -> list[Group]:
        """One group per prompt, rollouts in index order."""
        found: list[list[Rollout]] = [[] for _ in self._prompts]
        for slot in self.slots:
            found[slot.place].append(self._rollouts[slot.place, slot.index])
        return [Group(prompt=p, rollouts=tuple(r)) for p, r in zip(self._prompts, found, strict=True)]
