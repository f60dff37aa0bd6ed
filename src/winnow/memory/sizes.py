"""Sizes of memory, formatted for people and parsed from their input."""

from __future__ import annotations

import re

from winnow.errors import ConfigError

UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6}


def format_bytes(size: int) -> str:
    """A size in a readable unit: "3.9 MiB", "12.3 GiB"."""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= of:
            return f"{size / of:.1f} {unit}" if size < 100 * of else f"{size / of:.0f} {unit}"
    return f"{size} bytes"


def parse_bytes(text: str) -> int:
    """Bytes of a size that a user wrote: "80GiB", "80 GB", "512MiB". Raises ConfigError for other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]+)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in UNITS:
        raise ConfigError(
            f"{text!r} is no size",
            remedy="write a number and a unit, GiB, GB, MiB or MB, for example 80GiB",
            code="config.value",
        )
    return int(float(match[1]) * UNITS[match[2]])
