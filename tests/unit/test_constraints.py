"""constraints.txt is one set of versions with which every extra resolves. scripts/resolve checks that with pip."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APART = {"vllm"}  # it pins a torch, and a range of transformers below the one here

# Requirements on pinned packages, from the metadata of packages of extras that the suite does not install.
ELSEWHERE = {
    "trackio 0.43.0": ["pillow<13.0.0", "numpy<3.0.0", "huggingface-hub<3,>=1.10.0", "orjson<4.0.0,>=3.0"],
    "mlflow 3.17.2": ["matplotlib<4", "numpy<3", "pyarrow<26,>=4.0.0", "scipy<2"],
    "mlflow-skinny 3.17.2": [
        "anyio!=4.15.0,<5,>=3.6.2",
        "click<9,>=7.0",
        "packaging<27",
        "typing-extensions<5,>=4.0.0",
    ],
    "trl 1.16.0": ["accelerate>=1.10.1", "huggingface_hub>=0.34.0", "packaging>20.0", "pyarrow>=21.0.0"],
    "graphene 3.4.3, of mlflow": ["python-dateutil<3,>=2.7.0"],
}


def pins() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in (REPOSITORY / "constraints.txt").read_text().splitlines())
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}


PINS = pins()


def conflicts(requirements: Iterator[Requirement]) -> list[str]:
    return [
        f"{one} (pinned: {PINS[name]})"
        for one in requirements
        if (name := canonicalize_name(one.name)) in PINS and not one.specifier.contains(PINS[name], prereleases=True)
    ]


@pytest.mark.parametrize("extra", ["none", *PROJECT["optional-dependencies"]])
def test_the_pins_are_within_the_requirements_of_the_project(extra):
    texts = PROJECT["dependencies"] if extra == "none" else PROJECT["optional-dependencies"][extra]
    requirements = [Requirement(text) for text in texts]
    for one in requirements:
        assert {part.operator for part in one.specifier} & {">=", "=="}, f"{one} has no lower bound"
    assert not conflicts(iter(requirements))


def test_the_pins_fit_each_other():
    """Checks the packages that are installed in the pinned version, whose metadata can be read."""
    requirements = []
    for name, version in PINS.items():
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.version == version:
            requirements += [Requirement(text) for text in installed.requires or ()]
    base = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert len(base) > 50
    assert not conflicts(iter(base))


@pytest.mark.parametrize("package", ELSEWHERE)
def test_the_pins_fit_extras_that_are_not_installed_here(package):
    assert not conflicts(Requirement(text) for text in ELSEWHERE[package])


def test_the_script_leaves_out_what_is_resolved_apart():
    assert set(PROJECT["optional-dependencies"]) > APART
    assert "== vllm" in (REPOSITORY / "scripts" / "resolve").read_text(encoding="utf-8")
