"""Trackers in a configuration, and their treatment of names and texts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from refusals import refused
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.registry import members
from winnow.testing import check_member
from winnow.trackers.interface import ROLLOUT
from winnow.trackers.mlflow import MlflowTracker, legal
from winnow.trackers.tensorboard import code_block
from winnow.training import resolve
from winnow.training.resolve import check_installed, resolve_members

NAMES = ["mlflow", "tensorboard", "trackio", "wandb"]


def test_a_configuration_may_name_one_tracker_or_list_several():
    assert [tracker.use for tracker in validate({"track": "wandb"}).track] == ["wandb"]
    tables = validate({"track": ["wandb", {"use": "mlflow", "tracking_uri": "http://a", "rollouts": 4}]}).track
    assert [(tracker.use, tracker.rollouts, tracker.options) for tracker in tables] == [
        ("wandb", 16, {}),
        ("mlflow", 4, {"tracking_uri": "http://a"}),
    ]
    assert validate({}).track == ()


@pytest.mark.parametrize(
    ("track", "named", "key", "code"),
    [
        ({"use": "wandb", "projekt": "a"}, ("wandb", "project"), "track.projekt", "config.unknown_key"),
        ({"use": "wandb", "mode": "of"}, ("of",), "track.mode", "config.value"),
        ("wandv", ("wandv", "wandb"), "track", "config.unknown_member"),
        ({"use": "wandb", "rollouts": -1}, (-1,), "track.0.rollouts", "config.value"),
        (lambda: None, ("run",), "track", "config.registration"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_loaded(track, named, key, code):
    with refused(ConfigError, *named, key=key, code=code):
        resolve_members(validate({"track": track}), base=Path())


@pytest.mark.parametrize("name", NAMES)
def test_the_error_for_a_missing_library_names_its_extra(name, monkeypatch):
    named = resolve_members(validate({"track": name}), base=Path())
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != name)
    with refused(ConfigError, f"winnow-rl[{name}]", key="track", code="config.not_installed"):
        check_installed(named)
    monkeypatch.setattr(resolve, "is_installed", lambda package: True)
    check_installed(named)


def test_winnow_has_these_trackers():
    assert [name for name, entry in members("tracker").items() if entry.origin == "winnow"] == NAMES


@pytest.mark.parametrize("entry", members("tracker").values(), ids=lambda entry: entry.name)
def test_a_tracker_keeps_its_contract(entry):
    """Where its library is installed: scripts/test-trackers has them all."""
    if entry.traits.requires is not None:
        pytest.importorskip(entry.traits.requires)
    check_member(entry)


def test_names_for_mlflow_are_legal_and_distinct():
    accepted = ["reward/mean", "eval/pass_at_8", "a...b/..c", "with space"]
    assert [legal(name) for name in accepted] == accepted
    others = ["a:b", "a+b", "a//b", "a/./b", "a/../b", "..", "/a", "a/", "", "x" * 300, "x" * 301, "line\nend"]
    changed = [legal(name) for name in others]
    assert len({*changed, "a_b"}) == len(others) + 1
    assert all(re.fullmatch(r"[\w./ -]{1,250}", name, flags=re.ASCII) for name in changed)
    assert all(part not in ("", ".", "..") for name in changed for part in name.split("/"))


def test_a_table_for_mlflow_is_json_where_a_verifier_failed():
    sent = list[str]()
    client = SimpleNamespace(log_text=lambda run, text, path: sent.append(text))
    MlflowTracker(client, "run").rollouts(0, [{**dict.fromkeys(ROLLOUT, "?"), "reward": math.nan}])
    table = json.loads(sent[0], parse_constant=pytest.fail)
    assert dict(zip(table["columns"], table["data"][0], strict=True))["reward"] is None


def test_no_markup_in_a_models_text_ends_its_code_block():
    hostile = "```\n</code><script>alert(1)</script>\r\x0b# title\u2028![x](http://a)\n    \n"
    assert all(line.startswith("    ") for line in code_block(hostile).split("\n"))
    assert len(code_block(hostile).splitlines()) == 6
