"""A TRL that lacks what PODSTrainer builds on is named, with the release that has it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import winnow_trl
from refusals import refused
from winnow import installed
from winnow.errors import ConfigError
from winnow_trl import release


class Fits:
    def _generate_and_score_completions(self, inputs): ...

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list): ...


class Renamed:
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list): ...


class OtherParameters(Fits):
    def _calculate_rewards(self, batch): ...


def test_a_class_with_the_methods_fits():
    release.check_class(Fits)


@pytest.mark.parametrize(
    ("trainer", "name"), [(Renamed, "_generate_and_score_completions"), (OtherParameters, "_calculate_rewards")]
)
def test_a_class_without_them_is_refused(trainer, name):
    with refused(ConfigError, name, release.TRL.tested, code="config.not_installed"):
        release.check_class(trainer)


def whole():
    logs = {"_logs": dict.fromkeys(release.LOGS)}
    return SimpleNamespace(**{**dict.fromkeys(release.ATTRIBUTES), **logs})


def test_an_instance_needs_each_attribute_and_each_log():
    release.check_instance(whole())
    for name in release.ATTRIBUTES:
        lacking = whole()
        delattr(lacking, name)
        with refused(ConfigError, name, release.TRL.tested, code="config.not_installed"):
            release.check_instance(lacking)
    for name in release.LOGS:
        lacking = whole()
        del lacking._logs[name]
        with refused(ConfigError, name, code="config.not_installed"):
            release.check_instance(lacking)


def test_without_trl_the_package_is_named(monkeypatch):
    monkeypatch.setattr(installed, "is_installed", lambda package: False)
    with refused(ConfigError, "trl", code="config.not_installed"):
        release.TRL.check_installed()


def test_the_package_has_no_other_names():
    assert winnow_trl.__all__ == ["PODSTrainer"]
    with pytest.raises(AttributeError):
        winnow_trl.GRPOTrainer  # noqa: B018
