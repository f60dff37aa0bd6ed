"""The work of an update point: log-probs, micro-batches, loss, gradients and optimizer on chosen rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from winnow.algos.advantage import check_credits
from winnow.commands.profile.points import Point, Work, split_evenly
from winnow.config import Config
from winnow.errors import ConfigError, UpdateError
from winnow.learner.learner import make_learner
from winnow.learner.schedule import schedule
from winnow.models.load import Loaded
from winnow.records import Batch, Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng, generator
from winnow.training.members import Members


@contextmanager
def update_work(
    members: Members, policy: Loaded, prompts: Sequence[Prompt], point: Point
) -> Iterator[Callable[[int], Work]]:
    """A function that does the training half of a step on the point's rollouts. The policy changes with each call.

    The rollouts have the maximum length, random tokens and random rewards, because the time of an update does not
    depend on the tokens. For the way "selected" the configuration's selectors choose among them; otherwise all are
    kept.
    """
    groups = chosen(members, random_groups(members.config, prompts, point.rollouts, _vocabulary(policy)), point)
    batches = scheduled(members, groups)
    trained = sum(len(batch.sequences) for batch in batches)
    if not trained:
        raise ConfigError(
            f"an update of {point.rollouts} rollouts has none to train on: all advantages are zero",
            remedy="profile larger numbers of rollouts",
            code="config.value",
        )
    config = _in_one(members.config, batches) if point.way == "whole" else members.config
    learner = make_learner(config, policy, needs=members.needs, resumed=False)

    def update(number: int) -> Work:
        micro_batches = 0
        for batch in learner.compute_logprobs(batches, members.needs):
            for mb in learner.micro_batches(batch):
                value = members.objective(learner.forward(mb, members.needs), mb)
                learner.backward(value.total)
                micro_batches += 1
            if (learner.step() if batch.sequences else learner.skip()).skipped and batch.sequences:
                raise UpdateError(
                    "the gradient is not finite, and the optimizer skipped the update",
                    remedy="lower optimizer.learning_rate",
                    key="optimizer.learning_rate",
                    code="update.not_finite",
                )
        tokens = sum(len(sequence.rollout.tokens) for batch in batches for sequence in batch.sequences)
        return Work(tokens=tokens, trained=trained, micro_batches=micro_batches)

    yield update


def random_groups(config: Config, prompts: Sequence[Prompt], rollouts: int, vocabulary: int) -> list[Group]:
    """The prompts with rollouts of `rollout.max_new_tokens` random tokens and random rewards."""
    counts = split_evenly(rollouts, per_prompt=config.rollout.rollouts_per_prompt, prompts=len(prompts))
    rng = generator(config.seed, "profile", "update")
    return [
        Group(
            prompt=prompt,
            rollouts=tuple(_random_rollout(i, config.rollout.max_new_tokens, vocabulary, rng) for i in range(count)),
            outcomes=tuple(map(_outcome, rng.permutation(count), [count] * count)),
        )
        for prompt, count in zip(prompts, counts, strict=False)
    ]


def chosen(members: Members, groups: Sequence[Group], point: Point) -> list[Group]:
    """The groups with the kept rollouts marked, and the advantage of each rollout."""
    rng, every = Rng((members.config.seed, "profile", "select")), point.way != "selected"
    keep = [np.ones(len(g.rollouts), dtype=np.bool_) if every else members.select(g, rng) for g in groups]
    kept = [group.fill(keep=mask) for group, mask in zip(groups, keep, strict=True)]
    credits = check_credits(members.advantage(kept), kept)
    return [group.fill(advantages=credit) for group, credit in zip(kept, credits, strict=True)]


def scheduled(members: Members, groups: Sequence[Group]) -> list[Batch]:
    """The batches of a step, as in training/step.py."""
    config = members.config
    return schedule(
        groups,
        members.weighting,
        epochs=config.update.epochs,
        updates_per_step=config.update.updates_per_step,
        max_new_tokens=config.rollout.max_new_tokens,
        max_trained_tokens=config.update.max_trained_tokens,
        planned=len(groups),
        pass_rates=np.array([group.correct.mean() for group in groups]),
        drop_silent=not members.terms,
        seed=(config.seed, "profile", "schedule"),
    )


def _in_one(config: Config, batches: Sequence[Batch]) -> Config:
    """The configuration with a micro-batch size that fits a whole batch."""
    tokens = max(
        len(batch.sequences) * max((len(s.prompt.tokens) + len(s.rollout.tokens) for s in batch.sequences), default=0)
        for batch in batches
    )
    update = config.update.model_copy(update={"tokens_per_micro_batch": tokens})
    return config.model_copy(update={"update": update})


def _vocabulary(policy: Loaded) -> int:
    return int(policy.model.config.get_text_config().vocab_size)


def _random_rollout(index: int, tokens: int, vocabulary: int, rng: np.random.Generator) -> Rollout:
    return Rollout(
        index=index,
        tokens=rng.integers(0, vocabulary, tokens),
        logprobs=np.full(tokens, -np.log(vocabulary)),
        text="",
        finish="length",
        version=0,
    )


def _outcome(rank: int, count: int) -> Outcome:
    """The upper half of a prompt's rollouts is right; all rewards differ."""
    correct = bool(2 * rank >= count)
    return Outcome(reward=(rank + 1) / count, correct=correct, kind="correct" if correct else "wrong")
