"""The first prompt of a run, rendered, with what ends its rollouts and the tags in the policy's vocabulary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from winnow.config import Config
from winnow.engines.stopping import split_stops
from winnow.models.load import model_stop_tokens
from winnow.records import Prompt

TAG = re.compile(r"</?\w+>")


@dataclass(frozen=True)
class FirstPrompt:
    """One prompt of a run."""

    prompt: Prompt
    stops: tuple[str, ...]  # tokens that end a rollout
    strings: tuple[str, ...]  # texts that end a rollout
    known: frozenset[str]  # tags that are single tokens, so the policy was trained to write them

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Any, config: Config) -> FirstPrompt:
        """The first prompt with its stops. Reads the settings of the configured model, and no weights."""
        named, strings = split_stops(tokenizer, config.rollout.stop)
        tokens = sorted({*model_stop_tokens(config.model.path, tokenizer), *named})
        stops = (tokenizer.convert_ids_to_tokens(token) or f"token {token}" for token in tokens)
        tags = (token.content for token in tokenizer.added_tokens_decoder.values() if TAG.fullmatch(token.content))
        return cls(prompt, tuple(stops), strings, frozenset(tags))
