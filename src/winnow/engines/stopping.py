"""When a rollout is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from winnow.errors import EngineError
from winnow.records import BoolArray, IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PART_OF_A_CHARACTER = "\ufffd"


class StopRule:
    """Ends a rollout on a stop token, or once its text ends in a stop string.

    Decoding after every token would cost more than sampling it. `watch` [V] therefore says which tokens can end a
    rollout at all; only a rollout that has just got one of those needs `ends`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_tokens: tuple[int, ...], vocabulary: int, stop: tuple[str, ...]
    ) -> None:
        if "" in stop:
            raise EngineError("an empty stop string would end every rollout at its first token; leave it out")
        self._tokenizer = tokenizer
        self._stop_tokens = frozenset(stop_tokens)
        self._stop = stop
        self.stops = np.zeros(vocabulary, dtype=np.bool_)  # [V] the stop tokens
        self.stops[list(stop_tokens)] = True
        self.watch = self._watch(vocabulary)

    def text(self, tokens: IntArray) -> str:
        """The text of a rollout with these tokens [L]."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def ends(self, tokens: IntArray, text: str | None = None) -> bool:
        """Whether a rollout with these tokens [L] (and this text, where it is known) is over."""
        if len(tokens) and int(tokens[-1]) in self._stop_tokens:
            return True
        return bool(self._stop) and (self.text(tokens) if text is None else text).endswith(self._stop)

    def _watch(self, vocabulary: int) -> BoolArray:
        watch = self.stops.copy()
        if self._stop:
            known = min(vocabulary, len(self._tokenizer))
            last = tuple({stop[-1] for stop in self._stop})
            texts = self._tokenizer.batch_decode([[token] for token in range(known)])
            watch[:known] |= [_may_end(text, last) for text in texts]
        return watch


def _may_end(text: str, last: tuple[str, ...]) -> bool:
    """Whether a rollout whose newest token decodes to `text` by itself can end in one of the characters `last`."""
    part_of_one = text.endswith(_PART_OF_A_CHARACTER) and not all(character.isascii() for character in last)
    bare_space = not text.strip() and any(character.isspace() for character in last)  # some decoders strip it
    return text.endswith(last) or part_of_one or bare_space
