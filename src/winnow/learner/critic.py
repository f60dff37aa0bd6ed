"""A value model of its own and the optimizer that changes it: what a training step asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from winnow.config import Config, CriticSection
from winnow.learner.adamw import MASTER
from winnow.learner.learner import Learner
from winnow.learner.optimizer import Optimizer
from winnow.learner.per_token import Found, per_token
from winnow.learner.policy_module import PolicyModule
from winnow.learner.trained import VALUE_MODEL, Trained, check_saved, make_optimizer, set_parameters, split
from winnow.learner.value_model import ValueModel
from winnow.models.adapter import add_value_adapter
from winnow.models.load import Loaded, padding
from winnow.records import MicroBatch, TrainingSequence

PARAMETER, MOMENT = "parameter/", "optimizer/"  # what the names of its tensors go on with, behind VALUE_MODEL


class Critic(Trained[ValueModel]):
    """Reads values before any update of a step, and learns before the policy does."""

    def values(self, sequences: Sequence[TrainingSequence]) -> Found:
        """[L] of each sequence by its key, as the value model is now."""
        (found,) = per_token(self.model, [sequences], self.model.forward, what="values")
        return found

    def forward(self, mb: MicroBatch) -> Tensor:
        """Values [T] before each completion token is sampled."""
        return self.model.forward(mb)

    def backward(self, scalar: Tensor) -> None:
        """See `Trained`."""
        with self.model.active():
            super().backward(scalar)

    def state(self) -> dict[str, Tensor]:
        """What it has trained, and the moments, by name, for safetensors. The tensors are the live ones, or this rank's
        shares of them: write them before the next `step`. Parameters that are rounded from masters are left out.
        """
        rounded = self._optimizer.saves_masters
        parameters = {} if rounded else {f"{PARAMETER}{name}": p.detach() for name, p in self.parameters.items()}
        moments = {f"{MOMENT}{name}": value for name, value in self._optimizer.state().items()}
        return {f"{VALUE_MODEL}{name}": tensor for name, tensor in {**parameters, **moments}.items()}

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue where `state` and `counts` were taken. Raises RunFolderError when they are of other parameters."""
        self._set(_exact(tensors))
        moments, _ = split(tensors, f"{VALUE_MODEL}{MOMENT}")
        self._optimizer.load_state(moments, counts)

    def start(self, tensors: Mapping[str, Tensor]) -> None:
        """Become the value model of another run's checkpoint, without its moments. Raises RunFolderError as `restore`.

        What that run kept in float32 is read in float32, whatever it computed in.
        """
        exact = _exact(tensors)
        self._set(exact)
        self._optimizer.set_masters(exact)

    def _set(self, exact: Mapping[str, Tensor]) -> None:
        check_saved(exact, self.parameters)
        set_parameters(self.parameters, exact)


def _exact(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of a saved value model by name: their masters, where it had any."""
    parameters, _ = split(tensors, f"{VALUE_MODEL}{PARAMETER}")
    moments, _ = split(tensors, f"{VALUE_MODEL}{MOMENT}")
    masters = {name.removesuffix(f"/{MASTER}"): value for name, value in moments.items() if name.endswith(f"/{MASTER}")}
    return {**parameters, **masters}


def make_critic(config: Config, critic: CriticSection, learner: Learner, loaded: Loaded) -> Critic:
    """A value model of its own beside the learner; `loaded` is what it is made of: a model that is nobody else's, or
    the policy's own with an adapter, to whose base one more is added.
    """
    policy = learner.model
    if critic.form == "adapter":
        lora = critic.lora or config.model.lora
        assert lora is not None, "check_combinations has seen to it"
        add_value_adapter(policy.model, rank=lora.rank, alpha=lora.alpha, seed=config.seed)
    module = policy.module if critic.form == "adapter" else _own_module(config, loaded)
    model = ValueModel(
        module,
        pad_token=padding(loaded.tokenizer, config.model.pad_token),
        tokens_per_micro_batch=config.update.tokens_per_micro_batch,
        on_policy=critic.form == "adapter",
    )
    return Critic(model, _optimizer(config, critic, model, {} if critic.form == "adapter" else loaded.masters))


def shard_critic(critic: Critic, config: Config, loaded: Loaded) -> None:
    """Give every rank its share; an adapter's base has been divided with the policy."""
    assert config.critic is not None, "there is no value model without its table"
    section, masters = config.critic, {} if critic.model.on_policy else loaded.masters
    critic.shard(masters, lambda model: _optimizer(config, section, model, {}, saves_masters=bool(masters)))


def _own_module(config: Config, loaded: Loaded) -> PolicyModule:
    module = PolicyModule(
        loaded.model,
        gradient_checkpointing=config.model.gradient_checkpointing,
        packed=config.update.layout == "packed",
        value_head=True,
    )
    module.drop_head()
    return module


def _optimizer(
    config: Config,
    critic: CriticSection,
    model: ValueModel,
    masters: Mapping[str, Tensor],
    *,
    saves_masters: bool = False,
) -> Optimizer:
    return make_optimizer(
        config,
        critic.optimizer,
        model.parameters,
        masters,
        updates_per_step=critic.epochs * critic.updates_per_step,
        steps=config.steps,
        saves_masters=saves_masters,
        seed="critic rounding",
    )
