"""The question of a prompt: the prompt without the template that all prompts of a task share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

ENDS, STARTS = "\n>]", "\n<["  # ends and starts of lines and template marks: a frame never ends within a word


@dataclass(frozen=True, slots=True)
class Frame:
    """The template around the question: the numbers of characters before and after it, equal in all prompts."""

    before: int = 0
    after: int = 0

    @classmethod
    def of(cls, prompts: Sequence[str]) -> Self:
        """The frame of the prompts. It is empty without two different ones, which separate template and question."""
        different = list(dict.fromkeys(prompts))
        if len(different) < 2:
            return cls()
        same = _alike(different)
        before = max(same.rfind(end) for end in ENDS) + 1
        same = _alike([prompt[before:][::-1] for prompt in different])[::-1]
        starts = [at for start in STARTS if (at := same.find(start)) >= 0]
        return cls(before, len(same) - min(starts) if starts else 0)

    def question(self, prompt: str) -> str:
        """The question of a prompt; the whole prompt if that is empty."""
        return prompt[self.before : len(prompt) - self.after].strip() or prompt


def _alike(texts: Sequence[str]) -> str:
    """The common prefix of all texts: it is that of the first and the last text in sorted order."""
    first, last = min(texts), max(texts)
    return first[
        : next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    ]
