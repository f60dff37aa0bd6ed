"""The package that writes rollouts is required before a model is loaded, and only where rollouts are written."""

from __future__ import annotations

import pytest

from refusals import refused
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.training import resolve


@pytest.mark.parametrize("rollouts", ["all", "kept", "none"])
def test_a_missing_pyarrow_is_refused_with_two_remedies(tmp_path, monkeypatch, rollouts):
    members = resolve.resolve_members(validate({"log": {"rollouts": rollouts}}), base=tmp_path)
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != "pyarrow")
    if rollouts == "none":
        resolve.check_installed(members)
    else:
        with refused(ConfigError, "pip install pyarrow", '"none"', key="log.rollouts", code="config.not_installed"):
            resolve.check_installed(members)
