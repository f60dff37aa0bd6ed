"""The first prompt as the policy will read it, where its rollouts end, and whether it asks for what rewards read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from winnow.models.load import ends
from winnow.records import Prompt
from winnow.registry import resolve
from winnow.report.text import quoted
from winnow.tasks.templates import PLAIN
from winnow.training.members import Members

SHOWN = 3000  # characters
_TAG = re.compile(r"</?\w+>")


@dataclass(frozen=True)
class FirstPrompt:
    """One prompt of a run, rendered."""

    prompt: Prompt
    stops: tuple[str, ...]  # the tokens that end a rollout
    known: frozenset[str]  # the tags that are tokens of the policy's own: it has met them in training

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Any, path: str) -> FirstPrompt:
        """Reads the settings of the model at `path`, and no weight."""
        stops = (tokenizer.convert_ids_to_tokens(end) or f"token {end}" for end in ends(path, tokenizer))
        tags = (token.content for token in tokenizer.added_tokens_decoder.values() if _TAG.fullmatch(token.content))
        return cls(prompt, tuple(stops), frozenset(tags))

    def lines(self, stop: Sequence[str]) -> Iterator[str]:
        """For a person: the prompt behind a bar, and where its rollouts end."""
        yield f"{'prompt':<13}{self.prompt.id}, {len(self.prompt.tokens)} tokens, as the policy reads it:"
        yield quoted(self.prompt.text, limit=SHOWN, indent=" " * 13)
        strings = f", or as soon as the text ends in {' or '.join(map(repr, stop))}" if stop else ""
        yield f"{'stop':<13}at {' or '.join(self.stops)}{strings}"


def unasked(members: Members, first: FirstPrompt) -> Iterator[str]:
    """A sentence per reward that reads its answer in a form which the prompt does not ask for."""
    for part in members.reward.get("parts", [members.reward]):
        entry = resolve("reward", part["use"], base=members.base)
        forms: Sequence[Sequence[str]] = entry.traits.get("asks", ())
        if forms and not any(all(_asked(mark, first) for mark in form) for form in forms):
            wanted = ", or ".join(" and ".join(f"'{mark}'" for mark in form) for form in forms)
            fitting = [name for name, text in PLAIN.items() if all(mark in text for mark in forms[0])]
            template = "".join(f", set prompt.template = {name!r}" for name in fitting)
            yield (
                f"reward = {entry.name!r} reads an answer by {wanted}, and the prompt asks for it nowhere: a "
                f"policy that was not taught to write so gets no reward, and learns nothing; ask for it in "
                f"prompt.system or in a template of your own{template}, or choose another reward"
            )


def _asked(mark: str, first: FirstPrompt) -> bool:
    """It stands in the prompt, or consists of tags that the policy has met as tokens of their own."""
    tags = _TAG.findall(mark)
    return mark in first.prompt.text or (bool(tags) and first.known.issuperset(tags))
