#!/usr/bin/env python
"""Write docs/results.md and its pictures from the newest result of each claim in benchmarks/results.

    python scripts/results.py

benchmarks/claims.toml lists the claims, and benchmarks/claims.py measures them. docs/results_comments.toml contains
comments on each. Every number in the page's tables is from the results.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLAIMS, COMMENTS = ROOT / "benchmarks" / "claims.toml", ROOT / "docs" / "results_comments.toml"
RESULTS, PAGE, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md", ROOT / "docs" / "static"
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
COSTS = {"two_cpu_cores": "on this machine", "pods_a": "at published costs"}  # file name of the costs -> on the page
AXES = {"tokens_generated": "tokens generated", "tokens_trained": "tokens trained", "steps": "steps"}
SURE = ("no difference shown", "sooner", "later")  # what an interval can show
PARTS = {  # of claims with several sweeps
    "claim_07_allocation_grpo": " (GRPO)",
    "claim_07_allocation_raft": " (RAFT++)",
    "claim_10_llama": " (Llama)",
    "claim_10_words": " (word problems)",
}
WIDTH = 118
Claim = Mapping[str, Any]
Result = Mapping[str, Any]


def main() -> None:
    claims: Sequence[Claim] = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"]
    found = {claim["sweep"]: newest(claim["sweep"]) for claim in claims}
    PAGE.write_text(page(claims, found), encoding="utf-8")
    for sweep, named in found.items():
        if named is not None:
            draw(named[1], PICTURES / f"{sweep}.svg")


def newest(sweep: str) -> tuple[str, Result] | None:
    """The file's name and the content of the newest result of a sweep; None if it has not been run."""
    files = sorted(RESULTS.glob(f"20??-??-??_{sweep}.json"))
    return (files[-1].name, json.loads(files[-1].read_text(encoding="utf-8"))) if files else None


def page(claims: Sequence[Claim], found: Mapping[str, tuple[str, Result] | None]) -> str:
    """The whole page. Claims without a result are listed as not measured."""
    comments = tomllib.loads(COMMENTS.read_text(encoding="utf-8"))
    parts = [comments["page"]["introduction"].strip(), "", "## All claims", "", *summary(claims, found), ""]
    appendix = False
    for claim in claims:
        if claim.get("appendix") and not appendix:
            appendix = True
            parts += ["# Appendix: three seeds each", ""]
        parts += [*section(claim, found[claim["sweep"]], comments.get(claim["sweep"], {})), ""]
    parts += [comments["page"]["end"].strip(), ""]
    return "\n".join(parts)


def summary(claims: Sequence[Claim], found: Mapping[str, tuple[str, Result] | None]) -> Iterator[str]:
    """One row per contrast: the ratio of times on each axis."""
    yield "| claim | baseline | against it | seconds, this machine | seconds, published costs | tokens | steps |"
    yield "|---|---|---|---|---|---|---|"
    for claim in claims:
        if (named := found[claim["sweep"]]) is None:
            yield f"| {claim['number']} | not measured yet | | | | | |"
            continue
        for baseline, group in claim["contrasts"]:
            rows = {
                key(row): row for row in named[1]["contrasts"] if (row["baseline"], row["group"]) == (baseline, group)
            }
            tokens = next((axis for axis in ("tokens_generated", "tokens_trained") if axis in rows), "")
            cells = [ratio(rows.get(name)) for name in (*COSTS.values(), tokens, "steps")]
            yield f"| {claim['number']} | `{baseline}` | `{group}` | {' | '.join(cells)} |"


def section(claim: Claim, named: tuple[str, Result] | None, comment: Mapping[str, str]) -> Iterator[str]:
    """The section of a claim: question, conclusions, picture, table, and how to repeat the measurement."""
    yield f"## Claim {claim['number']}{PARTS.get(claim['sweep'], '')}: {claim['question']}"
    yield ""
    yield f"Source: {claim['paper']}. Command: `winnow sweep configs/sweeps/{claim['sweep']}.toml`"
    if named is None:
        yield ""
        yield "Not measured yet."
        return
    name, result = named
    yield f"([result](../benchmarks/results/{name}))."
    yield ""
    if sentence := comment.get("found", "").strip():
        yield sentence
        yield ""
    yield from verdicts(result)
    yield ""
    yield f"![Accuracy of claim {claim['number']}'s cells over steps and seconds](static/{claim['sweep']}.svg)"
    yield ""
    yield from table(result)
    yield ""
    yield from cells(result)
    if limits := comment.get("limits", "").strip():
        yield ""
        yield limits


def verdicts(result: Result) -> Iterator[str]:
    """A line per contrast: its axes, grouped by the conclusion from their intervals."""
    contrasts: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in distinct(result["contrasts"]):
        axes = contrasts.setdefault((row["group"], row["baseline"]), {}).setdefault(conclusion(row), [])
        axes.append(axis(row))
    for (group, baseline), conclusions in contrasts.items():
        parts = [f"{what} by {listed(axes)}" if what in SURE else what for what, axes in conclusions.items()]
        line = f"- `{group}` against `{baseline}`: {'; '.join(parts)}."
        yield textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def listed(words: Sequence[str]) -> str:
    """ "a", "a and b", or "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def conclusion(row: Mapping[str, Any]) -> str:
    """The conclusion for one contrast and axis."""
    if row.get("ratio") is not None:
        return SURE[0] if not row["shows_difference"] else SURE[1] if row["ratio"] > 1 else SURE[2]
    sides = {row[side]: list(row["times"][side].values()) for side in ("baseline", "group")}
    never = [f"{t.count('never')} of {len(t)} seeds of `{label}`" for label, t in sides.items() if "never" in t]
    return f"the level is not reached by {' and '.join(never) or 'some seeds'}"


def table(result: Result) -> Iterator[str]:
    """One row per contrast and axis."""
    yield "| baseline | against it | by | times sooner (95% interval) | PODS's 99%, a point | level | reached by |"
    yield "|---|---|---|---|---|---|---|"
    for row in distinct(result["contrasts"]):
        rising = ", still rising" if row["still_rising"] else ""
        reached = " / ".join(
            f"{sum(isinstance(t, float) for t in row['times'][side].values())} of {len(row['times'][side])}"
            for side in ("baseline", "group")
        )
        pods = "-" if row["pods_99"] is None else f"{row['pods_99']:.2f}"
        level = "-" if row["level"] is None else f"{100 * row['level']:.1f}%{rising}"
        yield (
            f"| `{row['baseline']}` | `{row['group']}` | {axis(row)} | {ratio(row)} | {pods} | {level} | {reached} |"
        )


def cells(result: Result) -> Iterator[str]:
    """The work of a step of each cell, and its dominating phase."""
    yield "| cell | seeds | learning rate | rollouts | trained | flat groups | final accuracy | largest phases |"
    yield "|---|---|---|---|---|---|---|---|"
    for label, cell in result["cells"].items():
        work, shares = cell["per step"], cell["shares of measured seconds"]
        large = sorted(((share or 0.0, name) for name, share in shares.items()), reverse=True)[:2]
        phases = ", ".join(f"{name} {100 * share:.0f}%" for share, name in large if share)
        groups = work["group/count"] or 1
        final = result["curves"][label]["accuracy"][-1]
        rate = cell["keys"].get("optimizer.learning_rate")
        yield (
            f"| `{label}` | {len(cell['seeds'])} | {rate:g} | {work['budget/rollouts']:.0f} "
            f"| {work['select/trained']:.1f} | {100 * work['group/flat'] / groups:.0f}% | {100 * final:.1f}% "
            f"| {phases} |"
        )


def distinct(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without repeated ones for tokens and steps, which do not depend on the costs."""
    return list({(row["baseline"], row["group"], key(row)): row for row in rows}.values())


def key(row: Mapping[str, Any]) -> str:
    return COSTS[row["costs"]] if row["axis"] == "seconds" else str(row["axis"])


def axis(row: Mapping[str, Any]) -> str:
    return f"seconds {key(row)}" if row["axis"] == "seconds" else AXES[row["axis"]]


def ratio(row: Mapping[str, Any] | None) -> str:
    """ "1.42 (1.10 to 1.83)", or a bound if seeds never reached the level."""
    if row is None:
        return "-"
    if row.get("ratio") is not None:
        interval = "" if row.get("low") is None else f" ({row['low']:.2f} to {row['high']:.2f})"
        return f"{row['ratio']:.2f}{interval}"
    if row.get("at_least") is not None:
        return f"at least {row['at_least']:.2f}"
    return f"at most {row['at_most']:.2f}" if row.get("at_most") is not None else "never reached"


def draw(result: Result, path: Path) -> None:
    """Accuracy over steps, and over the seconds of each pair of cost curves."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"], mpl.rcParams["svg.fonttype"] = "winnow", "none"
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    allocation = result["rollouts by pass rate"]
    every = figure.subplots(1, 1 + len(result["seconds"]) + bool(allocation))
    panels = every[: 1 + len(result["seconds"])]
    for label, color in zip(result["curves"], (COLORS * 3), strict=False):
        curve = result["curves"][label]
        over = {"steps": curve["steps"]} | {name: by[label] for name, by in result["seconds"].items()}
        for panel, x in zip(panels, over.values(), strict=True):
            if len(x) == len(curve["accuracy"]):
                panel.plot(x, curve["accuracy"], color=color, linewidth=1.4, label=label)
                if None not in (*curve["low"], *curve["high"]):
                    panel.fill_between(x, curve["low"], curve["high"], color=color, alpha=0.12, linewidth=0)
    titles = ["steps", *(f"seconds {COSTS.get(name, name)}" for name in result["seconds"])]
    levels = {row["level"] for row in result["contrasts"] if row["level"] is not None}
    for panel, title in zip(panels, titles, strict=True):
        panel.set_xlabel(title)
        panel.grid(alpha=0.25)
        for level in levels:
            panel.axhline(level, color="#888888", linewidth=0.8, linestyle=":")
        panel.set_ylim(0, 1)
    panels[0].set_ylabel("held-out accuracy")
    for (label, counts), color in zip(allocation.items(), COLORS * 3, strict=False):
        known = [(name, count) for name, count in counts.items() if count is not None]
        every[-1].plot(*zip(*known, strict=True), color=color, marker="o", linewidth=1.2, label=label)
        every[-1].set(xlabel="pass rate of a prompt in the step, %", ylabel="rollouts per prompt")
    panels[0].legend(fontsize=7, frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
