"""README.md, benchmarks/README.md and docs/*.md as what they are made of: headings with their anchors, links, blocks of
code, words in code.

Read by CommonMark's rules, as a code host and the site read them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for path in [
        REPOSITORY / "README.md",
        REPOSITORY / "benchmarks" / "README.md",
        *sorted((REPOSITORY / "docs").glob("*.md")),
    ]
}


@dataclass(frozen=True)
class Block:
    """A block of code: its page, its language ("" for one that is indented or names none), its text."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.strip().splitlines()[0]

    def commands(self) -> Iterator[str]:
        """The lines of a shell, those that end in a backslash joined with the next, without empty ones."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()


@cache
def tokens(page: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(PAGES[page])


def _inline(page: str) -> Iterator[Token]:
    for token in tokens(page):
        yield from token.children or ()


def links(page: str) -> list[str]:
    """The target of every link and picture."""
    found = [token.attrGet("href") or token.attrGet("src") for token in _inline(page)]
    return [str(target) for target in found if target]


def codes(page: str) -> list[str]:
    """The text of every code span."""
    return [token.content for token in _inline(page) if token.type == "code_inline"]


def blocks(page: str) -> list[Block]:
    return [
        Block(page, token.info.strip(), token.content)
        for token in tokens(page)
        if token.type in ("fence", "code_block")
    ]


def headings(page: str) -> list[str]:
    """The text of every heading, marks left out."""
    everything = tokens(page)
    return [
        "".join(child.content for child in everything[place + 1].children or ())
        for place, token in enumerate(everything)
        if token.type == "heading_open"
    ]


def anchors(page: str) -> set[str]:
    """What `#...` may name: each heading in lower case, punctuation left out, blanks as hyphens; a second one ends in
    -1.
    """
    found: dict[str, int] = {}
    names = set()
    for heading in headings(page):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def words(command: str) -> tuple[str, list[str]]:
    """What a shell hands to `winnow`: its command, and the arguments of that. CONFIG is any configuration."""
    _, name, *arguments = shlex.split(command, comments=True)
    return name, ["arithmetic" if argument == "CONFIG" else argument for argument in arguments]
