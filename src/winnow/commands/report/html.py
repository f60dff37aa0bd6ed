"""The page as one file: page.html with the files that it names, and a policy that blocks all other code and requests.

A page that is served may send requests to its own server.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import dataclass
from pathlib import Path

PARTS = Path(__file__).parent / "page"
TEMPLATE = "page.html"
MARK = b'<meta name="generator" content="winnow report">'  # in the first bytes of every report
_NAMED = re.compile(
    r'<link rel="stylesheet" href="(?P<style>[\w./-]+)">|<script src="(?P<script>[\w./-]+)"></script>'
    r"|\{\{(?P<value>policy|title|data)\}\}"
)
_ENDS = re.compile(r"</(?:script|style)|<!--", re.IGNORECASE)


@dataclass(frozen=True)
class Assembled:
    """A page and its Content-Security-Policy."""

    text: str
    policy: str


def assemble(data: str, *, title: str, served: bool, parts: Path | None = None) -> Assembled:
    """The page of `data`, JSON from strict_json.py. `parts` is the folder of page.html and the files that it names.

    Everything is inserted in one pass, so that a placeholder in the data is never replaced.
    """
    folder = parts or PARTS
    template = (folder / TEMPLATE).read_text(encoding="utf-8")
    texts: dict[str, list[str]] = {"style": [], "script": []}
    contents: dict[str, str] = {}
    for match in _NAMED.finditer(template):
        if match.lastgroup in texts and match.lastgroup is not None:
            name = match[match.lastgroup]
            contents[name] = _content(folder / name)
            texts[match.lastgroup].append(contents[name])
    policy = _policy(texts["script"], texts["style"], served=served)
    values = {"policy": policy, "title": html.escape(title), "data": data}

    def insert(match: re.Match[str]) -> str:
        if value := match["value"]:
            return values[value]
        kind = match.lastgroup
        return f"<{kind}>{contents[match[kind or 0]]}</{kind}>"

    return Assembled(_NAMED.sub(insert, template), policy)


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
