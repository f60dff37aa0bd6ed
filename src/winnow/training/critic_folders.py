"""Checks of the folders that a value model is loaded from, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from winnow.config import Config
from winnow.errors import ConfigError
from winnow.models.load import describe, load_tokenizer
from winnow.models.model_folder import relabel_errors
from winnow.state.checkpoint_names import TENSORS


def check_value_model(config: Config, tokenizer: Any) -> None:
    """Raise ConfigError or DataError where `critic.path` does not fit the policy. Reads no weights."""
    critic = config.critic
    if critic is None:
        return
    if critic.path is not None:
        with relabel_errors("critic.path"):
            critic_tokenizer, described = load_tokenizer(critic.path), describe(critic.path)
        if critic_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ConfigError(
                f"critic.path = {critic.path!r} has another vocabulary than the policy: a value model reads the "
                f"policy's tokens",
                remedy="name a model of the same family, or remove the key",
                key="critic.path",
                code="config.combination",
            )
        longest = config.prompt.max_prompt_tokens + config.rollout.max_new_tokens
        # Padded embeddings count: the policy can sample an id that its tokenizer has no token for
        most = describe(config.model.path).vocabulary
        if described.vocabulary < most:
            raise ConfigError(
                f"critic.path = {critic.path!r} has embeddings for {described.vocabulary} tokens, and the policy "
                f"samples from {most}",
                remedy="name a model whose vocab_size is no smaller, or remove the key",
                key="critic.path",
                code="config.combination",
            )
        if described.context < longest:
            raise ConfigError(
                f"critic.path = {critic.path!r} reads {described.context} tokens, and prompt.max_prompt_tokens + "
                f"rollout.max_new_tokens = {longest}",
                remedy="name another model, or lower one of them",
                key="critic.path",
                code="config.combination",
            )


def check_start(config: Config) -> None:
    """Raise ConfigError where `critic.start` is not a checkpoint."""
    critic = config.critic
    if critic is None or critic.start is None:
        return
    if not (Path(critic.start).expanduser() / TENSORS).is_file():
        raise ConfigError(
            f"critic.start = {critic.start!r} is not a checkpoint: there is no {TENSORS} in it",
            remedy="name a folder like RUN/checkpoints/step-000010 of a run with a value model",
            key="critic.start",
            code="config.value",
        )
