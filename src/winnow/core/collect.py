"""Samples and judges the rollouts of a list of prompts, for a step, a probe and an evaluation; syncs the engine.

With several ranks, each samples and judges its share of the prompts, and every rank gets all groups. So each rank
computes the same selection and advantages. A token is sent as 8 bytes: its id as int32 and its log-prob as float32.
Log-probs that float32 would round (of a float64 policy) are sent as float64, so gathering changes no number. Prompts
are not sent, as every rank has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from winnow import ranks
from winnow.core.cuts import Cut, make_cut
from winnow.core.protocols import PolicyLearner, ReadByAllRanks, Verifier
from winnow.core.run import Progress, Run
from winnow.engines.base import Engine
from winnow.engines.freshness import check_fresh, sampling_version
from winnow.ranks import deal
from winnow.records import FloatArray, Group, IntArray, Outcome, Prompt, Rollout, Sampling
from winnow.seeds import SeedName

_LIGHT = (  # the other fields of a rollout
    *("index", "text", "finish", "version", "trainable", "turns"),
    *("round", "beyond"),
)


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
        logprobs = _joined([rollout.logprobs for rollout in rollouts], np.float64)
        narrow = logprobs.astype(np.float32)
        return cls(
            places=list(places),
            counts=[len(group.rollouts) for group in groups],
            lengths=[len(rollout.tokens) for rollout in rollouts],
            tokens=_joined([rollout.tokens for rollout in rollouts], np.int64).astype(np.int32),
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


def _joined(arrays: Sequence[IntArray] | Sequence[FloatArray], dtype: Any) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)


Phase = Callable[[str], AbstractContextManager[Any]]
OnRollout = Callable[[Rollout], None]


class RankShare(NamedTuple):
    """The judged groups of one rank."""

    places: Sequence[int]  # [g] of their prompts
    groups: list[Group]  # [g]


def collect(
    engine: Engine,
    verifiers: Verifier,
    prompts: Sequence[Prompt],
    counts: Sequence[int],
    sampling: Sampling,
    *,
    seed: tuple[SeedName, ...],
    phase: Phase = nullcontext,
    version: int | None = None,
    on_rollout: OnRollout | None = None,
) -> list[Group]:
    """Sample `counts[i]` rollouts of each prompt and fill in their outcomes; [G] in the order of the prompts.

    Raises as `collect_share`, and RankError where another rank raised.
    """
    with ranks.announced("sampling and judging"):
        share = collect_share(
            engine,
            verifiers,
            prompts,
            counts,
            sampling,
            seed=seed,
            phase=phase,
            version=version,
            on_rollout=on_rollout,
        )
    return gather_share(prompts, share, phase)


def gather_share(prompts: Sequence[Prompt], share: RankShare, phase: Phase) -> list[Group]:
    """[G] the judged groups of all ranks; `phase` times it as "gather" where there are several."""
    with phase("gather") if ranks.count() > 1 else nullcontext():
        return gather_groups(prompts, share.places, share.groups)


def collect_share(
    engine: Engine,
    verifiers: Verifier,
    prompts: Sequence[Prompt],
    counts: Sequence[int],
    sampling: Sampling,
    *,
    seed: tuple[SeedName, ...],
    phase: Phase = nullcontext,
    version: int | None = None,
    on_rollout: OnRollout | None = None,
    cut: Cut | None = None,
) -> RankShare:
    """This rank's share of `collect`, without an exchange between ranks, unless `cut` needs one.

    A finished rollout is judged while later ones are sampled. `phase` times "generate" (sampling, with the judging that
    overlaps it) and "verify" (waiting for verdicts afterwards). `on_rollout` is called with every finished rollout of
    this rank. `cut` cuts rollouts before they are verified; verification then begins when all are sampled.

    Raises EngineError, before the wait for verdicts, for rollouts of other weights than those of `version` (if given).
    """
    places = deal(counts, ranks.count())[ranks.rank()]  # of this rank's prompts; the largest counts are dealt first

    def finish(prompt: Prompt, rollout: Rollout) -> None:
        if cut is None:
            verifiers.submit(prompt, rollout)
        if on_rollout is not None:
            on_rollout(rollout)

    with phase("generate"):
        own_prompts, own_counts = [prompts[place] for place in places], [counts[place] for place in places]
        groups = engine.generate(own_prompts, own_counts, sampling, seed=seed, on_rollout=finish) if places else []
        if version is not None:
            check_fresh(groups, version)
        if cut is not None:
            groups = cut(places, groups)
    with phase("verify"):
        return RankShare(places, verifiers.collect(groups))


def sample(
    run: Run,
    progress: Progress,
    prompts: Sequence[Prompt],
    counts: IntArray,
    step: int,
    phase: Phase,
    *,
    number: int = 0,
    spent: int = 0,
) -> list[Group]:
    """[G] groups with `counts` rollouts each and their outcomes, sampled with the weights that `rollout.ahead` names.

    `number` is that of the round: rounds have different random numbers. `spent` is the number of tokens of the step's
    rounds before it.
    """
    with ranks.announced("sampling and judging"):
        share = sample_share(run, progress, prompts, counts, step, phase, number=number, spent=spent)
    return gather_share(prompts, share, phase)


def sample_share(
    run: Run,
    progress: Progress,
    prompts: Sequence[Prompt],
    counts: IntArray,
    step: int,
    phase: Phase,
    *,
    number: int = 0,
    spent: int = 0,
) -> RankShare:
    """This rank's share of `sample`, without an exchange between ranks, unless the run cuts rollouts."""
    return collect_share(
        run.engine,
        run.verifiers,
        prompts,
        counts.tolist(),
        run.sampling,
        # With the step: a prompt that returns gets other random numbers, and so does every later round
        seed=(run.seed, "rollout", step, *(("round", number) if number else ())),
        phase=phase,
        version=sampling_version(step, run.config.rollout.ahead),
        on_rollout=progress.phases.rollout_counter(int(counts.sum())),
        cut=make_cut(run.members.cut, spent=spent),
    )


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
