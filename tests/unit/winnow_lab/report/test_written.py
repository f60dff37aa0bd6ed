"""A page that `winnow report` wrote from a run's folder, in a browser: it shows the contents of the log."""

from __future__ import annotations

import pytest

from synthetic_run import NASTY, write_run
from winnow.view.text import sanitize
from winnow_lab.report.files import runs_at, write_report


@pytest.fixture
def written(watched, tmp_path):
    """written(place): the report of the synthetic run, opened there."""
    path = tmp_path / "report.html"
    write_report(runs_at([write_run(tmp_path / "toy", steps=4)]), path, limit=1_000_000)

    def show(place=""):
        opened = watched()
        opened.own = path.as_uri()
        opened.page.goto(opened.own + place)
        opened.page.wait_for_selector("#main > *")
        return opened

    return show


def test_the_overview_of_a_real_log(written):
    opened = written()
    amounts = [element.text_content() for element in opened.page.locator(".ledger .amount").all()]
    assert amounts[0] == "4.0k tokens 100%"
    assert "accuracy" in opened.texts(".chart h3")
    assert opened.page.get_by_role("img", name="held out, sampled").count() >= 1


def test_the_rollouts_of_a_real_log(written):
    opened = written("#rollouts?verdict=wrong&q=markup")
    assert opened.texts(".counter") == ["4 of 28 rollouts"]
    assert opened.page.locator(".completion .foreign").text_content() == sanitize(NASTY)
    opened.page.get_by_role("button", name="clear filters").click()
    opened.page.locator("[data-verdict=failed]").click()
    opened.page.locator(".counter").filter(has_text="4 of 28 rollouts").wait_for()
    opened.page.locator(".badge", has_text="failed: timeout").first.wait_for()
    assert "took 5 s" in opened.texts(".facts dd")
