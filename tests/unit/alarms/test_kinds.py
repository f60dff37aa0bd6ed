"""The declarations of all alarms. tests/unit/commands/list/test_catalog.py compares their table with the code."""

from __future__ import annotations

from winnow.alarms.rules import ALARMS
from winnow.commands.list import keys
from winnow.config import AlarmsSection
from winnow.metrics import METRICS


def test_alarms_name_keys_limits_and_metrics_that_exist():
    known = {
        "keys": {key.name for key in keys()} | {"terms"},
        "limits": set(AlarmsSection.model_fields),
        "reads": set(METRICS) | {"loss/kl"},
    }
    unknown = [(kind.name, set(getattr(kind, part)) - names) for kind in ALARMS for part, names in known.items()]
    assert [pair for pair in unknown if pair[1]] == []


def test_the_texts_of_alarms_are_clauses_of_one_sentence():
    texts = [text for kind in ALARMS for text in (kind.meaning, kind.cause)]
    assert [text for text in texts if not text[0].islower() or text.endswith(".")] == []


def test_every_limit_belongs_to_an_alarm():
    general = {"off", "clear_steps"}
    assert {limit for kind in ALARMS for limit in kind.limits} | general == set(AlarmsSection.model_fields)
