"""Loads a separate value model (an adapter or a model), beside the learner."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from winnow.config import Config
from winnow.errors import ConfigError, RunFolderError
from winnow.learner.critic import Critic, make_critic
from winnow.learner.learner import Learner
from winnow.learner.trained import VALUE_MODEL
from winnow.models.adapter import add_lora
from winnow.models.load import Loaded, load
from winnow.models.model_folder import relabel_errors
from winnow.models.precision import keeps_value_masters
from winnow.state.checkpoint_names import TENSORS


def make_separate_critic(
    config: Config, learner: Learner, policy: Loaded, device: torch.device
) -> tuple[Loaded, Critic | None]:
    """The loaded model of a separate critic, and the critic; the policy's and None where none is configured."""
    critic = config.critic
    if critic is None or critic.form == "shared":
        return policy, None
    loaded = policy if critic.form == "adapter" else _load(config, device, policy.tokenizer)
    return loaded, make_critic(config, critic, learner, loaded)


def load_start(critic: Critic, config: Config) -> None:
    """Initialise a new run's value model from another run's checkpoint, if `critic.start` names one."""
    assert config.critic is not None, "there is no value model without its table"
    if config.critic.start is None:
        return
    path = Path(config.critic.start).expanduser() / TENSORS
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(VALUE_MODEL)}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"critic.start: {path} cannot be read: {error}",
            remedy="name another checkpoint",
            key="critic.start",
            code="config.value",
        ) from error
    try:
        critic.start(tensors)
    except RunFolderError as error:
        raise ConfigError(
            f"critic.start = {config.critic.start!r}: {error.problem}",
            remedy=error.remedy,
            key="critic.start",
            code="config.value",
        ) from error


def _load(config: Config, device: torch.device, tokenizer: Any) -> Loaded:
    """A model of the critic alone, with an adapter where one is trained."""
    critic = config.critic
    assert critic is not None, "there is no value model without its table"
    with relabel_errors("critic.path" if critic.path else "model.path"):
        loaded = load(
            critic.path or config.model.path,
            dtype=config.model.dtype,
            device=str(device),
            tokenizer=tokenizer,
            masters=keeps_value_masters(config),
            quantization=config.model.quantization if critic.lora is not None else None,
        )
    if critic.lora is None:
        return loaded
    return dataclasses.replace(loaded, model=add_lora(loaded.model, **critic.lora.model_dump(), seed=config.seed))
