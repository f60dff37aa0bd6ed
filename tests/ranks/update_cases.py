"""What a learner computes of the same sequences, on whatever number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exact_norms import float64_norms
from winnow import ranks
from winnow.config_file import validate
from winnow.core.members import Members
from winnow.learner.learner import Learner, make_learner, shard_learner
from winnow.learner.sharding import gather_whole, is_sharded, shard_like
from winnow.models.load import load_tokenizer
from winnow.records import Batch, Prompt, PromptAndRollout, Rollout, TrainingSequence
from winnow.training.load import divides_policy, load_model
from winnow.training.resolve import resolve_members

GVM = (23, 12, 6, 5, 2, 0)  # kept rollouts of six prompts
Tensors = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Computed:
    """What one rank has after three updates, of which the second is of nothing."""

    logprobs: Tensors  # old and reference [tokens]
    norms: Tensors  # by matrix [sequences]
    gradients: list[Tensors]  # of each update that has sequences, whole
    grad_norms: list[float]  # before clipping
    losses: list[float]  # of all ranks
    weights: Tensors  # at the end, whole
    passes: int  # forwards of this rank in the updates,
    idle: int  # and of these, of nothing
    sharded: bool  # whether it had a share of the policy


def updates(config: Mapping[str, Any], counts: Sequence[int], longest: int = 9) -> Computed:
    """Two updates of the same batch, the ratio of the second is not 1, and an empty one in between."""
    with float64_norms():
        return _updates(resolve_members(validate(config), Path.cwd()), counts, longest)


def _updates(members: Members, counts: Sequence[int], longest: int) -> Computed:
    learner = learner_of(members)
    batch = Batch(epoch=0, sequences=sequences(counts, longest))
    filled = learner.compute_logprobs([batch], members.needs)[0]
    pairs = [PromptAndRollout(s.prompt, s.rollout) for s in batch.sequences]
    norms = {of: learner.gradient_norms(pairs, of=of) for of in ("embedding", "output_head")}
    gradients = list[Tensors]()
    _seen_by(learner, gradients)
    done = [_update(learner, members, each) for each in (filled, Batch(epoch=0, sequences=()), filled)]
    weights = learner.weights()
    return Computed(
        logprobs=_logprobs(filled),
        norms=norms,
        gradients=gradients,
        grad_norms=[grad_norm for grad_norm, *_ in done],
        losses=[loss for _, loss, *_ in done],
        weights={name: _array(weights[name]) for name in weights},
        passes=sum(passes for *_, passes, _ in done),
        idle=sum(idle for *_, idle in done),
        sharded=all(is_sharded(parameter) for parameter in learner.parameters.values()),
    )


def learner_of(members: Members) -> Learner:
    """As a run makes it, from weights that have moved since the reference was taken."""
    config = members.config
    sharded = divides_policy(config)
    loaded = load_model(config, torch.device("cpu"), None, load_tokenizer(config.model.path), later=sharded)
    learner = make_learner(config, loaded, needs=members.needs, resumed=False)
    if sharded:
        shard_learner(learner, config, loaded)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters.values():
            noise = 0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += shard_like(noise, parameter)
    return learner


def sequences(counts: Sequence[int], longest: int) -> tuple[TrainingSequence, ...]:
    """Kept rollouts of prompts of other lengths; of one rollout some tokens are not trained."""
    draw = np.random.default_rng(7)
    made = list[TrainingSequence]()
    for number, count in enumerate(counts):
        prompt = Prompt(id=f"p{number}", tokens=draw.integers(3, 60, 3 + number), text="", answer=None, task="t")
        for index in range(count):
            length = int(draw.integers(1, longest + 1))
            rollout = Rollout(
                index=index,
                tokens=draw.integers(3, 60, length),
                logprobs=-draw.uniform(2, 5, length),
                text="",
                finish="stop",
                version=0,
                trainable=np.arange(length) != 1 if (number, index) == (0, 1) else None,
            )
            advantage = float(draw.normal())
            weight = float(draw.uniform(0.5, 1.5)) / sum(counts)
            made.append(
                TrainingSequence(prompt=prompt, rollout=rollout, group=number, advantage=advantage, weight=weight)
            )
    return tuple(made)


def _update(learner: Learner, members: Members, batch: Batch) -> tuple[float, float, int, int]:
    """As a step makes it: gradient norm, loss of all ranks, passes of this one, and those of them that were idle."""
    loss, passes, idle = 0.0, 0, 0
    for mb in learner.micro_batches(batch):
        value = members.objective(learner.forward(mb, members.needs), mb)
        learner.backward(value.total)
        loss, passes, idle = loss + value.total.item(), passes + 1, idle + (not mb.trained_tokens)
    result = learner.step() if batch.sequences else learner.skip()
    assert result.skipped == (not batch.sequences)
    return result.grad_norm, sum(ranks.gather([loss])), passes, idle


def _seen_by(learner: Learner, gradients: list[Tensors]) -> None:
    """Put down the gradients that the optimizer is given, before it clips them."""
    optimizer = learner._optimizer
    step = optimizer.step

    def note_and_step(of: Learner) -> Any:
        found = {name: p.grad for name, p in of.parameters.items() if p.grad is not None}
        gradients.append({name: _array(gather_whole(gradient)) for name, gradient in found.items()})
        return step()

    optimizer.step = partial(note_and_step, learner)  # type: ignore[method-assign]


def _logprobs(batch: Batch) -> Tensors:
    found = {name: [getattr(s, name) for s in batch.sequences] for name in ("old_logprobs", "ref_logprobs")}
    return {name: np.concatenate(values) for name, values in found.items() if values[0] is not None}


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).numpy().copy()
