"""Encoded prompts, so that a prompt is encoded once for all of its rollouts."""

from __future__ import annotations

from collections import OrderedDict

from winnow.records import Prompt
from winnow.verify.codec import encode_prompt


class EncodedPrompts:
    """A cache of `most` bytes of the most recently used prompts, or of the last one alone where it is larger."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        # By id(prompt), which is unique because the cache keeps the prompt alive
        self._cached: OrderedDict[int, tuple[Prompt, bytes]] = OrderedDict()

    def __call__(self, prompt: Prompt) -> bytes:
        """The encoded prompt. Raises DataError when its answer or meta is not JSON."""
        cached = self._cached.get(id(prompt))
        if cached is not None:
            self._cached.move_to_end(id(prompt))
            return cached[1]
        encoded = encode_prompt(prompt)
        self._cached[id(prompt)] = prompt, encoded
        self._bytes += len(encoded)
        while self._bytes > self._most and len(self._cached) > 1:
            _, (_, oldest) = self._cached.popitem(last=False)
            self._bytes -= len(oldest)
        return encoded
