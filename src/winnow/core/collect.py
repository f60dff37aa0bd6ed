"""Samples and judges the rollouts of a list of prompts, for a step, a probe and an evaluation; syncs the engine.

With several ranks, each samples and judges its share of the prompts, and every rank gets all groups. So each rank
computes the same selection and advantages. A token is sent as 8 bytes: its id as int32 and its log-prob as float32.
Log-probs that float32 would round (of a float64 policy) are sent as float64, so gathering changes no number. Prompts
are not sent, as every rank has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from winnow import ranks
from winnow.core.cuts import Cut
from winnow.core.protocols import PolicyLearner, ReadByAllRanks, Verifier
from winnow.engines.base import Engine
from winnow.engines.freshness import check_fresh
from winnow.ranks import deal
from winnow.records import Group, Outcome, Prompt, Rollout, Sampling, joined
from winnow.seeds import SeedName

# The fields of a rollout but its tokens, its log-probs and its rank
_LIGHT = ("index", "text", "finish", "version", "trainable", "turns", "round", "beyond")

Phase = Callable[[str], AbstractContextManager[Any]]
OnRollout = Callable[[Rollout], None]


@dataclass(frozen=True)
class Request:
    """What is sampled in one go, on all ranks together."""

    prompts: Sequence[Prompt]  # [G]
    counts: Sequence[int]  # [G] rollouts of each
    sampling: Sampling
    _: KW_ONLY
    seed: tuple[SeedName, ...]
    version: int | None = None  # of the weights that have to sample; None: any
    on_rollout: OnRollout | None = None  # called with every finished rollout of this rank
    cut: Cut | None = None  # cuts rollouts before they are verified, which then begins when all are sampled


class RankShare(NamedTuple):
    """The judged groups of one rank."""

    places: Sequence[int]  # [g] of their prompts
    groups: list[Group]  # [g]


def collect(engine: Engine, verifiers: Verifier, request: Request, phase: Phase = nullcontext) -> list[Group]:
    """Sample the rollouts of each prompt and fill in their outcomes; [G] in the order of the prompts.

    Raises as `collect_share`, and RankError where another rank raised.
    """
    with ranks.announced("sampling and judging"):
        share = collect_share(engine, verifiers, request, phase)
    return gather_share(request.prompts, share, phase)


def collect_share(engine: Engine, verifiers: Verifier, request: Request, phase: Phase = nullcontext) -> RankShare:
    """This rank's share of `collect`, without an exchange between ranks, unless `request.cut` needs one.

    A finished rollout is judged while later ones are sampled. `phase` times "generate" (sampling, with the judging that
    overlaps it) and "verify" (waiting for verdicts afterwards).

    Raises EngineError, before the wait for verdicts, for rollouts of other weights than those of `request.version`.
    """
    # Of this rank's prompts; the largest counts are dealt first
    places = deal(request.counts, ranks.count())[ranks.rank()]

    def finish(prompt: Prompt, rollout: Rollout) -> None:
        if request.cut is None:
            verifiers.submit(prompt, rollout)
        if request.on_rollout is not None:
            request.on_rollout(rollout)

    with phase("generate"):
        prompts, counts = [request.prompts[place] for place in places], [request.counts[place] for place in places]
        groups = list[Group]()
        if places:
            groups = engine.generate(prompts, counts, request.sampling, seed=request.seed, on_rollout=finish)
        if request.version is not None:
            check_fresh(groups, request.version)
        if request.cut is not None:
            groups = request.cut(places, groups)
    with phase("verify"):
        return RankShare(places, verifiers.collect(groups))


def gather_share(prompts: Sequence[Prompt], share: RankShare, phase: Phase) -> list[Group]:
    """[G] the judged groups of all ranks; `phase` times it as "gather" where there are several."""
    with phase("gather") if ranks.count() > 1 else nullcontext():
        return gather_groups(prompts, share.places, share.groups)


def sync_weights(learner: PolicyLearner, engine: Engine, *, version: int) -> None:
    """Load the present weights into the engine of every rank, which samples them as `version` from then on.

    Where one engine fails, all ranks raise.
    """
    weights = learner.weights()
    with ranks.together("syncing the weights"):
        try:
            engine.load(weights, version=version)
        finally:
            if isinstance(weights, ReadByAllRanks):
                # Each read of a sharded tensor is a collective of all ranks: without the rest, the others would hang
                weights.finish()


def gather_groups(prompts: Sequence[Prompt], own: Sequence[int], groups: Sequence[Group]) -> list[Group]:
    """[G] the judged group of each prompt. `groups` are those of this rank, for the prompts at the places `own`.

    Every prompt belongs to exactly one rank. Each rollout is marked with the rank that sampled it.
    """
    if ranks.count() == 1:
        return list(groups)
    gathered: dict[int, Group] = {}
    for rank, sent in enumerate(ranks.gather_from_all(_Sent.of(own, groups), what="rollouts")):
        gathered |= sent.groups(prompts, rank)
    return [gathered[place] for place in range(len(prompts))]


@dataclass(frozen=True)
class _Sent:
    """Groups of one rank in the form in which they are sent: flat over their rollouts."""

    places: list[int]  # [g] places of their prompts
    counts: list[int]  # [g] rollouts per group
    lengths: list[int]  # tokens per rollout
    tokens: Any  # int32, rollout after rollout
    logprobs: Any  # float32 or float64, rollout after rollout
    rest: list[tuple[Any, ...]]  # per rollout, the fields of _LIGHT
    outcomes: list[Outcome]

    @classmethod
    def of(cls, places: Sequence[int], groups: Sequence[Group]) -> Self:
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        logprobs = joined([rollout.logprobs for rollout in rollouts])
        narrow = logprobs.astype(np.float32)
        return cls(
            places=list(places),
            counts=[len(group.rollouts) for group in groups],
            lengths=[len(rollout.tokens) for rollout in rollouts],
            tokens=joined([rollout.tokens for rollout in rollouts], np.int64).astype(np.int32),
            logprobs=narrow if np.array_equal(narrow, logprobs, equal_nan=True) else logprobs,
            rest=[tuple(getattr(rollout, name) for name in _LIGHT) for rollout in rollouts],
            outcomes=[outcome for group in groups for outcome in group.outcomes or ()],
        )

    def groups(self, prompts: Sequence[Prompt], rank: int) -> dict[int, Group]:
        """The groups by the places of their prompts."""
        each = zip(self._rollouts(rank), self.outcomes, strict=True)
        groups = {}
        for place, count in zip(self.places, self.counts, strict=True):
            pairs = [next(each) for _ in range(count)]
            rollouts, outcomes = tuple(r for r, _ in pairs), tuple(o for _, o in pairs)
            groups[place] = Group(prompt=prompts[place], rollouts=rollouts, outcomes=outcomes)
        return groups

    def _rollouts(self, rank: int) -> Iterator[Rollout]:
        ends = np.cumsum(self.lengths)[:-1]
        tokens, logprobs = self.tokens.astype(np.int64), self.logprobs.astype(np.float64)
        # Not strict: without rollouts, np.split returns one empty part
        for ids, numbers, rest in zip(np.split(tokens, ends), np.split(logprobs, ends), self.rest, strict=False):
            yield Rollout(tokens=ids, logprobs=numbers, rank=rank, **dict(zip(_LIGHT, rest, strict=True)))
