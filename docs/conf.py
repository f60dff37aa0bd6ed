"""How Sphinx makes a site of these pages, which are plain Markdown and say nothing of it: `scripts/docs`.

The navigation is what index.md lists: each of its headings is a group, each item that begins with a link a page, called
by the link's text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = Path(__file__).parents[1]
NAME = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]

project = "winnow"
html_title = f"winnow ({NAME})"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # the anchors that a code host gives to headings
smartquotes = False  # quotes and dashes are those of a configuration and a command
html_theme = "furo"  # its fonts are the reader's own: nothing is loaded from another host
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False


def navigation(index: str) -> Iterator[str]:
    """A hidden table of contents, in Sphinx's words, for each `##` heading of the index that lists pages."""
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = re.findall(r"^- \[([^\]]+)\]\(([\w-]+)\.md\)", section, flags=re.MULTILINE)
        if pages:
            caption = section.partition("\n")[0]
            entries = "\n".join(f"{title} <{page}>" for title, page in pages)
            yield f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    if name == "index":
        source[0] += "".join(navigation(source[0]))


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_navigation)
