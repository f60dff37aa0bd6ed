"""A prompt without the template that all prompts of a task share: what is left is its question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

ENDS, STARTS = "\n>]", "\n<["  # of a line and of a template's marks: a frame never ends within words


@dataclass(frozen=True, slots=True)
class Frame:
    """So many characters before a question, and so many after it, are alike in all prompts."""

    before: int = 0
    after: int = 0

    @classmethod
    def of(cls, prompts: Sequence[str]) -> Self:
        """No frame where there is only one prompt, of which nothing tells template and question apart."""
        different = list(dict.fromkeys(prompts))
        if len(different) < 2:
            return cls()
        same = _alike(different)
        before = max(same.rfind(end) for end in ENDS) + 1
        same = _alike([prompt[before:][::-1] for prompt in different])[::-1]
        starts = [at for start in STARTS if (at := same.find(start)) >= 0]
        return cls(before, len(same) - min(starts) if starts else 0)

    def question(self, prompt: str) -> str:
        """What is the prompt's own; all of it where that is nothing."""
        return prompt[self.before : len(prompt) - self.after].strip() or prompt


def _alike(texts: Sequence[str]) -> str:
    """What all of them begin with: in order, the first and the last text differ earliest."""
    first, last = min(texts), max(texts)
    return first[
        : next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    ]
