"""The site that scripts/docs builds: where Sphinx is installed, without a warning, loading nothing, with a search."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from doc_pages import PAGES, REPOSITORY


def test_the_pages_say_nothing_of_the_generator():
    marks = re.compile(r"(?m)^(:::|```\{|\.\. )|\{(doc|ref|eval-rst|toctree)\}")
    assert not [page for page, text in PAGES.items() if marks.search(text)]


@pytest.mark.slow  # ten seconds of Sphinx; test_links.py follows the links of every page
def test_it_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="scripts/docs installs what builds the site: pip install 'winnow-rl[docs]'")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", tmp_path / "doctrees"]
    done = subprocess.run([*command, REPOSITORY / "docs", tmp_path / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loads = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*\b(?:href|src)=\"(?:https?:)?//[^\"]*\"")
    for page in (tmp_path / "site").glob("*.html"):
        assert not loads.search(page.read_text(encoding="utf-8")), page.name
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'class="caption"[^>]*><span class="caption-text">([^<]+)<', index)
    assert captions == re.findall(r"(?m)^## (.*)$", PAGES["docs/index.md"])
    assert 'action="search.html"' in index  # a box of the search is on every page
    assert re.search(r'<script src="_static/copy\.js', index)
    assert '"whiten' in (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")
