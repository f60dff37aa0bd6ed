"""The end of a rollout by stop tokens and stop strings, and its text."""

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

_REPLACEMENT = "\ufffd"  # decoders write it for an incomplete character
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # the name of a token of one byte, in tokenizers with byte fallback
_UNRELIABLE = 4  # characters at the start of a decoded tail that may differ from those of the whole text


class StopRule:
    """Ends a rollout at a stop token, or once its text contains a stop string, which may end inside the newest token.

    Decoding after every token would cost more than sampling it. `watch` [V] therefore marks the tokens that can end a
    rollout. `ends` is needed only after one of those, and decodes only the end of the text, so its cost does not grow
    with the rollout.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_tokens: tuple[int, ...], vocabulary: int, stop: tuple[str, ...]
    ) -> None:
        named, self.strings = split_stops(tokenizer, stop)
        self.tokens = tuple(sorted({*stop_tokens, *named}))
        self._decoded = _decoder(tokenizer)
        self._longest = max(map(len, self.strings), default=0)
        self._width = np.zeros(vocabulary, dtype=np.int64)  # [V] upper bound of the characters that a token adds
        self.stops = np.zeros(vocabulary, dtype=np.bool_)  # [V] the stop tokens
        self.stops[list(self.tokens)] = True
        self.watch = self.stops.copy()
        self._joined = np.zeros(vocabulary, dtype=np.bool_)  # [V] tokens whose text may depend on those before them
        if self.strings:
            self._classify_tokens(tokenizer, min(vocabulary, len(tokenizer)))

    def ends(self, tokens: IntArray | Sequence[int]) -> bool:
        """Whether the last of a rollout's tokens [L] ends it; no earlier one did. Only the last few are read."""
        if not len(tokens):
            return False
        last = tokens[-1]
        if self.stops[last] or not self.watch[last]:
            return bool(self.stops[last])
        return self._stop_end(self._tail(tokens, self._longest + int(self._width[last]))) is not None

    def read(self, tokens: IntArray) -> tuple[str, bool]:
        """The text of a finished rollout [L], cut right after its first stop string, and whether it was stopped."""
        text = self._decoded(tokens)
        end = self._stop_end(text)
        return text[:end], end is not None or bool(len(tokens) and self.stops[tokens[-1]])

    def _stop_end(self, text: str) -> int | None:
        """The earliest end of a stop string in the text; None if there is none."""
        return min((text.index(stop) + len(stop) for stop in self.strings if stop in text), default=None)

    def _tail(self, tokens: IntArray | Sequence[int], needed: int) -> str:
        """The last `needed` characters of the text, or all of it; they contain any stop string that the newest token
        completes.

        They equal those of the whole text, because the first decoded token changes the result in three ways only:

        - A decoder may drop a space or a word-start marker at the start.
        - It may write the rest of a split character as up to three replacement characters. This and the first way
          change only the first `_UNRELIABLE` characters.
        - It may decode a run of byte tokens as a whole, and replace all of it if one byte is invalid. A tail
          therefore never starts with a byte token, nor with a special token, which may be inside a run.
        """
        count = self._longest + 1
        while count < len(tokens):
            end = np.array(tokens[-count:], dtype=np.int64)
            text = self._decoded(end[np.logical_and.accumulate(self._joined[end]).sum() :])
            if len(text) >= needed + _UNRELIABLE:
                return text[-needed:]
            count *= 2
        return self._decoded(np.array(tokens, dtype=np.int64))

    def _classify_tokens(self, tokenizer: PreTrainedTokenizerBase, known: int) -> None:
        """Set the tokens that can complete a stop string, the characters that each adds, and those decoded in runs.

        Each token is decoded after itself, because some decoders drop the space before the first token.
        """
        last = tuple({stop[-1] for stop in self.strings})
        pieces = any(not character.isascii() for character in last)  # it may be split over several tokens
        texts = [self._decoded(np.array([token, token])) for token in range(known)]
        endings = (*last, _REPLACEMENT) if pieces else last
        self._width[:known] = [len(text) for text in texts]
        self.watch[:known] |= [any(character in text for character in endings) for text in texts]
        joined = np.array([bool(_BYTE.fullmatch(str(name))) for name in tokenizer.convert_ids_to_tokens(range(known))])
        if joined.any():
            self._joined[:] = True  # texts omit ids without a token, like special tokens
            self._joined[:known] = joined
            self._joined[[number for number in special_tokens(tokenizer).values() if number < known]] = True


def stop_rules(
    tokenizer: PreTrainedTokenizerBase, stop_tokens: tuple[int, ...], vocabulary: int
) -> Callable[[tuple[str, ...]], StopRule]:
    """A function from stop strings to their rule, cached because making one decodes the whole vocabulary."""
    return functools.cache(functools.partial(StopRule, tokenizer, stop_tokens, vocabulary))


def split_stops(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Split stop strings into the ids of special tokens, and the strings to find in the text.

    The text of a rollout omits special tokens. Raises EngineError for an empty string, and ConfigError for one that
    contains a special token among other text, because it would never be found.
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
        if token := next((name for name in special if name in text), None):
            raise ConfigError(
                f"rollout.stop: {text!r} holds the special token {token!r}, which the text of a rollout omits, so no "
                f"rollout would ever end there",
                remedy=f"write {token!r} alone, which makes it a stop token",
                key="rollout.stop",
                code="config.value",
            )
    return tuple(special[text] for text in stop if text in special), strings


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special tokens, which the text of a rollout omits, and their ids."""
    return {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def text_keeping(tokenizer: PreTrainedTokenizerBase, kept: Sequence[str]) -> Callable[[IntArray, str], str]:
    """A function from a rollout's tokens [L] and its text to the text with these special tokens in their places.

    A tool call begins with a special token in several models, and the text of a rollout omits it.
    """
    special = special_tokens(tokenizer)
    marks = {special[name] for name in kept if name in special}
    omitted = set(special.values()) - marks

    def text_of(tokens: IntArray, text: str) -> str:
        if marks.isdisjoint(tokens.tolist()):
            return text
        decode = functools.partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        beyond = len(str(decode(tokens, skip_special_tokens=True))) - len(text)  # after a stop string
        whole = str(decode([token for token in tokens.tolist() if token not in omitted], skip_special_tokens=False))
        return whole[: len(whole) - beyond]

    return text_of


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[IntArray], str]:
    """A function from tokens [L] to text. It does not clean up spaces: that could change the text so far once more
    tokens follow.

    Of the library's two decoding functions, the one for batches releases Python's lock while it decodes.
    """
    from transformers import PreTrainedTokenizerFast

    if getattr(type(tokenizer), "_decode", None) is PreTrainedTokenizerFast._decode:
        batch = tokenizer.backend_tokenizer.decode_batch
        return lambda tokens: str(batch([tokens.tolist()], skip_special_tokens=True)[0])
    decode = functools.partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return lambda tokens: str(decode(tokens))
