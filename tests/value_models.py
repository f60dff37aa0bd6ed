"""Value models of every form as a run makes them, with weights that have moved, and sequences that teach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from winnow.algos.objective import Value, ValueLoss
from winnow.config_file import validate
from winnow.learner.learner import Learner, make_learner, shard_learner
from winnow.learner.sharding import shard_like
from winnow.learner.value_model import Critic, shard_critic
from winnow.models.load import load_tokenizer
from winnow.records import MicroBatch, TrainingSequence
from winnow.training.load import divides_policy, load_model, make_separate_critic
from winnow.training.resolve import resolve_members

LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}
FORMS: dict[str, dict[str, Any]] = {
    "shared": {"critic": {"form": "shared"}},
    "shared with lora": {"critic": {"form": "shared"}, "model": {"lora": LORA}},
    "adapter": {"critic": {"form": "adapter"}, "model": {"lora": LORA}},
    "model": {"critic": {"form": "model"}},
    "model with lora": {"critic": {"form": "model", "lora": LORA}},
}
CLIP_RANGE = 0.2


class ValueModels:
    """The policy's learner, and the value model of its own where the form is one."""

    def __init__(self, config: Mapping[str, Any], *, dtype: str = "float64") -> None:
        model = {"dtype": dtype, **config["model"]}
        # Moments of the first update make every gradient 1, the smallest ones too: eps keeps what is rounding small
        optimizer = {"learning_rate": 1e-2, "eps": 1e-3, "max_grad_norm": 1e-3, "weight_decay": 0.1}
        critic = {**({} if config["critic"]["form"] == "shared" else {"optimizer": optimizer}), **config["critic"]}
        asked = {**config, "model": model, "optimizer": optimizer, "critic": critic, "advantage": "gae"}
        self.members = resolve_members(validate(asked), Path.cwd())
        self.learner, self.critic = self._made()

    def _made(self) -> tuple[Learner, Critic | None]:
        config, device = self.members.config, torch.device("cpu")
        sharded = divides_policy(config)
        loaded = load_model(config, device, None, load_tokenizer(config.model.path), later=sharded)
        learner = make_learner(config, loaded, needs=self.members.needs, resumed=False)
        own, critic = make_separate_critic(config, learner, loaded, device)
        if sharded:
            shard_learner(learner, config, loaded)
            if critic is not None:
                shard_critic(critic, config, own)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for trained in filter(None, (learner, critic)):
                for parameter in trained.parameters.values():
                    noise = 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter += shard_like(noise, parameter)
        return learner, critic

    @property
    def trained(self) -> Learner | Critic:
        """What has the value head."""
        return self.learner if self.critic is None else self.critic

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return self.trained.parameters

    def forward(self, mb: MicroBatch) -> Tensor:
        """Values [T]."""
        if self.critic is not None:
            return self.critic.forward(mb)
        values = self.learner.forward(mb, {"values"}).values
        assert values is not None
        return values

    def loss(self, mb: MicroBatch) -> Value:
        return ValueLoss(CLIP_RANGE).separate_objective(self.forward(mb), mb)


def taught(sequences: Sequence[TrainingSequence], values: Mapping[tuple[int, int], Any]) -> list[TrainingSequence]:
    """With values as they were read, a little off so that some are clipped, and with returns."""
    draw = np.random.default_rng(11)
    return [
        replace(
            sequence,
            values=values[sequence.key] + draw.normal(0, 0.2, len(sequence.rollout.tokens)),
            returns=draw.normal(0, 1, len(sequence.rollout.tokens)),
        )
        for sequence in sequences
    ]
