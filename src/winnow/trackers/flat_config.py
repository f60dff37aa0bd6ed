"""A configuration as one value per dotted key, for libraries that take no nested one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from winnow.config import leaves


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"rollout.max_new_tokens": 64, "select.0.use": "max_variance", ...}"""
    return {".".join(map(str, path)): value for path, value in leaves(config)}


def config_text(config: Mapping[str, Any]) -> str:
    """The configuration as indented JSON."""
    return json.dumps(config, indent=1)
