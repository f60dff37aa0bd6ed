"""Figures in README.md and docs that rest on a stored result: figures.toml ties each to the place that it comes from.

An entry quotes a page with each figure replaced by the expression that computes it from the result, and its format:

    [[quote]]
    page = "README.md"
    result = "2026-11-26_demo"
    text = "| seed 0 | {100 * r['runs']['0']['end']['eval/accuracy_sampled']:.1f}% |"

`r` is the result. `{{` and `}}` are braces. Line breaks of the page do not count. `rows`, names and values, repeats an
entry, with each as a name in its expressions.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from doc_pages import PAGES, REPOSITORY
from figure_functions import FUNCTIONS, printed

from winnow.verify.sandbox.seccomp import MACHINES

RESULTS = REPOSITORY / "benchmarks" / "results"
ENTRIES = tomllib.loads((Path(__file__).parent / "figures.toml").read_text(encoding="utf-8"))
CITED = re.compile(r"\b(20\d\d-\d\d-\d\d_\w+)\.json")


@dataclass(frozen=True)
class Quote:
    """A part of a page, whose figures are computed."""

    page: str
    result: str
    text: str
    names: Mapping[str, Any] = field(default_factory=dict)

    def expected(self, result: Any) -> str:
        """A regular expression for the text as it must stand in the page, each line break a blank."""
        known = {**FUNCTIONS, **self.names, "r": result}
        parts = []
        for literal, expression, form, _ in Formatter().parse(self.text):
            parts.append(re.escape(literal))
            if expression is not None:
                figure = printed(eval(expression, known), form or "")
                parts.append(
                    "|".join(map(re.escape, sorted(figure))).join(("(?:", ")"))
                    if len(figure) > 1
                    else re.escape(*figure)
                )
        return re.sub(r"(?:\\?\s)+", " ", "".join(parts))

    @property
    def figures(self) -> int:
        return sum(expression is not None for _, expression, _, _ in Formatter().parse(self.text))


def quotes() -> Iterator[Quote]:
    for entry in ENTRIES["quote"]:
        where = {key: entry[key] for key in ("page", "result", "text")}
        yield from (Quote(**where, names=names) for names in entry.get("rows", [{}]))


def is_in(expected: str, page: str) -> bool:
    """Whether a page has the text, and not as a part of a longer number."""
    return re.search(rf"(?<![\d.,]){expected}(?![.,]?\d)", " ".join(page.split())) is not None


def of_results() -> dict[str, list[Quote]]:
    found: dict[str, list[Quote]] = {}
    for quote in quotes():
        found.setdefault(quote.result, []).append(quote)
    return found


@pytest.mark.parametrize("name", sorted(of_results()))
def test_figures_are_those_of_the_result_that_is_cited(name):
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="ascii"))
    expected = [(quote.page, quote.expected(result)) for quote in of_results()[name]]
    assert [(page, text) for page, text in expected if not is_in(text, PAGES[page])] == []


def test_checked_pages_cite_their_results_and_cited_results_are_checked():
    """But for those listed as unchecked, each with the reason."""
    pages = {page: text for page, text in PAGES.items() if page != "docs/results.md"}  # made whole: test_results.py
    cited = {(page, name) for page, text in pages.items() for name in CITED.findall(text)}
    checked = {(quote.page, quote.result) for quote in quotes()}
    assert checked - cited == set()
    assert {name for _, name in cited - checked} - {name for _, name in checked} == set(ENTRIES["unchecked"])


@pytest.mark.parametrize(
    ("value", "there"),
    [(1.72, True), (1.724, True), (1.715, True), (1.725, True), (1.73, False), (0.72, False), (2.72, False)],
)
def test_a_figure_is_looked_for_as_it_is_rounded_and_as_no_part_of_another(value, there):
    quote = Quote("README.md", "x", "than {r['a'][k]:.2f} of {{all}}", {"k": "b"})
    assert quote.figures == 1
    assert is_in(quote.expected({"a": {"b": value}}), "sooner\nthan 1.72\nof {all}") is there
    assert not is_in(quote.expected({"a": {"b": value}}), "than 11.72 of {all}")
    assert not is_in(quote.expected({"a": {"b": value}}), "than 1.721 of {all}")


def test_the_page_counts_the_calls_and_programs_of_the_sandbox():
    sys.path.insert(0, str(REPOSITORY / "tests" / "unit" / "verify" / "sandbox"))
    from hostile_programs import HOSTILE

    counts = {name: len(machine.numbers) for name, machine in MACHINES.items()}
    page = " ".join(PAGES["docs/verifiers.md"].split())
    assert f"({', '.join(f'{count} on {name}' for name, count in counts.items())})" in page
    assert f"of {len(HOSTILE)} hostile programs" in page
