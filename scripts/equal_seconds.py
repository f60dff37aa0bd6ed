"""The results on a published model in equal seconds of training: the first table of docs/results.md, README's first
lines of effects, and their picture. scripts/results.py writes them, if the sweeps have results.
"""

from __future__ import annotations

import functools
import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from claim_words import dated

from winnow.algos.intervals import over_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "static" / "equal_seconds.svg"
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73")
WIDTH = 118
Result = Mapping[str, Any]


@functools.cache
def texts() -> Mapping[str, Any]:
    """What a person adds: names of tasks and arms, and the sentences around the numbers."""
    comments = tomllib.loads((DOCS / "results_comments.toml").read_text(encoding="utf-8"))
    return comments["equal_seconds"]  # type: ignore[no-any-return]


def newest(folder: Path) -> dict[str, Path]:
    """Sweep -> its newest result, of the sweeps that have one."""
    found = {sweep: dated(sweep, folder) for sweep in texts()["tasks"]}
    return {sweep: of[0] for sweep, of in found.items() if of}


def contrasts(folder: Path) -> Iterator[tuple[str, Path, Result, Result]]:
    """(task, file, result, contrast with the names of its arms), in the order of the tasks and of the contrasts."""
    names, tasks = texts()["names"], texts()["tasks"]
    for sweep, path in newest(folder).items():
        result = json.loads(path.read_text(encoding="utf-8"))
        for row in result["contrasts"]:
            yield tasks[sweep], path, result, row | {"this": names[row["group"]], "other": names[row["baseline"]]}


def table(folder: Path) -> Iterator[str]:
    """The contrasts, and the heading of what follows them. Nothing without a result."""
    rows = list(contrasts(folder))
    if not rows:
        return
    yield from (*wrapped(texts()["before"].strip()), "")
    yield f"![Held-out accuracy of every arm over the seconds of training](static/{PICTURE.name})"
    yield ""
    yield "| task | this | instead of | mean accuracy, points | word | seconds to the level, ratio | seeds |"
    yield "|---|---|---|---|---|---|---|"
    for task, path, result, row in rows:
        of = row.get("sooner")
        sooner = f"{of['bound']} {of['ratio']:.2f} ({of['low']:.2f} to {of['high']:.2f})".strip() if of else "-"
        link = f"[{task}](../benchmarks/results/{path.name})"
        numbers = f"{points(row)} | **{row['word']}** | {sooner} | {len(result['seeds'])}"
        yield f"| {link} | {row['this']} | {row['other']} | {numbers} |"
    yield f"\n{texts()['after'].strip()}\n"


def items(folder: Path) -> Iterator[str]:
    """README's lines: a sentence, and an item for each contrast. Nothing without a result."""
    rows = list(contrasts(folder))
    if rows:
        yield from (*wrapped(texts()["readme"].strip()), "")
        for task, _, _, row in rows:
            line = f"- **{task}: {row['this']}, instead of {row['other']}**: {row['word']}, {points(row)}."
            yield from wrapped(line, indent="  ")
        yield ""


def points(of: Mapping[str, float]) -> str:
    """ "+0.2 (-1.0 to +1.3)", in percentage points."""
    return f"{100 * of['mean']:+.1f} ({100 * of['low']:+.1f} to {100 * of['high']:+.1f})"


def wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def draw(folder: Path, picture: Path = PICTURE) -> None:
    """Write the picture, if there is a result."""
    if found := newest(folder):
        results = {sweep: json.loads(path.read_text(encoding="utf-8")) for sweep, path in found.items()}
        figure(results).savefig(picture, metadata={"Date": None})


def figure(results: Mapping[str, Result]) -> Figure:
    """A panel for each sweep: the mean accuracy of each arm over the seconds, with 95% intervals over seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"], mpl.rcParams["svg.fonttype"] = "winnow", "none"
    made = Figure(figsize=(5.5 * len(results), 3.4), layout="constrained")
    for panel, (sweep, result) in zip(made.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        for (arm, seeds), color in zip(result["points"].items(), COLORS, strict=False):
            # Each [evaluations, (seconds, steps, accuracy)]
            curves = [np.array(seeds[seed]) for seed in result["seeds"]]
            seconds = np.linspace(0, curves[0][-1, 0], 101)
            of = np.array([np.interp(seconds, curve[:, 0], curve[:, 2]) for curve in curves])
            panel.plot(seconds, of.mean(axis=0), color=color, linewidth=1.4, label=texts()["names"][arm])
            low, high = np.transpose([over_seeds(at) for at in of.T])
            panel.fill_between(seconds, low, high, color=color, alpha=0.12, linewidth=0)
        panel.set(title=texts()["tasks"][sweep], xlabel="seconds of training", ylabel="held-out accuracy")
        panel.grid(alpha=0.25)
        panel.legend(fontsize=8, frameon=False, loc="lower right")
    return made
