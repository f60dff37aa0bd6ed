"""Groups, selectors and allocators for rollouts that another program sampled.

winnow's trainer makes its groups of an engine's rollouts and of verdicts. Another trainer, or its log, has rewards,
perhaps tokens and texts, and no verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from winnow.algos.selectors import Selector, chain
from winnow.errors import ConfigError
from winnow.families import ALLOCATOR, SELECTOR, AllocatorTraits, Family, SelectorTraits
from winnow.options import Bound, bind
from winnow.records import FloatArray, Group, IntArray, Outcome, Prompt, PromptStats, Rollout
from winnow.registry import Entry, resolve

CORRECT_AT = 1.0  # as for a reward function that returns a bare number
Use = str | Callable[..., Any] | Mapping[str, Any]  # a name, "file.py:function", a function, or a table with `use`


def prompt_id(prompt: Any) -> str:
    """An id of a prompt that has none, equal in every run and process: its text, or its messages as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=repr)


def plain_group(
    prompt: str,
    rewards: FloatArray,
    *,
    tokens: Sequence[IntArray],
    texts: Sequence[str] | None = None,
    finished: Sequence[bool] | None = None,
    version: int = 0,
) -> Group:
    """A verified group of one prompt, `prompt` being its id: rewards [N] (NaN: not judged), tokens N x [L].

    A rollout counts as correct from a reward of `CORRECT_AT` on. `finished` [N] is False where a rollout was cut off at
    the maximum length; by default none was. Log-probs are NaN.
    """
    texts = [""] * len(rewards) if texts is None else texts
    finished = [True] * len(rewards) if finished is None else finished
    return Group(
        prompt=Prompt(id=prompt, tokens=np.zeros(0, np.int64), text="", answer=None, task=""),
        rollouts=tuple(
            Rollout(
                index=index,
                tokens=own,
                logprobs=np.full(len(own), np.nan),
                text=text,
                finish="stop" if ended else "length",
                version=version,
            )
            for index, (own, text, ended) in enumerate(zip(tokens, texts, finished, strict=True))
        ),
        outcomes=tuple(_outcome(reward) for reward in rewards.tolist()),
    )


def _outcome(reward: float) -> Outcome:
    if np.isnan(reward):
        return Outcome(reward=reward, correct=None, kind="failed", cause="malformed", detail="no reward was computed")
    correct = reward >= CORRECT_AT
    return Outcome(reward=reward, correct=correct, kind="correct" if correct else "wrong")


def plain_stats(prompts: Sequence[str], visits: Mapping[str, tuple[int, int]]) -> PromptStats:
    """The statistics of G prompts from their (correct, judged) rollouts so far. Gradient norms are not known."""
    known = np.array([visits.get(name, (0, 0)) for name in prompts], dtype=np.float64).reshape(-1, 2)
    correct, trials = known[:, 0], known[:, 1]
    with np.errstate(invalid="ignore"):
        rates = np.where(trials > 0, correct / trials, np.nan)
    norms = np.full(len(prompts), np.nan)
    return PromptStats(ids=tuple(prompts), pass_rate=rates, gradient_norm=norms, trials=trials, correct=correct)


def pairs(entry: Entry[AllocatorTraits]) -> dict[str, int]:
    """The `minimum` of 2 that a group baseline needs, for an allocator of winnow whose default is lower."""
    return {"minimum": 2} if entry.package == "winnow" and entry.defaults.get("minimum", 2) < 2 else {}


def allocator_of(use: Use, *, base: Path | None = None) -> Bound[AllocatorTraits]:
    """The allocator, with the minimum of 2 that a group baseline needs, as in training.

    Raises ConfigError for an unknown member or option, and for a table that names no member.
    """
    entry, table = _member(ALLOCATOR, use, base)
    return bind(entry, {**pairs(entry), **table}, key=ALLOCATOR.key)


def selector_of(use: Use | Sequence[Use], *, keep: int, base: Path | None = None) -> Selector:
    """One selector from a member, or from several that are applied in their order, with their options set.

    A selector with the option `keep_per_prompt` gets `keep`, unless its table sets the option. A file in a name is
    relative to `base`. Raises ConfigError for an unknown member or option, and for an empty list.
    """
    links = _links(use)
    if not links:
        raise ConfigError(
            "the list of selectors is empty", remedy="name one, such as 'all'", key="select", code="config.value"
        )
    bound = []
    for entry, table in (_member(SELECTOR, link, base) for link in links):
        given = {"keep_per_prompt": keep} if _takes_keep(entry, table) else {}
        bound.append(bind(entry, {**given, **table}, key="select"))
    return chain(bound)


def takes_keep(use: Use | Sequence[Use], *, base: Path | None = None) -> bool:
    """Whether `selector_of` gives its `keep` to any of these selectors."""
    return any(_takes_keep(*_member(SELECTOR, link, base)) for link in _links(use))


def uses_of(use: Use | Sequence[Use]) -> list[Any]:
    """The name, or the function, of each of these selectors."""
    return [link.get("use") if isinstance(link, Mapping) else link for link in _links(use)]


def _links(use: Use | Sequence[Use]) -> Sequence[Any]:
    return list(use) if isinstance(use, (list, tuple)) else [use]


def _takes_keep(entry: Entry[SelectorTraits], table: Mapping[str, Any]) -> bool:
    return "keep_per_prompt" in entry.options and "keep_per_prompt" not in table


def _member(family: Family[Any], use: Use, base: Path | None) -> tuple[Entry[Any], dict[str, Any]]:
    """A member and the options that its table sets."""
    table = dict(use) if isinstance(use, Mapping) else {"use": use}
    name = table.pop("use", None)
    if not (isinstance(name, str) or callable(name)):
        raise ConfigError(
            f"{family.key} = {use!r} names no {family.name}",
            remedy="name one, in a table by `use`",
            key=f"{family.key}.use",
            code="config.missing_key",
        )
    return resolve(family, name, base=base), table
