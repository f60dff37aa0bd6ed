"""A package whose version does not meet winnow's requirement counts as missing; both versions are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from refusals import refused
from winnow.commands import app
from winnow.commands.doctor.examine import build_report
from winnow.commands.doctor.machine import of_packages
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.installed import is_installed, unsuitable_version
from winnow.recipes import recipe_paths
from winnow.training import resolve

REQUIRED = ["torch>=2.11", "mlflow>=3.5; extra == 'mlflow'", "trackio>=0.30; extra == 'trackio'", "???"]
CONFIG = recipe_paths()["arithmetic"]


@pytest.mark.parametrize(
    ("package", "here", "versions"),
    [
        ("mlflow", {"mlflow": "1.27.0"}, ("1.27.0", ">=3.5")),
        ("mlflow", {"mlflow-skinny": "2.0"}, ("2.0", ">=3.5")),
        ("trackio", {"trackio": "0.0.6"}, ("0.0.6", ">=0.30")),
        ("mlflow", {"mlflow": "3.18.0"}, None),
        ("mlflow", {}, None),
        ("mlflow", {"mlflow": "a build of mine"}, None),
        ("pandas", {"pandas": "0.1"}, None),
    ],
)
def test_a_version_is_compared_with_the_requirement_of_the_extra(package, here, versions):
    assert unsuitable_version(package, here.get, lambda: REQUIRED) == versions


def test_a_package_inside_a_missing_one_is_not_installed():
    assert [is_installed(name) for name in ("winnow.state", "winnow.nothing", "no_such_package.part")] == [
        True, False, False,
    ]  # fmt: skip


def test_doctor_lists_an_extra_of_another_version_as_missing():
    here = {"mlflow": "1.27.0", "trackio": "0.30"}
    report = build_report(
        {"packages": lambda: of_packages(lambda name: here.get(name, "99"), lambda name: None, lambda: REQUIRED)}
    )
    optional = report["packages"]["optional"]
    assert (optional["mlflow"]["wants"], optional["trackio"]["wants"]) == (">=3.5", None)
    assert [one["do"] for one in report["missing"] if "1.27.0" in one["do"] and "winnow-rl[mlflow]" in one["do"]]
    assert report["ok"], "the package is optional"


@pytest.mark.parametrize(
    "keys", [{"track": "mlflow"}, {"rollout": {"engine": "vllm"}}, {"optimizer": {"moments": "8bit"}}]
)
def test_a_run_is_refused_with_a_package_of_another_version(keys, monkeypatch):
    members = resolve.resolve_members(validate({"device": "cpu", **keys}), base=Path())
    monkeypatch.setattr(resolve, "is_installed", lambda package: True)
    monkeypatch.setattr(resolve, "unsuitable_version", lambda package: ("0.0.1", ">=9"))
    with refused(ConfigError, "0.0.1", ">=9", code="config.not_installed"):
        resolve.check_installed(members)


def test_check_requires_installed_packages_only_for_this_machine(monkeypatch):
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != "vllm")
    few = ("--set", "task.size=64", "--set", "evaluate.problems=4", "--set", "verify.workers=0")
    command = ["check", str(CONFIG), *few, "--set", "rollout.engine=vllm", "--set", "device=cpu"]
    here = CliRunner().invoke(app, command)
    assert here.exit_code == 2
    assert "winnow-rl[vllm]" in here.stderr
    assert here.stdout, "the plan is printed before the error"
    elsewhere = CliRunner().invoke(app, [*command, "--memory", "80GiB"])
    assert elsewhere.exit_code == 0, elsewhere.output
    assert "winnow-rl[vllm]" in "".join(elsewhere.stdout.split()), "a note, wrapped over several lines"
