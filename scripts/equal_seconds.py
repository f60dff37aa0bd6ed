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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from claim_words import dated

from winnow.algos.intervals import over_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "static" / "equal_seconds.svg"
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73")
WIDTH = 118
# End of a sweep's name -> its seeds. All seeds together are no new evidence of a gain or a loss: pilots.py, --looks
LOOKS = {"": "first seeds", "_again": "new seeds", "_joined": "all seeds"}
Result = Mapping[str, Any]


class Contrast(NamedTuple):
    """Two arms, by the names that a person gave them, and what each look found."""

    task: str
    this: str
    other: str
    looks: Mapping[str, tuple[Result, int, str]]  # look, in their order -> the contrast, number of seeds, file

    @property
    def last(self) -> Result:
        """The contrast over the most seeds."""
        return list(self.looks.values())[-1][0]

    @property
    def word(self) -> str:
        """That of the new seeds if there are some, whose order was fixed when the first ones were known. A contrast
        that they leave undecided can be equal over all seeds.
        """
        word = self.looks.get("_again", self.looks[""])[0]["word"]
        return str(self.last["word"] if word == "undecided" else word)


@functools.cache
def texts() -> Mapping[str, Any]:
    """What a person adds: names of tasks and arms, and the sentences around the numbers."""
    comments = tomllib.loads((DOCS / "results_comments.toml").read_text(encoding="utf-8"))
    return comments["equal_seconds"]  # type: ignore[no-any-return]


def newest(folder: Path) -> dict[str, dict[str, Path]]:
    """Sweep -> look -> its newest result, of the sweeps whose first look has one."""
    found = {sweep: {look: dated(sweep + look, folder) for look in LOOKS} for sweep in texts()["tasks"]}
    return {sweep: {look: of[0] for look, of in looks.items() if of} for sweep, looks in found.items() if looks[""]}


def contrasts(folder: Path) -> Iterator[Contrast]:
    """In the order of the tasks, and of the contrasts at the last look that has words."""
    names = texts()["names"]
    for sweep, paths in newest(folder).items():
        results = {look: _read(path) for look, path in paths.items()}
        for row in results.get("_again", results[""])["contrasts"]:
            pair = (row["baseline"], row["group"])
            looks = {
                look: (other, len(result["seeds"]), paths[look].name)
                for look, result in results.items()
                for other in result["contrasts"]
                if (other["baseline"], other["group"]) == pair
            }
            yield Contrast(texts()["tasks"][sweep], names[row["group"]], names[row["baseline"]], looks)


def table(folder: Path) -> Iterator[str]:
    """The contrasts, and the heading of what follows them. Nothing without a result."""
    rows = list(contrasts(folder))
    if not rows:
        return
    yield from (*wrapped(texts()["before"].strip()), "")
    yield f"![Held-out accuracy of every arm over the seconds of training](static/{PICTURE.name})"
    yield ""
    yield f"| task | this | instead of | word | {', points | '.join(LOOKS.values())}, points | seconds to the level |"
    yield f"{'|---' * (5 + len(LOOKS))}|"
    for of in rows:
        cells = [_cell(*of.looks[look]) if look in of.looks else "-" for look in LOOKS]
        yield f"| {of.task} | {of.this} | {of.other} | **{of.word}** | {' | '.join(cells)} | {_sooner(of.last)} |"
    yield "\n" + "\n\n".join("\n".join(wrapped(one)) for one in texts()["after"].strip().split("\n\n")) + "\n"


def items(folder: Path) -> Iterator[str]:
    """README's lines: a sentence, and an item for each contrast. Nothing without a result."""
    rows = list(contrasts(folder))
    if rows:
        yield from (*wrapped(texts()["readme"].strip()), "")
        for of in rows:
            line = f"- **{of.task}: {of.this}, instead of {of.other}**: {of.word}, {points(of.last)}."
            yield from wrapped(line, indent="  ")
        yield ""


def _cell(row: Result, seeds: int, file: str) -> str:
    return f"{points(row)}, [{seeds} seeds](../benchmarks/results/{file})"


def _sooner(row: Result) -> str:
    """The seconds to the level of "instead of" over those of "this"; a bound if seeds never reach it."""
    of = row.get("sooner")
    if not of or of["bound"] == "none":  # seeds of both never reach it, which bounds nothing
        return "-"
    return f"{of['bound']} {of['ratio']:.2f} ({of['low']:.2f} to {of['high']:.2f})".strip()


def _read(path: Path) -> Result:
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def points(of: Mapping[str, float]) -> str:
    """ "+0.2 (-1.0 to +1.3)", in percentage points."""
    return f"{100 * of['mean']:+.1f} ({100 * of['low']:+.1f} to {100 * of['high']:+.1f})"


def wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def draw(folder: Path, picture: Path = PICTURE) -> None:
    """Write the picture, if there is a result."""
    if found := newest(folder):
        results = {sweep: _read(list(paths.values())[-1]) for sweep, paths in found.items()}
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
