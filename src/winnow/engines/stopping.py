"""When a rollout is over, and what its text is then."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from winnow.errors import ConfigError, EngineError
from winnow.records import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Newest = Callable[[int], IntArray]  # n -> a rollout's last n tokens
_PART_OF_A_CHARACTER = "\ufffd"
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # the name of a token that is one byte, to decoders with byte fallback
_BLURRED = 4  # characters at the start of a decoded tail that may not be those of the whole text


class StopRule:
    """Ends a rollout on a stop token, or once its text holds a stop string, which may end inside the newest token.

    Decoding after every token would cost more than sampling it. `watch` [V] therefore says which tokens can end a
    rollout at all; only a rollout that has just got one of those needs `ends`, and that decodes the end of its text:
    what it costs does not grow with the rollout.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_tokens: tuple[int, ...], vocabulary: int, stop: tuple[str, ...]
    ) -> None:
        named, self.strings = divide_stops(tokenizer, stop)
        self.tokens = tuple(sorted({*stop_tokens, *named}))
        self._decoded = _decoder(tokenizer)
        self._longest = max(map(len, self.strings), default=0)
        self._width = np.zeros(vocabulary, dtype=np.int64)  # [V] characters that a token adds to a text, or more
        self.stops = np.zeros(vocabulary, dtype=np.bool_)  # [V] the stop tokens
        self.stops[list(self.tokens)] = True
        self.watch = self.stops.copy()
        self._joined = np.zeros(vocabulary, dtype=np.bool_)  # [V] whose text may depend on the tokens before them
        if self.strings:
            self._look_at_every_token(tokenizer, min(vocabulary, len(tokenizer)))

    def ends(self, length: int, newest: Newest) -> bool:
        """Whether the last of a rollout's `length` tokens ends it; none before did. `newest` gives its last n tokens,
        n <= length, and is asked for few.
        """
        if not length:
            return False
        last = newest(1)[-1]
        if self.stops[last] or not self.watch[last]:
            return bool(self.stops[last])
        return self._end(self._tail(length, newest, self._longest + int(self._width[last]))) is not None

    def read(self, tokens: IntArray) -> tuple[str, bool]:
        """The text of a finished rollout [L], cut right after its first stop string, and whether it was stopped."""
        text = self._decoded(tokens)
        end = self._end(text)
        return text[:end], end is not None or bool(len(tokens) and self.stops[tokens[-1]])

    def _end(self, text: str) -> int | None:
        """Where the stop string ends that is complete first."""
        return min((text.index(stop) + len(stop) for stop in self.strings if stop in text), default=None)

    def _tail(self, length: int, newest: Newest, needed: int) -> str:
        """The last `needed` characters of the text, or all of it: any stop string that the newest token completes.

        They are those of the whole text, for what decoders do depends on where they start in three ways only. One
        drops a space or shows a word's mark at the start. One shows the rest of a character that begins earlier as up
        to three replacement characters. Both touch the first `_BLURRED` characters alone. One reads a run of byte
        tokens as a whole, and shows all of it as replacement characters where one is wrong: a tail starts with no such
        token, nor with one that a text leaves out, as that may lie within a run.
        """
        count = self._longest + 1
        while count < length:
            tokens = newest(count)
            text = self._decoded(tokens[np.logical_and.accumulate(self._joined[tokens]).sum() :])
            if len(text) >= needed + _BLURRED:
                return text[-needed:]
            count *= 2
        return self._decoded(newest(length))

    def _look_at_every_token(self, tokenizer: PreTrainedTokenizerBase, known: int) -> None:
        """Which tokens can complete a stop string, how much they add to a text, and which are read in runs.

        Each is decoded after itself, as some decoders drop the space before the first token.
        """
        last = tuple({stop[-1] for stop in self.strings})
        pieces = any(not character.isascii() for character in last)  # such a character may be spelled in several tokens
        texts = [self._decoded(np.array([token, token])) for token in range(known)]
        wanted = (*last, _PART_OF_A_CHARACTER) if pieces else last
        self._width[:known] = [len(text) for text in texts]
        self.watch[:known] |= [any(character in text for character in wanted) for text in texts]
        joined = np.array([bool(_BYTE.fullmatch(str(name))) for name in tokenizer.convert_ids_to_tokens(range(known))])
        if joined.any():
            self._joined[:] = True  # ids without a token are left out of texts, like special tokens
            self._joined[:known] = joined
            self._joined[[number for number in special_tokens(tokenizer).values() if number < known]] = True


def last_of(tokens: IntArray) -> Newest:
    """The last n of these tokens [L]."""
    return lambda count: tokens[-count:]


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
        raise EngineError(
            "an empty stop string would end every rollout at its first token",
            remedy="remove it",
            key="rollout.stop",
            code="engine.contract",
        )
    special = special_tokens(tokenizer)
    strings = tuple(text for text in stop if text not in special)
    for text in strings:
        if held := next((name for name in special if name in text), None):
            raise ConfigError(
                f"rollout.stop: {text!r} holds the special token {held!r}, which the text of a rollout omits, so no "
                f"rollout would ever end there",
                remedy=f"write {held!r} alone, which makes it a stop token",
                key="rollout.stop",
                code="config.value",
            )
    return tuple(special[text] for text in stop if text in special), strings


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Those that the text of a rollout leaves out, with their ids."""
    return {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[IntArray], str]:
    """Tokens [L] -> text, as they spell it: tidying up spaces would take some away once more text follows.

    Of the library's own two functions for it, that for batches releases Python's lock while it decodes.
    """
    from transformers import PreTrainedTokenizerFast

    if getattr(type(tokenizer), "_decode", None) is PreTrainedTokenizerFast._decode:
        batch = tokenizer.backend_tokenizer.decode_batch
        return lambda tokens: str(batch([tokens.tolist()], skip_special_tokens=True)[0])
    decode = functools.partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return lambda tokens: str(decode(tokens))
