"""JSON for a script element of a page: no text in it can end the element, and it contains no NaN or infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

DEEPEST = 20  # levels of nested data, such as a gold answer; deeper levels are omitted
_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def encoded(value: Any) -> str:
    """The value as JSON in ASCII: other characters, including lone surrogates, and < > & become \\uXXXX. Numbers that
    are not finite become null.
    """
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def with_list(fields: Mapping[str, Any], name: str, items: Iterable[str]) -> str:
    """An object of `fields` and a list `name` of values that are already encoded."""
    return f'{encoded(fields)[:-1]}{"," if fields else ""}"{name}":[{",".join(items)}]}}'


def plain(value: Any, depth: int = 0) -> Any:
    """The value in JSON's types: a number that is not finite becomes None, and any other object its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if depth >= DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(name): plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    return str(value)
