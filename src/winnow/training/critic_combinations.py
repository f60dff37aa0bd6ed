"""Refused combinations of keys about a value model, or about an advantage that needs values."""

from __future__ import annotations

from winnow.config import Config, CriticSection
from winnow.errors import ConfigError
from winnow.training.members import Members
from winnow.training.rounding import check_rounding

# The keys of `critic` that each form reads, besides those that all forms read
_KEYS = {
    "shared": {"coefficient"},
    "adapter": {"lora", "start", "train_on", "epochs", "updates_per_step", "pretraining_steps", "optimizer"},
    "model": {"path", "lora", "start", "train_on", "epochs", "updates_per_step", "pretraining_steps", "optimizer"},
}
_ALL = {"form", "gamma", "lam", "clip_range"}


def check_critic(members: Members) -> None:
    """Raise ConfigError for the first combination that is refused."""
    config, critic, needs = members.config, members.config.critic, members.advantage.traits.needs
    if config.advantage.kl_reward and "token_rewards" not in needs:
        raise ConfigError(
            f"advantage.kl_reward = {config.advantage.kl_reward} has no effect: {members.advantage.name!r} reads one "
            f"reward per rollout",
            remedy="add the term kl instead, or choose advantage = 'gae'",
            key="advantage.kl_reward",
            code="config.no_effect",
        )
    options = members.advantage.options
    if options.get("lam") not in (None, "length") and members.config.advantage.options.get("alpha") is not None:
        raise ConfigError(
            f"advantage.alpha = {options['alpha']} has an effect under lam = 'length' alone, and advantage.lam = "
            f"{options['lam']}",
            remedy="remove it, or set advantage.lam = 'length'",
            key="advantage.alpha",
            code="config.no_effect",
        )
    if "values" in needs and critic is None and members.critic is None:
        raise ConfigError(
            f"advantage = {members.advantage.name!r} needs values, and there is no value model",
            remedy="add a table [critic], give a function from Python (winnow.train(critic=...)), or choose an "
            "advantage with another baseline",
            key="advantage",
            code="config.combination",
        )
    if critic is None:
        return
    if members.critic is not None:
        raise ConfigError(
            "there are two sources of values: the table [critic] and the function critic=",
            remedy="remove one of them",
            key="critic",
            code="config.combination",
        )
    if "values" not in needs:
        raise ConfigError(
            f"[critic] trains a value model that nothing reads: advantage = {members.advantage.name!r} needs no values",
            remedy="choose advantage = 'gae', or remove the table",
            key="critic",
            code="config.no_effect",
        )
    _check_form(config, critic)
    _check_discount(members, critic)
    if config.update.max_trained_tokens is not None:
        raise ConfigError(
            "update.max_trained_tokens cannot be combined with [critic]: a token's advantage depends on all values "
            "after it, to the end of the rollout",
            remedy="remove one of them",
            key="update.max_trained_tokens",
            code="config.combination",
        )


def _check_form(config: Config, critic: CriticSection) -> None:
    """Refuse a key that the form does not read: it would be ignored silently."""
    for key, field in type(critic).model_fields.items():
        if key in _ALL | _KEYS[critic.form] or getattr(critic, key) == field.get_default():
            continue
        others = " or ".join(repr(form) for form, keys in _KEYS.items() if key in keys)
        raise ConfigError(
            f"critic.{key} has no effect under critic.form = {critic.form!r}, {_WHY[critic.form]}",
            remedy=f"remove it, or set critic.form = {others}",
            key=f"critic.{key}",
            code="config.no_effect",
        )
    if critic.form == "adapter" and config.model.lora is None:
        raise ConfigError(
            "critic.form = 'adapter' puts an adapter on the policy's frozen base, and without model.lora that base is "
            "trained",
            remedy="set model.lora, or critic.form = 'model', which may have a critic.lora",
            key="critic.form",
            code="config.combination",
        )
    if critic.form == "adapter" and critic.lora is not None and critic.lora.targets != _targets(config):
        raise ConfigError(
            f"critic.lora.targets = {critic.lora.targets!r} under critic.form = 'adapter': both adapters must be on "
            f"the same layers",
            remedy="set it to the value of model.lora.targets",
            key="critic.lora.targets",
            code="config.combination",
        )
    if critic.form != "shared":
        adapter = critic.form == "adapter" or critic.lora is not None
        check_rounding(critic.optimizer, "critic.optimizer", dtype=config.model.dtype, adapter=adapter)


_WHY = {
    "shared": "whose head is trained with the policy, on its batches and by its optimizer",
    "adapter": "which is on the policy's base and has a separate optimizer",
    "model": "which has a separate optimizer",
}


def _targets(config: Config) -> object:
    return None if config.model.lora is None else config.model.lora.targets


def _check_discount(members: Members, critic: CriticSection) -> None:
    """Values that are trained on one discount are no baseline for returns of another."""
    gamma = members.advantage.options.get("gamma", critic.gamma)
    if gamma != critic.gamma:
        raise ConfigError(
            f"advantage.gamma = {gamma} and critic.gamma = {critic.gamma}: the values would predict other returns than "
            f"the advantage uses",
            remedy="set both to the same value",
            key="critic.gamma",
            code="config.combination",
        )
