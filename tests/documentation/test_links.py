"""Links of README.md, benchmarks/README.md and docs/*.md lead somewhere, and every page is found from the index."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from doc_pages import PAGES, REPOSITORY, anchors, links, tokens


def place(page, target):
    """(the file that a link leads to, its anchor); the page itself where the link is an anchor alone."""
    path, _, anchor = unquote(target).partition("#")
    return (REPOSITORY / page).parent / path if path else REPOSITORY / page, anchor


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_exist(page):
    lost = []
    for target in links(page):
        if re.match(r"https?://|mailto:", target):
            continue
        path, anchor = place(page, target)
        name = str(path.resolve().relative_to(REPOSITORY))
        if not path.exists() or (anchor and anchor not in anchors(name)):
            lost.append(target)
    assert not lost


@pytest.mark.parametrize("page", PAGES)
def test_no_link_leaves_the_repository(page):
    """Where a reader is sent elsewhere the text says where; a site that is read offline loads nothing."""
    assert not [target for target in links(page) if not place(page, target)[0].resolve().is_relative_to(REPOSITORY)]
    assert "<img" not in PAGES[page]
    assert "<script" not in "".join(token.content for token in tokens(page) if token.type == "html_block")


def test_the_index_lists_every_page_once():
    listed = re.findall(r"(?m)^- \[[^\]]+\]\((\S+?)\): ", PAGES["docs/index.md"])
    assert sorted(listed) == sorted(page[5:] for page in PAGES if page.startswith("docs/") and page != "docs/index.md")
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_begins_with_its_title_and_what_it_is_for(page):
    title, empty, first = PAGES[page].splitlines()[:3]
    assert re.match(r"# \S", title)
    assert not empty
    assert re.match(r"[A-Z0-9`\[*]|    winnow |winnow ", first), first


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference.md"])
def test_a_line_has_at_most_120_characters(page):
    """But for rows of tables, which cannot be broken; of reference.md, whose lists are made from docstrings, any."""
    assert [line for line in PAGES[page].splitlines() if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_blank_line_cuts_a_table_in_two(page):
    """The rows below it would be shown as text."""
    assert not re.findall(r"\n\n(\|.*\|)\n(?!\|[-:| ]+\|\n)", PAGES[page])


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_that_is_named_is_a_link(page):
    """`docs/x.md` in plain words leads nowhere on the site, nor on a code host."""
    words = "".join(
        child.content
        for token in tokens(page)
        if token.type == "inline"
        for child in token.children or ()
        if child.type == "text"
    )
    assert page == "docs/design.md" or not re.findall(r"docs/[\w-]+\.md", words)
