"""One browser for all tests of the page, Debian's chromium-headless-shell; without it the tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import report_pages as pages

SHELL = os.environ.get("WINNOW_TEST_BROWSER") or shutil.which("chromium-headless-shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if SHELL is None:
        pytest.skip(
            "no chromium-headless-shell: apt-get install chromium-headless-shell, or name one by WINNOW_TEST_BROWSER"
        )
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=SHELL, args=list(FLAGS))
        yield started
        started.close()


@dataclass
class Opened:
    """A page, and the errors and requests on it."""

    page: Any
    wrong: list[str] = field(default_factory=list)  # console errors, exceptions, dialogs
    requests: list[str] = field(default_factory=list)
    own: str = ""  # the only address that it may request

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1280, "height": 900})
    yield made
    made.close()


@pytest.fixture(scope="module")
def empty_pages(context: Any) -> list[Any]:
    """Pages that tests before have left: a new one is a process."""
    return []


@pytest.fixture
def watched(context: Any, empty_pages: list[Any]) -> Iterator[Callable[..., Opened]]:
    """watched(width=390): an empty page of that width. Afterwards no page may have had an error."""
    all_opened: list[tuple[Opened, dict[str, Callable[[Any], Any]]]] = []

    def watch(width: int = 1280) -> Opened:
        page = empty_pages.pop() if empty_pages else context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.set_default_timeout(120_000)
        opened = Opened(page)
        listeners: dict[str, Callable[[Any], Any]] = {
            "console": lambda m: opened.wrong.append(m.text) if m.type in ("error", "warning") else None,
            "pageerror": lambda error: opened.wrong.append(str(error)),
            "dialog": lambda dialog: (opened.wrong.append(dialog.message), dialog.dismiss()),
            "request": lambda request: opened.requests.append(request.url),
        }
        for event, listener in listeners.items():
            page.on(event, listener)
        all_opened.append((opened, listeners))
        return opened

    yield watch
    for opened, listeners in all_opened:
        opened.page.unroute_all()
        opened.page.emulate_media(color_scheme="light")
        if opened.own:  # a file, which asks for nothing more: another address may be another process
            opened.page.evaluate("() => { document.open(); document.close(); }")
        else:
            opened.page.goto("about:blank")
        for event, listener in listeners.items():
            opened.page.remove_listener(event, listener)
        empty_pages.append(opened.page)
    for opened, _ in all_opened:
        assert opened.wrong == []
        seen = {request.split("#")[0] for request in opened.requests if opened.own}
        assert seen <= {opened.own, "about:blank"}


@pytest.fixture
def shown(watched: Callable[..., Opened], tmp_path: Path) -> Callable[..., Opened]:
    """shown(data, place="#rollouts", width=390): the data's page, opened as a file, which may request nothing else."""

    def show(data: dict[str, Any] | None = None, place: str = "", width: int = 1280) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(pages.assemble(data or pages.data()), encoding="utf-8")
        opened = watched(width)
        opened.own = path.as_uri()
        opened.page.goto(opened.own + place)
        opened.page.wait_for_selector("#main > *")
        return opened

    return show
