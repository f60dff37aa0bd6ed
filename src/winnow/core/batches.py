"""From a step's groups to its batches: the weight of each kept rollout, and the rollouts of each optimizer step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from winnow import seeds
from winnow.errors import wrong_result
from winnow.records import Batch, FloatArray, Group, IntArray, KeptRollouts, Rollout, TrainingSequence, as_array


def make_batches(
    groups: Sequence[Group],
    weighting: Callable[[KeptRollouts], FloatArray],
    *,
    epochs: int,
    updates_per_step: int,
    max_new_tokens: int,
    max_trained_tokens: int | None = None,
    planned: int,
    pass_rates: FloatArray | None,
    drop_silent: bool = True,
    seed: tuple[seeds.SeedName, ...],
) -> list[Batch]:
    """Weigh a step's kept rollouts, divide them into epochs x `updates_per_step` batches of whole groups, drop silent
    ones.

    A rollout is weighed among all that the step kept, zero-advantage ones included, and multiplied by
    `updates_per_step`. So a prompt's weight depends on no batch, and a batch weighs on average as much as a step of one
    update.

    Silent rollouts (advantage 0 at every token) are dropped after weighing. With `drop_silent` false they are kept,
    because a KL or entropy term trains on them too. A kept rollout without a trainable token is never weighed. Each
    epoch is divided anew. With fewer groups than batches some batches are empty; they are returned, so that the
    learning rate advances.

    Only the first `max_trained_tokens` sampled tokens of a rollout are trained. The rest is neither weighed nor read,
    because no earlier token depends on it. A weighting that counts tokens counts the trained ones.

    `planned` is the number of prompts in the step's plan, without groups that dynamic sampling adds. `pass_rates` [G]
    are the plan's. Raises ConfigError unless the weighting returns one finite number per sequence.
    """
    candidates = [c for position, group in enumerate(groups) for c in _candidates(position, group, max_trained_tokens)]
    counts = [0] * len(groups)
    for candidate in candidates:
        counts[candidate.position] += candidate.length
    tokens = np.array(counts, dtype=np.int64)  # [G]
    rates = np.full(len(groups), np.nan) if pass_rates is None else pass_rates
    weights = updates_per_step * _weigh(weighting, _kept_rollouts(candidates, planned, rates, max_new_tokens))
    of_group: dict[int, list[TrainingSequence]] = {position: [] for position in range(len(groups))}
    for candidate, weight in zip(candidates, weights, strict=True):
        sequence = candidate.sequence(weight)
        if sequence.teaches or not drop_silent:
            of_group[candidate.position].append(sequence)
    return [
        Batch(epoch=epoch, sequences=tuple(s for position in part for s in of_group[position]))
        for epoch in range(epochs)
        for part in _deal(tokens, updates_per_step, seeds.generator(*seed, "schedule", epoch))
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """A kept rollout with a trainable token."""

    group: Group
    position: int  # of the group in the step
    rollout: Rollout  # only the tokens that are trained
    place: int  # of the rollout in the group
    length: int  # trainable tokens

    def sequence(self, weight: float) -> TrainingSequence:
        advantages = self.group.advantages
        if advantages is None:
            raise ValueError(f"group {self.group.prompt.id!r} has no advantages yet; fill them before the batches")
        advantage = advantages[self.place]
        return TrainingSequence(
            prompt=self.group.prompt,
            rollout=self.rollout,
            group=self.position,
            advantage=advantage[: len(self.rollout.tokens)] if isinstance(advantage, np.ndarray) else advantage,
            weight=float(weight),
            values=self._of_trained(self.group.values),
            returns=self._of_trained(self.group.returns),
        )

    def _of_trained(self, per_token: tuple[FloatArray, ...] | None) -> FloatArray | None:
        return None if per_token is None else per_token[self.place][: len(self.rollout.tokens)]


def first_tokens(rollout: Rollout, count: int | None) -> Rollout:
    """The rollout up to the last of its first `count` sampled tokens; its text stays whole. None: all tokens."""
    if count is None or rollout.length <= count:
        return rollout
    return rollout.up_to(int(np.append(0, np.flatnonzero(rollout.sampled) + 1)[count]))  # 0: before the first token


def _candidates(position: int, group: Group, tokens: int | None) -> list[_Candidate]:
    if group.keep is None:
        raise ValueError(f"group {group.prompt.id!r} has no `keep` yet; select before the batches")
    kept = [(place, first_tokens(group.rollouts[place], tokens)) for place in np.flatnonzero(group.keep).tolist()]
    return [
        _Candidate(group, position, rollout, place, length) for place, rollout in kept if (length := rollout.length)
    ]


def _deal(tokens: IntArray, parts: int, rng: np.random.Generator) -> list[list[int]]:
    """Positions of groups with tokens, dealt to `parts`: the longest first, each to the part with the fewest tokens.

    For this order, lengths are shrunk at random by up to a quarter. So epochs are divided differently even where no two
    groups have the same length.
    """
    jittered = tokens * rng.uniform(0.75, 1.0, size=len(tokens))
    dealt: list[list[int]] = [[] for _ in range(parts)]
    loads = np.zeros(parts, dtype=np.int64)
    for position in np.argsort(-jittered, kind="stable"):
        if tokens[position] > 0:
            lightest = int(np.argmin(loads))
            dealt[lightest].append(int(position))
            loads[lightest] += tokens[position]
    # Without the permutation the longest group would always be in the first update.
    return [sorted(dealt[part]) for part in rng.permutation(parts)]


def _kept_rollouts(
    candidates: Sequence[_Candidate], planned: int, rates: FloatArray, max_new_tokens: int
) -> KeptRollouts:
    groups = {c.position: c.group for c in candidates}
    place = {position: i for i, position in enumerate(groups)}
    correct = {position: group.correct for position, group in groups.items()}
    return KeptRollouts(
        planned=planned,
        lengths=np.array([c.length for c in candidates], dtype=np.int64),
        group=np.array([place[c.position] for c in candidates], dtype=np.int64),
        correct=np.array([correct[c.position][c.place] for c in candidates], dtype=np.bool_),
        generated=np.array([len(group.rollouts) for group in groups.values()], dtype=np.int64),
        valid=np.array([np.count_nonzero(group.valid) for group in groups.values()], dtype=np.int64),
        accepted=np.array([np.count_nonzero(mask) for mask in correct.values()], dtype=np.int64),
        pass_rate=rates[list(groups)],
        max_new_tokens=max_new_tokens,
        share=_shares(list(groups.values()), planned),
    )


def _shares(groups: Sequence[Group], planned: int) -> FloatArray | None:
    """[G] by the probabilities of the draw; None without any. A prompt that dynamic sampling added has none, and counts
    as one of the plan.
    """
    draws = [group.drawn for group in groups]
    if all(of is None for of in draws):
        return None
    return np.array([1.0 / planned if of is None else of.share for of in draws], dtype=np.float64)


def _weigh(weighting: Callable[[KeptRollouts], FloatArray], kept: KeptRollouts) -> FloatArray:
    if len(kept.lengths) == 0:
        return np.zeros(0)
    weights = as_array(weighting(kept))
    if weights.shape != kept.lengths.shape or weights.dtype.kind not in "fiu" or not np.all(np.isfinite(weights)):
        raise wrong_result(
            f"the weighting returned {weights!r} for {len(kept.lengths)} sequences",
            remedy="return one finite weight per entry of kept.lengths",
            key="weighting",
        )
    return weights.astype(np.float64)
