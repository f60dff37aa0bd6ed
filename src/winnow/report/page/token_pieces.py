"""What each token of a rollout wrote, so that the pieces join to the exact text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST = 16  # tokens that write one character or word together; of UTF-8's bytes there are at most 4
UNFINISHED = "\ufffd"  # what a tokenizer writes for bytes that are no character, or not yet


class TokenPieces:
    """Of one tokenizer. What single tokens and pairs write is remembered."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer)
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, tokens: Sequence[int], text: str) -> list[str] | None:
        """A piece per token. Tokens that end within a character write "", and the one that completes it the character;
        so do special tokens, which a rollout's text lacks, and what follows a stop string.

        None where the tokens did not write this text.
        """
        ids = [int(token) for token in tokens]
        if not all(0 <= token < self._size for token in ids):
            return None
        pieces: list[str] = []
        at = 0
        while len(pieces) < len(ids):
            some = self._next(ids, len(pieces), text, at)
            if some is None:
                return None
            pieces += some
            at += sum(map(len, some))
        return pieces if at == len(text) else None

    def _next(self, ids: Sequence[int], first: int, text: str, at: int) -> list[str] | None:
        """The pieces of the next token, or of the next few that write something together only."""
        for end in range(first + 1, min(first + MOST, len(ids)) + 1):
            for written in self._written(ids, first, end):
                whole = not written.endswith(UNFINISHED) or end == len(ids)
                if whole and text.startswith(written, at):
                    return [""] * (end - first - 1) + [written]
                within = whole and at < len(text) and end == first + 1  # a text ends with a stop string, a token later
                if within and written.startswith(text[at:]):
                    return [text[at:]]
        return [""] if at == len(text) else None

    def _written(self, ids: Sequence[int], first: int, end: int) -> list[str]:
        """What tokens write by themselves; and after the one before them, where some tokenizers write a space."""
        alone = self._decoded(tuple(ids[first:end]))
        if first == 0:
            return [alone]
        before = self._decoded((ids[first - 1],))
        both = self._decoded(tuple(ids[first - 1 : end]))
        return [alone, both[len(before) :]] if both.startswith(before) else [alone]

    def _decoded(self, ids: tuple[int, ...]) -> str:
        if ids not in self._known:
            text = str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
            if len(ids) > 2:
                return text
            self._known[ids] = text
        return self._known[ids]
