"""The table of all alarms, and the page that is made of it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from winnow.alarms import ALARMS
from winnow.commands.config_keys import keys
from winnow.config import AlarmsSection
from winnow.metrics import METRICS

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "alarms_page.py"))
each_kind = pytest.mark.parametrize("kind", ALARMS, ids=lambda kind: kind.name)


def test_the_page_is_what_the_code_says():
    committed = SCRIPT["PAGE"].read_text(encoding="utf-8")
    assert committed == SCRIPT["page"](committed), "run `python scripts/alarms_page.py`, and commit the page"
    for kind in ALARMS:
        assert committed.count(f"| `{kind.name}` |") == 1


@each_kind
def test_an_alarm_names_keys_limits_and_metrics_that_exist(kind):
    known = {key.name for key in keys()} | {"terms"}
    assert set(kind.keys) <= known, set(kind.keys) - known
    assert set(kind.limits) <= set(AlarmsSection.model_fields)
    assert set(kind.reads) <= set(METRICS) | {"loss/kl"}


@each_kind
def test_its_sentences_are_clauses_of_one_sentence(kind):
    for text in (kind.meaning, kind.cause):
        assert text[0].islower()
        assert not text.endswith(".")


def test_every_limit_is_one_of_an_alarm():
    general = {"off", "clear_steps"}
    assert {limit for kind in ALARMS for limit in kind.limits} | general == set(AlarmsSection.model_fields)
