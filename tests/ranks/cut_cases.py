"""Cuts of a round whose rollouts are divided over the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from winnow import ranks
from winnow.core.cuts import make_cut
from winnow.families import CUT
from winnow.options import bind
from winnow.ranks import deal
from winnow.records import Group, Prompt, Rollout
from winnow.registry import resolve

LENGTHS = {"a": [3, 9, 4], "b": [7], "c": [2, 2, 8, 5], "d": []}


def group_of(name: str) -> Group:
    prompt = Prompt(id=name, tokens=np.array([1]), text=name, answer="", task="t")
    rollouts = tuple(
        Rollout(
            index=index,
            tokens=np.arange(length),
            logprobs=np.full(length, -0.25 * length),
            text="x",
            finish="stop",
            version=0,
        )
        for index, length in enumerate(LENGTHS[name])
    )
    return Group(prompt=prompt, rollouts=rollouts)


def cut_on_ranks(name: str, options: dict[str, Any]) -> dict[str, list[tuple[int, int, str]]]:
    """Of this rank's prompts: tokens, dropped tokens and finish of each rollout."""
    cut = make_cut(bind(resolve(CUT, name), options, key="cut"), spent=3)
    assert cut is not None
    prompts = list(LENGTHS)
    places = deal([len(LENGTHS[prompt]) for prompt in prompts], ranks.count())[ranks.rank()]
    groups = cut(places, [group_of(prompts[place]) for place in places])
    return {g.prompt.id: [(r.length, r.beyond, r.finish) for r in g.rollouts] for g in groups}
