"""What writes rollouts is asked for before a model is loaded, and only where rollouts are written."""

from __future__ import annotations

import pytest

from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.training import resolve


@pytest.mark.parametrize("rollouts", ["all", "kept", "none"])
def test_a_missing_pyarrow_is_named_with_both_ways_on(tmp_path, monkeypatch, rollouts):
    members = resolve.resolve_members(validate({"log": {"rollouts": rollouts}}), base=tmp_path)
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != "pyarrow")
    if rollouts == "none":
        resolve.check_installed(members)
    else:
        with pytest.raises(ConfigError, match=r'pip install pyarrow, or write none of them \(log\.rollouts = "none"\)'):
            resolve.check_installed(members)
