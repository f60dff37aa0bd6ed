"""Checks of a configuration before weights are loaded: advantages that read values, and value models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from winnow.config import Config, ModelCritic, TrainedCritic
from winnow.core.members import Members
from winnow.errors import ConfigError, conflict, no_effect
from winnow.models.folder import relabel_errors
from winnow.models.load import describe, load_tokenizer
from winnow.state.disk import errors_as
from winnow.state.folder import TENSORS


def check_values(members: Members) -> None:
    """Raise ConfigError where an advantage needs values that have no source, or has an option without effect."""
    config, critic, needs = members.config, members.config.critic, members.advantage.traits.needs
    if config.advantage.kl_reward and "token_rewards" not in needs:
        raise no_effect(
            f"advantage.kl_reward = {config.advantage.kl_reward} has no effect: {members.advantage.name!r} reads one "
            f"reward per rollout",
            remedy="add the term kl instead, or choose advantage = 'gae'",
            key="advantage.kl_reward",
        )
    options = members.advantage.options if members.advantage.entry.package == "winnow" else {}
    if options.get("lam") not in (None, "length") and members.config.advantage.options.get("alpha") is not None:
        raise no_effect(
            f"advantage.alpha = {options['alpha']} has an effect under lam = 'length' alone, and advantage.lam = "
            f"{options['lam']}",
            remedy="remove it, or set advantage.lam = 'length'",
            key="advantage.alpha",
        )
    if "values" in needs and config.update.max_trained_tokens is not None:
        raise conflict(
            f"update.max_trained_tokens cannot be combined with advantage = {members.advantage.name!r}, which reads "
            f"values: a token's advantage depends on all values after it, to the end of the rollout",
            remedy="remove update.max_trained_tokens, or choose an advantage without values",
            key="update.max_trained_tokens",
        )
    if "values" in needs and critic is None and members.critic is None:
        raise conflict(
            f"advantage = {members.advantage.name!r} needs values, and there is no value model",
            remedy="add a table [critic], give a function from Python (winnow.train(critic=...)), or choose an "
            "advantage with another baseline",
            key="advantage",
        )


def check_critic(members: Members) -> None:
    """Raise ConfigError where the keys of a trained value model do not fit each other or those of the run."""
    config, critic, needs = members.config, members.config.critic, members.advantage.traits.needs
    if critic is None:
        return
    if members.critic is not None:
        raise conflict(
            "there are two sources of values: the table [critic] and the function critic=",
            remedy="remove one of them",
            key="critic",
        )
    if "values" not in needs:
        raise no_effect(
            f"[critic] trains a value model that nothing reads: advantage = {members.advantage.name!r} needs no values",
            remedy="choose advantage = 'gae', or remove the table",
            key="critic",
        )
    lora = config.model.lora
    on_policy = critic if isinstance(critic, TrainedCritic) and critic.policy_head == "lent" else None
    if on_policy and lora is None:
        raise conflict(
            f"critic.form = {critic.form!r} puts an adapter on the policy's frozen base, and without model.lora that "
            f"base is trained",
            remedy="set model.lora, or critic.form = 'model', which may have a critic.lora",
            key="critic.form",
        )
    if on_policy and lora and on_policy.lora and on_policy.lora.targets != lora.targets:
        raise conflict(
            f"critic.lora.targets = {on_policy.lora.targets!r} under critic.form = {critic.form!r}: both adapters must "
            f"be on the same layers",
            remedy="set it to the value of model.lora.targets",
            key="critic.lora.targets",
        )
    gamma = members.advantage.options.get("gamma", critic.gamma)
    if gamma != critic.gamma:  # values that are trained on one discount are no baseline for returns of another
        raise conflict(
            f"advantage.gamma = {gamma} and critic.gamma = {critic.gamma}: the values would predict other returns than "
            f"the advantage uses",
            remedy="set both to the same value",
            key="critic.gamma",
        )


def check_value_model(config: Config, tokenizer: Any) -> None:
    """Raise ConfigError or DataError where `critic.path` does not fit the policy. Reads no weights."""
    critic = config.critic
    if isinstance(critic, ModelCritic) and critic.path is not None:
        with relabel_errors("critic.path"):
            critic_tokenizer, described = load_tokenizer(critic.path), describe(critic.path)
        longest = config.prompt.max_prompt_tokens + config.rollout.max_new_tokens
        # Padded embeddings count: the policy can sample an id that its tokenizer has no token for
        most = describe(config.model.path).vocabulary
        for refused, why, remedy in (
            (
                critic_tokenizer.get_vocab() != tokenizer.get_vocab(),
                "has another vocabulary than the policy: a value model reads the policy's tokens",
                "name a model of the same family, or remove the key",
            ),
            (
                described.vocabulary < most,
                f"has embeddings for {described.vocabulary} tokens, and the policy samples from {most}",
                "name a model whose vocab_size is no smaller, or remove the key",
            ),
            (
                described.context < longest,
                f"reads {described.context} tokens, and prompt.max_prompt_tokens + rollout.max_new_tokens = {longest}",
                "name another model, or lower one of them",
            ),
        ):
            if refused:
                raise conflict(f"critic.path = {critic.path!r} {why}", remedy=remedy, key="critic.path")


def check_start(config: Config) -> None:
    """Raise ConfigError where `critic.start` is not a checkpoint of a run with a value model."""
    critic = config.critic
    if not isinstance(critic, TrainedCritic) or critic.start is None:
        return
    path = Path(os.path.expanduser(critic.start)) / TENSORS
    unreadable, wrong = f"critic.start: {path} cannot be read", (OSError, SafetensorError)
    remedy = "name a folder like RUN/checkpoints/step-000010 of a run with a value model"
    refusal = errors_as(ConfigError, unreadable, remedy, key="critic.start", code="config.value", of=wrong)
    from winnow.learner.optimizer import VALUE_MODEL  # imported late: `winnow check` computes with no model
    from winnow.learner.value_model import MOMENT, PARAMETER

    with refusal, safe_open(path, framework="np") as file:
        names = list(file.keys())
    if not any(name.startswith((f"{VALUE_MODEL}{PARAMETER}", f"{VALUE_MODEL}{MOMENT}")) for name in names):
        raise ConfigError(
            f"critic.start = {critic.start!r} is a checkpoint of a run without a separate value model",
            remedy="name one of a run whose critic.form is 'adapter' or 'model', or remove the key",
            key="critic.start",
            code="config.value",
        )
