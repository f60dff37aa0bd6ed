"""A separate value model (critic) and its optimizer: it predicts the return before each token is sampled.

Its backbone is another model, or the policy's frozen base with a second adapter. Its head is that of a `PolicyModule`.
A head on the policy's trained backbone is part of the policy (policy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from winnow.config import Config, TrainedCritic
from winnow.learner.adamw import MASTER
from winnow.learner.learner import Learner
from winnow.learner.optimizer import VALUE_MODEL, Trained, check_saved, make_optimizer, set_parameters, split
from winnow.learner.policy import value_head
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sequence_model import SequenceModel
from winnow.models.adapter import (
    VALUES,
    adapter_on,
    add_value_adapter,
    has_adapter,
    trained_parameters,
    value_adapter,
    with_numbers,
)
from winnow.models.device import keeps_value_masters
from winnow.models.load import Loaded
from winnow.models.saved_weights import SavedWeights
from winnow.records import MicroBatch

PARAMETER, MOMENT = "parameter/", "optimizer/"  # second part of a saved tensor's name, after VALUE_MODEL


class ValueModel(SequenceModel):
    """A module with a value head. With `on_policy`, the module is the policy's, and only the head and a second adapter
    on it belong to the value model.
    """

    def __init__(
        self, module: PolicyModule, *, pad_token: int, tokens_per_micro_batch: int, on_policy: bool = False
    ) -> None:
        super().__init__(module, pad_token=pad_token, tokens_per_micro_batch=tokens_per_micro_batch)
        self.on_policy = on_policy

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        backbone = value_adapter(self.model) if self.on_policy else trained_parameters(self.model)
        return {**backbone, **value_head(self.module)}

    def shard(self, saved: SavedWeights | None, *, masters: bool) -> None:
        """See `SequenceModel`. With `on_policy`, the module has been divided with the policy."""
        if self.on_policy:
            self.sharded = True
        else:
            super().shard(saved, masters=masters)

    def values(self, mb: MicroBatch) -> Tensor:
        with self.active():
            return super().values(mb)

    def active(self) -> AbstractContextManager[None]:
        """A context in which the adapter on the policy's base is active; no change for another model. Backward needs it
        too, because it may recompute layers.
        """
        return adapter_on(self.model, VALUES) if self.on_policy else nullcontext()


class Critic(Trained[ValueModel]):
    """A value model with its optimizer. A step computes values before any update, and updates this model before the
    policy.
    """

    def forward(self, mb: MicroBatch) -> Tensor:
        return self.model.values(mb)

    def backward(self, scalar: Tensor) -> None:
        with self.model.active():
            super().backward(scalar)

    def state(self) -> dict[str, Tensor]:
        """Trained parameters and moments by name, for safetensors. Parameters that are rounded from masters are
        omitted.

        The tensors are not copied, and may be this rank's shares: write them before the next `step`.
        """
        rounded = self._optimizer.saves_masters
        parameters = {} if rounded else {f"{PARAMETER}{name}": p.detach() for name, p in self.parameters.items()}
        moments = {f"{MOMENT}{name}": value for name, value in self._optimizer.state().items()}
        return {f"{VALUE_MODEL}{name}": tensor for name, tensor in {**parameters, **moments}.items()}

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue from `state` and `counts`. Raises RunFolderError if they belong to other parameters."""
        self._set(_exact(tensors))
        moments, _ = split(tensors, f"{VALUE_MODEL}{MOMENT}")
        self._optimizer.load_state(moments, counts)

    def start(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the value model of another run's checkpoint, without its moments. Raises RunFolderError like `restore`.

        Float32 masters of that run are read as float32, whatever precision it computed in.
        """
        exact = _exact(tensors)
        self._set(exact)
        self._optimizer.set_masters(exact)

    def _set(self, exact: Mapping[str, Tensor]) -> None:
        check_saved(exact, self.parameters)
        set_parameters(self.parameters, exact)


def _exact(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of a saved value model by name. Their masters replace them where the state contains any."""
    parameters, _ = split(tensors, f"{VALUE_MODEL}{PARAMETER}")
    moments, _ = split(tensors, f"{VALUE_MODEL}{MOMENT}")
    masters = {name.removesuffix(f"/{MASTER}"): value for name, value in moments.items() if name.endswith(f"/{MASTER}")}
    return {**parameters, **masters}


def make_critic(config: Config, learner: Learner, loaded: Loaded) -> Critic:
    """The separate value model beside a learner. `loaded` is its model: a separate one, or the policy's, to whose base
    a second adapter is added.
    """
    policy, critic = learner.model, _section(config)
    on_policy = critic.policy_head == "lent"
    if on_policy:
        lora = critic.lora or config.model.lora
        assert lora is not None, "check_combinations refuses a run without it"
        if not has_adapter(policy.model, VALUES):  # a rehearsal's model has it, as no adapter is made without numbers
            with with_numbers(policy.model):
                add_value_adapter(policy.model, rank=lora.rank, alpha=lora.alpha, seed=config.seed)
    module = policy.module if on_policy else _critic_module(config, loaded)
    model = ValueModel(
        module,
        pad_token=loaded.tokenizer.eos_token_id,
        tokens_per_micro_batch=config.update.tokens_per_micro_batch,
        on_policy=on_policy,
    )
    return Critic(model, make_optimizer(config, model.parameters, {} if on_policy else loaded.masters, critic=critic))


def shard_critic(critic: Critic, config: Config, loaded: Loaded) -> None:
    """Divide the value model and its optimizer among the ranks. An adapter's base has been divided with the policy."""
    critic.shard(config, loaded.saved, masters=keeps_value_masters(config), critic=_section(config))


def _section(config: Config) -> TrainedCritic:
    assert isinstance(config.critic, TrainedCritic), "there is no separate value model without its table"
    return config.critic


def _critic_module(config: Config, loaded: Loaded) -> PolicyModule:
    module = PolicyModule(
        loaded.model,
        gradient_checkpointing=config.model.gradient_checkpointing,
        packed=config.update.layout == "packed",
        value_head=True,
    )
    module.drop_head()
    return module
