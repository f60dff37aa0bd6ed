"""The page as one file: page.html with the files that it names, and a policy that blocks all other code and requests.

A page that is served may send requests to its own server.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
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


PARTS = Path(__file__).parent / "page"
TEMPLATE = "page.html"
MARK = b'<meta name="generator" content="winnow report">'  # in the first bytes of every report
_NAMED = re.compile(
    r'<link rel="stylesheet" href="(?P<style>[\w./-]+)">|<script src="(?P<script>[\w./-]+)"></script>'
    r"|\{\{(?P<value>policy|title|data)\}\}"
)
_ENDS = re.compile(r"</(?:script|style)|<!--", re.IGNORECASE)


def assemble(data: str, *, title: str, served: bool) -> tuple[str, str]:
    """The page of `data`, JSON of `encoded`, and its Content-Security-Policy.

    Everything is inserted in one pass, so that a placeholder in the data is never replaced.
    """
    template = (PARTS / TEMPLATE).read_text(encoding="utf-8")
    texts: dict[str, list[str]] = {"style": [], "script": []}
    contents: dict[str, str] = {}
    for match in _NAMED.finditer(template):
        if match.lastgroup in texts and match.lastgroup is not None:
            name = match[match.lastgroup]
            contents[name] = _content(PARTS / name)
            texts[match.lastgroup].append(contents[name])
    policy = _policy(texts["script"], texts["style"], served=served)
    values = {"policy": policy, "title": html.escape(title), "data": data}

    def insert(match: re.Match[str]) -> str:
        if value := match["value"]:
            return values[value]
        kind = match.lastgroup
        return f"<{kind}>{contents[match[kind or 0]]}</{kind}>"

    return _NAMED.sub(insert, template), policy


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if end := _ENDS.search(text):
        raise ValueError(f"{path.name} contains {end[0]!r}, which would end the element into which it is inserted")
    return text


def _policy(scripts: list[str], styles: list[str], *, served: bool) -> str:
    rules = [
        "default-src 'none'",
        f"script-src {_hashes(scripts)}",
        f"style-src {_hashes(styles)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *["connect-src 'self'"] * served,
    ]
    return "; ".join(rules)


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
