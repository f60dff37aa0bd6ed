"""Whether verl, with the queue that its trainer stores rollouts in, is installed, and has what is built on here."""

from __future__ import annotations

import inspect
from typing import Any

from winnow.errors import ConfigError
from winnow.installed import is_installed, version_of

TESTED = "0.9.1"


def check_installed() -> None:
    """Raise ConfigError where verl, or the package of its TransferQueue, is not installed."""
    for package in ("verl", "transfer_queue"):
        if not is_installed(package):
            raise ConfigError(
                f"winnow_verl needs the package {package!r}, which is not installed here",
                remedy=f"pip install 'winnow-rl[verl]', in an environment of its own (tested with verl=={TESTED})",
                code="config.not_installed",
            )


def check_method(owner: type[Any], name: str, parameters: tuple[str, ...]) -> None:
    """Raise ConfigError where a class of verl lacks a method that is overridden, or it has other parameters."""
    method = getattr(owner, name, None)
    found = None if method is None else tuple(inspect.signature(method).parameters)
    if found != parameters:
        of = "lacks" if found is None else f"has the parameters {', '.join(found)} for"
        raise ConfigError(
            f"this release of verl does not fit ({version_of('verl')}): {owner.__name__} {of} {name}",
            remedy=f"install the release with which winnow_verl is tested: verl=={TESTED}",
            code="config.not_installed",
        )
