"""docs/objects.md is what scripts/objects_page.py makes of the code, and every field in it has a meaning."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from doc_pages import PAGES, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import objects_page

PAGE = "docs/objects.md"


@dataclass
class Example:
    """One.

    >>> Example(1)
    """

    count: int  # [N] of `a | b`
    # A line
    # or two
    kind: objects_page.records.Kind | None = None  # and one beside

    @property
    def double(self) -> int:
        """Twice
        the count.

        More.
        """
        return 2 * self.count


def test_it_is_the_generated_page():
    same = objects_page.page() == PAGES[PAGE]
    assert same, "docs/objects.md differs from the code: run `python scripts/reference.py`, and commit the page"


def test_every_name_has_a_meaning():
    rows = re.findall(r"(?m)^\| `([^`]+)` \| (.*) \| (.*) \|$", PAGES[PAGE])
    assert len(rows) > 80
    assert not [name for name, kind, meaning in rows if not kind.strip() or not meaning.strip()]


def test_comments_and_docstrings_become_rows():
    title, text, head, *rows = objects_page._of_class(Example)
    assert (title, text) == ("### Example\n", "One.\n")
    assert [row.split(" | ")[0] for row in rows[:-1]] == ["| `count`", "| `kind`", "| `double`"]
    assert rows[0] == r"| `count` | `int` | [N] of `a \| b` |"
    assert rows[1].endswith('"correct", "wrong", "unparsable", "failed", "cut"; A line or two and one beside |')
    assert rows[2] == "| `double` | `int` | Twice the count. |"
    assert head.startswith("| name |")
