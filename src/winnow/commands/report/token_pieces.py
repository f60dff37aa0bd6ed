"""The text of each token of a rollout, so that the pieces join to the exact text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST = 16  # tokens that form one character or word together; a character of UTF-8 has at most 4 bytes
UNFINISHED = "\ufffd"  # a tokenizer's output for bytes that are no character, or not yet a whole one


class TokenPieces:
    """The pieces from one tokenizer. The texts of single tokens and pairs are cached."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer)
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, tokens: Sequence[int], text: str) -> list[str] | None:
        """A piece per token. Tokens that end within a character get "", and the token that completes the character gets
        it. Special tokens, which a rollout's text lacks, and tokens after a stop string also get "".

        None if the tokens do not decode to this text.
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
        """The pieces of the next token, or of the next few tokens that only together form a text."""
        for end in range(first + 1, min(first + MOST, len(ids)) + 1):
            for written in self._written(ids, first, end):
                whole = not written.endswith(UNFINISHED) or end == len(ids)
                if whole and text.startswith(written, at):
                    return [""] * (end - first - 1) + [written]
                within = whole and at < len(text) and end == first + 1  # a stop string may end the text within a token
                if within and written.startswith(text[at:]):
                    return [text[at:]]
        return [""] if at == len(text) else None

    def _written(self, ids: Sequence[int], first: int, end: int) -> list[str]:
        """The text of tokens alone, and their text after the previous token, where some tokenizers add a space."""
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
