"""A rehearsal: the learner of a run without its numbers, as rank 0 of any number of ranks.

Its parameters are torch's fake tensors of the CPU, which computes as the planned device does. The other ranks do not
exist (`ranks.simulated`). Policy, micro-batches, checkpointing, adapters, masters, value model and optimizer are the
code that trains. A model that no machine here could hold makes its update in seconds, and torch's instruments count
what it needs (proof.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from winnow import ranks
from winnow.config import AdapterCritic, Config, ModelCritic, TrainedCritic, optimizers, trained_tokens
from winnow.errors import ConfigError
from winnow.learner.learner import Learner, make_learner, shard_learner
from winnow.learner.value_model import Critic, make_critic, shard_critic
from winnow.memory.demand import Demand
from winnow.memory.trained_model import policy_shapes, value_model_shapes
from winnow.models.adapter import add_value_adapter
from winnow.models.backbone import attend_causally
from winnow.models.device import as_on_gpu, keeps_masters, keeps_value_masters
from winnow.models.load import Loaded
from winnow.models.meta import without_numbers
from winnow.records import Batch, Prompt, Rollout, TrainingSequence

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel


@dataclass(frozen=True)
class Rehearsal:
    """A learner without numbers, and a separate value model where one is trained. Use both inside `mode` only."""

    learner: Learner
    critic: Critic | None
    mode: FakeTensorMode


@contextmanager
def rehearsal(demand: Demand, *, needs: frozenset[str]) -> Iterator[Rehearsal]:
    """The learner that a run has after it was built, on rank 0 of `demand.ranks`. `needs` are those of `make_learner`.

    Raises ConfigError for 4-bit weights and 8-bit moments, whose kernels need numbers, and for a sharded value head
    that is lent.
    """
    config = demand.config
    _check_instruments(demand)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    shapes = policy_shapes(config, computes=True)
    if isinstance(config.critic, AdapterCritic):
        lora = config.critic.lora or config.model.lora
        assert lora is not None, "check_combinations refuses a run without it"
        add_value_adapter(shapes, rank=lora.rank, alpha=lora.alpha, seed=config.seed)
    as_there = nullcontext() if demand.device == "cpu" else as_on_gpu()
    with ranks.simulated(demand.ranks), as_there:
        with mode:
            loaded = _loaded(shapes, masters=keeps_masters(config) and not demand.sharded)
            learner = make_learner(config, loaded, needs=needs, resumed=False)
            own = loaded
            if isinstance(config.critic, ModelCritic):  # a model of its own
                masters = keeps_value_masters(config) and not demand.sharded
                own = _loaded(value_model_shapes(config, config.critic, computes=True), masters=masters)
            critic = make_critic(config, learner, own) if isinstance(config.critic, TrainedCritic) else None
        if demand.sharded:  # outside the mode, in which torch cannot make a device mesh
            shard_learner(learner, config, loaded)
            if critic is not None:
                shard_critic(critic, config, own)
        yield Rehearsal(learner, critic, mode)


def full_batch(config: Config, *, prompt_tokens: int, tokens: int, number: int) -> Batch:
    """A batch of `number` equal micro-batches of `tokens` tokens or slightly fewer, prompts and padding included.

    Its rollouts have one length, at most the longest, and a prompt each.
    """
    longest = prompt_tokens + trained_tokens(config)
    length = min(longest, tokens // -(-tokens // longest))
    prompt = min(prompt_tokens, length - 1)
    rows = tokens // length
    return Batch(epoch=0, sequences=tuple(_sequence(place, prompt, length - prompt) for place in range(number * rows)))


def _sequence(place: int, prompt: int, completion: int) -> TrainingSequence:
    return TrainingSequence(
        prompt=Prompt(id=str(place), tokens=np.zeros(prompt, dtype=np.int64), text="", answer="", task=""),
        rollout=Rollout(
            index=0,
            tokens=np.zeros(completion, dtype=np.int64),
            logprobs=np.zeros(completion),
            text="",
            finish="stop",
            version=0,
        ),
        group=place,
        advantage=1.0,
        weight=1.0,
    )


def _loaded(shapes: MetaModel, *, masters: bool) -> Loaded:
    """As models/load.py returns it. Call it inside the mode."""
    model = without_numbers(shapes)
    attend_causally(model)
    exact = {name: torch.empty(p.shape) for name, p in model.named_parameters()} if masters else {}
    nothing: Any = SimpleNamespace(eos_token_id=0)
    return Loaded(model=model, tokenizer=nothing, stop_tokens=(), files={}, masters=exact)


def _check_instruments(demand: Demand) -> None:
    """Raise ConfigError where bitsandbytes computes, or where torch's tracker fails."""
    config = demand.config
    if demand.sharded and isinstance(config.critic, AdapterCritic):
        raise ConfigError(
            "critic.form = 'adapter': torch's tracker fails for a sharded value head that the policy does not call",
            remedy="plan without a proof, or rehearse one rank",
            key="critic.form",
            code="config.unsupported",
        )
    few = {f"{key}.moments": of.moments == "8bit" for key, of in optimizers(config).items()}
    few["model.quantization"] = config.model.quantization is not None
    if keys := [key for key, of_bits in few.items() if of_bits]:
        raise ConfigError(
            f"{keys[0]}: the kernels of bitsandbytes need numbers, and a rehearsal has none",
            remedy="plan without a proof, or without this key",
            key=keys[0],
            code="config.unsupported",
        )
