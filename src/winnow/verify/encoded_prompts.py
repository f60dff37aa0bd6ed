"""Prompts as tasks carry them, encoded once for the rollouts that have the same."""

from __future__ import annotations

from collections import OrderedDict

from winnow.records import Prompt
from winnow.verify.codec import encode_prompt


class EncodedPrompts:
    """Holds `most` bytes of those that were asked for last, or the last one alone where it is larger."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        # By id, which is no other prompt's while this one is here
        self._held: OrderedDict[int, tuple[Prompt, bytes]] = OrderedDict()

    def __call__(self, prompt: Prompt) -> bytes:
        """Raises DataError when the prompt's answer or meta is not JSON."""
        held = self._held.get(id(prompt))
        if held is not None:
            self._held.move_to_end(id(prompt))
            return held[1]
        encoded = encode_prompt(prompt)
        self._held[id(prompt)] = prompt, encoded
        self._bytes += len(encoded)
        while self._bytes > self._most and len(self._held) > 1:
            _, (_, oldest) = self._held.popitem(last=False)
            self._bytes -= len(oldest)
        return encoded
