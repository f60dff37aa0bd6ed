"""The configuration that trackers receive, also as one value per dotted key for libraries without nested values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from winnow.config import leaves

LOGIN = re.compile(r"(?<=://)[^/\s@]*@")  # "user:password@" of an address


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with only the names of its trackers, as their options may contain a password. User names and
    passwords are removed from all addresses.
    """
    named = [tracker["use"] for tracker in config.get("track", ())]
    return {name: _without_logins(value) for name, value in {**config, "track": named}.items()}


def _without_logins(value: Any) -> Any:
    if isinstance(value, str):
        return LOGIN.sub("", value)
    if isinstance(value, Mapping):
        return {name: _without_logins(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_logins(inner) for inner in value]
    return value


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"rollout.max_new_tokens": 64, "select.0.use": "max_variance", ...}"""
    return {".".join(map(str, path)): value for path, value in leaves(config)}


def config_text(config: Mapping[str, Any]) -> str:
    """The configuration as indented JSON."""
    return json.dumps(config, indent=1)
