"""Which packages are here. This module imports nothing of winnow."""

from __future__ import annotations

import importlib.util


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported for that."""
    return importlib.util.find_spec(package) is not None
