"""The first prompt of a run, rendered: what the policy will read, where its rollouts end, and which tags it knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from winnow.config import Config
from winnow.engines.stopping import divide_stops
from winnow.models.load import ends
from winnow.records import Prompt

TAG = re.compile(r"</?\w+>")


@dataclass(frozen=True)
class FirstPrompt:
    """One prompt of a run."""

    prompt: Prompt
    stops: tuple[str, ...]  # the tokens that end a rollout
    strings: tuple[str, ...]  # the texts that do
    known: frozenset[str]  # the tags that are tokens of their own, which the policy was trained on

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Any, config: Config) -> FirstPrompt:
        """Reads the settings of the model that is configured, and no weight."""
        named, strings = divide_stops(tokenizer, config.rollout.stop)
        tokens = sorted({*ends(config.model.path, tokenizer), *named})
        stops = (tokenizer.convert_ids_to_tokens(token) or f"token {token}" for token in tokens)
        tags = (token.content for token in tokenizer.added_tokens_decoder.values() if TAG.fullmatch(token.content))
        return cls(prompt, tuple(stops), strings, frozenset(tags))
