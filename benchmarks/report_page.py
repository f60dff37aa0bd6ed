"""Seconds until a report is displayed in a browser, and until a search has its result.

    python benchmarks/report_page.py REPORT [--opens 5]

REPORT is a file of `winnow report`. It is opened in a headless Chromium (chromium-headless-shell of the PATH, or that
of --browser), each time in a new profile, at its view of rollouts. "open" is the time from the request for the file
until the first rollouts of the list are drawn, measured by the driver outside of the browser. "search" is the time from
a change of the search until the list contains the result of a search through all texts. "turn" is the time from a
key press until the next rollout is drawn.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import frame
from playwright.sync_api import Page, sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DRAWN = "new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))"
SEARCH = f"""async text => {{
    const began = performance.now();
    winnow.place.go({{q: text}});
    await {DRAWN};
    return [(performance.now() - began) / 1000, winnow.rollouts.list.state.items.length];
}}"""
TURN = f"""async () => {{
    const began = performance.now();
    winnow.rollouts.turn(1, false);
    await {DRAWN};
    return (performance.now() - began) / 1000;
}}"""


def opened(page: Page, report: Path) -> dict[str, Any]:
    """Open the page once. Returns the seconds, and the contents of the page."""
    began = time.perf_counter()
    page.goto(f"{report.resolve().as_uri()}#rollouts")
    page.wait_for_selector("#list [role=option]")
    seconds = time.perf_counter() - began
    search, found = page.evaluate(SEARCH, "17")
    nothing, none = page.evaluate(SEARCH, "what is nowhere \u2603")
    page.evaluate(SEARCH, "")
    turns = [page.evaluate(TURN) for _ in range(20)]
    assert none == 0
    return {
        "open": seconds, "search": search, "found": found, "search that finds nothing": nothing,
        "turn": statistics.median(turns), "rollouts": page.evaluate("winnow.model.items.length"),
        "elements": page.evaluate("document.querySelectorAll('*').length"),
    }  # fmt: skip


def main() -> None:
    parser = frame.parser(__doc__, opens=5)
    parser.add_argument("report", type=Path)
    parser.add_argument("--browser", default=shutil.which("chromium-headless-shell"))
    settings = frame.parse(parser)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=settings.browser, args=FLAGS)
        times = []
        for _ in range(settings.opens + 1):  # the first one also reads the browser from disk
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            times.append(opened(context.new_page(), settings.report))
            context.close()
        version = browser.version
        browser.close()
    seconds = {
        name: [round(t[name], 3) for t in times[1:]] for name in ("open", "search", "search that finds nothing", "turn")
    }
    result = {
        "browser": version,
        "megabytes": round(settings.report.stat().st_size / 1e6, 2),
        **{name: times[-1][name] for name in ("rollouts", "found", "elements")},
        "median seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "first open": round(times[0]["open"], 3),
        "seconds": seconds,
    }
    print(json.dumps(result, indent=1))
    print(frame.write("report_page", result))


if __name__ == "__main__":
    main()
