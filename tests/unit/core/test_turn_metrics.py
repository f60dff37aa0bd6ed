"""The metrics of turns, from rollouts by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from winnow.config import EnvironmentSection
from winnow.core.metrics import turn_metrics
from winnow.families import EnvironmentTraits
from winnow.records import Group, Prompt, Rollout

PROMPT = Prompt(id="p", tokens=np.array([1]), text="?", answer="1", task="t")
CALL = "<call>calculator 1</call>"


def members(*tools: str, form: str = "auto") -> Any:
    section = EnvironmentSection(use="mine", max_turn_tokens=3)
    environment = SimpleNamespace(traits=EnvironmentTraits(tools=tools), options={"call_form": form})
    return SimpleNamespace(config=SimpleNamespace(environment=section), environment=environment)


def rollout(index: int, mask: str, *turns: str) -> Rollout:
    sampled = np.array([token == "p" for token in mask])
    return Rollout(
        index=index,
        tokens=np.ones(len(mask), dtype=np.int64),
        logprobs=np.zeros(len(mask)),
        text="\n".join(turns[::2]),
        finish="stop",
        version=0,
        trainable=sampled,
        turns=turns,
    )


GROUPS = [
    Group(prompt=PROMPT, rollouts=(rollout(0, "ppeepppep", CALL, "1", "a", "b", CALL + CALL), rollout(1, "pp", "a"))),
    Group(prompt=PROMPT, rollouts=(rollout(0, "pppepp", "<call>", "error", "a"),)),
]


def test_turns_are_counted_by_hand():
    """3 + 1 + 2 turns, of which two have 3 tokens; one of three rollouts has a single turn."""
    found = turn_metrics(members(), GROUPS)
    assert found == {
        "environment/turns_mean": 2.0,
        "environment/one_turn": pytest.approx(1 / 3),
        "environment/turns_cut_off": pytest.approx(2 / 6),
    }


def test_calls_are_counted_where_there_are_tools():
    """A turn with two calls counts once, and a malformed call counts."""
    assert turn_metrics(members("calculator"), GROUPS)["environment/tool_calls"] == pytest.approx(3 / 3)


def test_calls_are_counted_in_the_form_of_the_environment():
    turn = '{"name": "f", "parameters": {}}'
    groups = [Group(prompt=PROMPT, rollouts=(rollout(0, "ppepp", turn, "x", "y"), rollout(1, "p", "y")))]
    found = {form: turn_metrics(members("f", form=form), groups) for form in ("auto", "llama3")}
    assert [found[form]["environment/tool_calls"] for form in found] == [0.0, 0.5]


def test_there_are_none_without_an_environment():
    without: Any = SimpleNamespace(config=SimpleNamespace(environment=None), environment=None)
    assert turn_metrics(without, GROUPS) == {}
    assert turn_metrics(members(), []) == {}
