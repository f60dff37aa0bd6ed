"""Trackers in a configuration, and what each makes of a model's text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from winnow.config import dump
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.registry import members
from winnow.testing import check_member
from winnow.trackers.flat_config import flat_config
from winnow.trackers.mlflow import legal
from winnow.trackers.tensorboard import code_block
from winnow.training import resolve
from winnow.training.resolve import check_installed, resolve_members

NAMES = ["mlflow", "tensorboard", "trackio", "wandb"]


def test_one_may_stand_bare_and_several_in_a_list():
    assert [tracker.use for tracker in validate({"track": "wandb"}).track] == ["wandb"]
    tables = validate({"track": ["wandb", {"use": "mlflow", "tracking_uri": "http://a", "rollouts": 4}]}).track
    assert [(tracker.use, tracker.rollouts, tracker.options) for tracker in tables] == [
        ("wandb", 16, {}),
        ("mlflow", 4, {"tracking_uri": "http://a"}),
    ]
    assert validate({}).track == ()


@pytest.mark.parametrize(
    ("track", "said"),
    [
        (
            {"use": "wandb", "projekt": "a"},
            r"track.projekt: the tracker 'wandb' has no such option; did you mean 'project'",
        ),
        ({"use": "wandb", "mode": "of"}, "track.mode is 'of'"),
        ("wandv", "no tracker is called 'wandv'; did you mean 'wandb'"),
        ({"use": "wandb", "rollouts": -1}, "rollouts"),
        (lambda: None, "must take exactly"),
    ],
)
def test_a_mistake_ends_before_anything_is_loaded(track, said):
    with pytest.raises(ConfigError, match=said):
        resolve_members(validate({"track": track}), base=Path())


@pytest.mark.parametrize("name", NAMES)
def test_a_library_that_is_missing_is_named_with_its_extra(name, monkeypatch):
    named = resolve_members(validate({"track": name}), base=Path())
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != name)
    with pytest.raises(ConfigError, match=rf"track = '{name}': .* pip install 'winnow-rl\[{name}\]'"):
        check_installed(named)
    monkeypatch.setattr(resolve, "is_installed", lambda package: True)
    check_installed(named)


def test_winnows_own_are_these():
    assert [name for name, entry in members("tracker").items() if entry.origin == "winnow"] == NAMES


@pytest.mark.parametrize("entry", members("tracker").values(), ids=lambda entry: entry.name)
def test_a_tracker_keeps_its_contract(entry):
    """Where its library is installed: scripts/test-trackers has them all."""
    if entry.traits.requires is not None:
        pytest.importorskip(entry.traits.requires)
    check_member(entry)


def test_mlflow_gets_names_that_it_takes_and_no_two_alike():
    taken = ["reward/mean", "eval/pass_at_8", "a...b/..c", "with space"]
    assert [legal(name) for name in taken] == taken
    others = ["a:b", "a+b", "a//b", "a/./b", "a/../b", "..", "/a", "a/", "", "x" * 300, "x" * 301, "line\nend"]
    found = [legal(name) for name in others]
    assert len({*found, "a_b"}) == len(others) + 1
    assert all(re.fullmatch(r"[\w./ -]{1,250}", name, flags=re.ASCII) for name in found)
    assert all(part not in ("", ".", "..") for name in found for part in name.split("/"))


def test_no_mark_of_a_models_text_ends_its_block():
    hostile = "```\n</code><script>alert(1)</script>\r\x0b# title\u2028![x](http://a)\n    \n"
    assert all(line.startswith("    ") for line in code_block(hostile).split("\n"))
    assert len(code_block(hostile).splitlines()) == 6


def test_a_flat_configuration_has_every_value_once():
    flat = flat_config(dump(validate({"terms": [{"use": "kl", "coefficient": 0.1}]})))
    assert flat["terms.0.coefficient"] == 0.1
    assert flat["rollout.max_new_tokens"] == 64
    assert flat["select.0.use"] == "max_variance"
