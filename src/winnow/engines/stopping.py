"""When a rollout is over, and what its text is then."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from winnow.errors import ConfigError, EngineError
from winnow.records import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PART_OF_A_CHARACTER = "\ufffd"


class StopRule:
    """Ends a rollout on a stop token, or once its text holds a stop string, which may end inside the newest token.

    Decoding after every token would cost more than sampling it. `watch` [V] therefore says which tokens can end a
    rollout at all; only a rollout that has just got one of those needs `ends`, and that decodes the end of its text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_tokens: tuple[int, ...], vocabulary: int, stop: tuple[str, ...]
    ) -> None:
        named, self.strings = divide_stops(tokenizer, stop)
        self.tokens = tuple(sorted({*stop_tokens, *named}))
        self._tokenizer = tokenizer
        self._longest = max(map(len, self.strings), default=0)
        self._width = np.zeros(vocabulary, dtype=np.int64)  # [V] characters that a token adds to a text, or more
        self.stops = np.zeros(vocabulary, dtype=np.bool_)  # [V] the stop tokens
        self.stops[list(self.tokens)] = True
        self.watch = self.stops.copy()
        if self.strings:
            self._look_at_every_token(min(vocabulary, len(tokenizer)))

    def ends(self, tokens: IntArray) -> bool:
        """Whether the newest of these tokens [L] ends the rollout; none before it did."""
        if not len(tokens) or not self.watch[tokens[-1]]:
            return False
        if self.stops[tokens[-1]]:
            return True
        return self._end(self._tail(tokens)) is not None and self._end(self._decoded(tokens)) is not None

    def read(self, tokens: IntArray) -> tuple[str, bool]:
        """The text of a finished rollout [L], cut right after its first stop string, and whether it was stopped."""
        text = self._decoded(tokens)
        end = self._end(text)
        return text[:end], end is not None or bool(len(tokens) and self.stops[tokens[-1]])

    def _decoded(self, tokens: IntArray) -> str:
        """As the tokens spell it: tidying up spaces would take some of them away once more text follows."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _end(self, text: str) -> int | None:
        """Where the stop string ends that is complete first."""
        return min((text.index(stop) + len(stop) for stop in self.strings if stop in text), default=None)

    def _tail(self, tokens: IntArray) -> str:
        """The end of the text, from before any stop string that the newest token can have completed.

        Decoders may drop the first space of what they are given, and show a character that begins before it as
        replacement characters; the tail is taken longer until neither can touch a stop string.
        """
        needed = self._longest + int(self._width[tokens[-1]])
        count = self._longest + 1
        while True:
            text = self._decoded(tokens[-count:])
            if count >= len(tokens) or (len(text) >= needed and not text.startswith(_PART_OF_A_CHARACTER)):
                return text
            count *= 2

    def _look_at_every_token(self, known: int) -> None:
        """Which tokens can complete a stop string, and how much they add to a text.

        Each is decoded after itself, as some decoders drop the space before the first token.
        """
        last = tuple({stop[-1] for stop in self.strings})
        pieces = any(not character.isascii() for character in last)  # such a character may be spelled in several tokens
        texts = self._tokenizer.batch_decode(
            [[token, token] for token in range(known)], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        wanted = (*last, _PART_OF_A_CHARACTER) if pieces else last
        self._width[:known] = [len(text) for text in texts]
        self.watch[:known] |= [any(character in text for character in wanted) for text in texts]


def stop_rules(
    tokenizer: PreTrainedTokenizerBase, stop_tokens: tuple[int, ...], vocabulary: int
) -> Callable[[tuple[str, ...]], StopRule]:
    """stop strings -> their rule, made once for each set of them: every token of the vocabulary is looked at for it."""
    return functools.cache(functools.partial(StopRule, tokenizer, stop_tokens, vocabulary))


def divide_stops(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Those that are special tokens, by their ids, and those to be found in the text, which leaves special tokens out.

    Raises EngineError for an empty one, and ConfigError for one that holds a special token among other text: it would
    never be found.
    """
    if "" in stop:
        raise EngineError("an empty stop string would end every rollout at its first token; leave it out")
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    strings = tuple(text for text in stop if text not in special)
    for text in strings:
        if held := next((name for name in special if name in text), None):
            raise ConfigError(
                f"rollout.stop: {text!r} holds the special token {held!r}, which the text of a rollout leaves out, so "
                f"no rollout would ever end there; write {held!r} alone, which makes it a stop token"
            )
    return tuple(special[text] for text in stop if text in special), strings
