"""The form of tool calls fits the tokenizer's chat template, unless the configuration sets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chat_templates import LIKE, like
from winnow.config_file import validate
from winnow.core.members import Members
from winnow.training.prompts import with_call_form
from winnow.training.resolve import resolve_members


def members(**environment: Any) -> Members:
    section = {"environment": {"max_turn_tokens": 8, **environment}} if environment else {"reward": {"use": "boxed"}}
    return resolve_members(validate({"task": {"use": "arithmetic"}, **section}), Path())


@pytest.mark.parametrize("name", LIKE)
def test_it_is_set_for_the_workers_and_for_this_process(name: str) -> None:
    before = members(use="calculator", calls=2)
    after = with_call_form(before, like(name))
    form = {"llama3_2": "llama3", "mistral": "mistral"}.get(name, "hermes")
    assert after.environment is not None
    assert after.environment.options == {"calls": 2, "call_form": form}
    assert after.reward == {**before.reward, "options": {"calls": 2, "call_form": form}}
    assert after.config == before.config, "a resumed run has the same configuration"


@pytest.mark.parametrize(
    "environment", [{}, {"use": "guess_number"}, {"use": "calculator", "call_form": "hermes"}], ids=str
)
def test_it_is_not_set_where_nothing_reads_it_or_the_configuration_does(environment: dict[str, Any]) -> None:
    before = members(**environment)
    assert with_call_form(before, like("mistral")) is before
