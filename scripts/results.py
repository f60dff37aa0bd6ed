#!/usr/bin/env python
"""Write docs/results.md with its pictures, and README's paragraph of effects, from the results in benchmarks/results.

    python scripts/results.py

benchmarks/claims.toml lists the claims, and benchmarks/claims.py measures them. docs/results_comments.toml has the text
that a person adds: names of cells, methods and limits. Every number and every word of effect is from the results, by
benchmarks/claim_words.py. A result that is not of the registered sweep is not used.
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import claim_words as words  # noqa: E402 - from the folder that was added
from claim_words import Claim, Result, Row  # noqa: E402
from decisions import Decision  # noqa: E402

COMMENTS, PAGE, README = ROOT / "docs" / "results_comments.toml", ROOT / "docs" / "results.md", ROOT / "README.md"
PICTURES = ROOT / "docs" / "static"
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
COSTS = {
    words.THIS_MACHINE: "on this machine",
    words.PUBLISHED: "at published costs",
}  # file of the costs -> on the page
AXES = {"tokens_generated": "tokens generated", "tokens_trained": "tokens trained", "steps": "steps"}
PARTS = {  # of claims with several sweeps
    "claim_07_allocation_grpo": ", GRPO",
    "claim_07_allocation_raft": ", RAFT++",
    "claim_10_llama": ", Llama",
    "claim_10_words": ", word problems",
}
MARKS = ("<!-- effects: python scripts/results.py -->\n", "<!-- end of the effects -->\n")
LEVELS = (-0.05, -0.025, 0.0, 0.025)  # of accuracy, beside a registered level
GROUPS = ("do", "do not", "no effect shown")
OTHERS = 10  # the claim whose cells have the labels of others, and another policy
WIDTH = 118
Found = Mapping[str, tuple[str, Result] | None]


def main() -> None:
    claims = words.claims()
    found = {claim["sweep"]: words.newest(claim["sweep"]) for claim in claims}
    PAGE.write_text(page(claims, found), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), claims, found), encoding="utf-8")
    for sweep, named in found.items():
        if named is not None:
            draw(named[1], PICTURES / f"{sweep}.svg")


def comments() -> Mapping[str, Any]:
    return tomllib.loads(COMMENTS.read_text(encoding="utf-8"))


def name(label: str) -> str:
    """A cell in words that a reader knows."""
    return str(comments()["names"][label])


def page(claims: Sequence[Claim], found: Found) -> str:
    """The whole page. Claims without a result are listed as not measured."""
    texts = comments()
    parts = [texts["page"]["title"].strip(), "", *screen(claims, found), ""]
    parts += [
        filled(texts["page"]["method"], claims, found).strip(),
        "",
        "## All contrasts",
        "",
        *summary(claims, found),
        "",
    ]
    appendix = False
    for claim in claims:
        if claim.get("appendix") and not appendix:
            appendix = True
            parts += ["# Appendix: three seeds each", ""]
        parts += [*section(claim, found[claim["sweep"]], texts.get(claim["sweep"], {})), ""]
    parts += [texts["page"]["end"].strip(), ""]
    return "\n".join(parts)


def screen(claims: Sequence[Claim], found: Found) -> Iterator[str]:
    """What to do, what not to do, and what shows no effect: a row per tuned contrast, on its first axis."""
    yield "| | instead of | evidence | when it applies |"
    yield "|---|---|---|---|"
    rows = [(*row, words.advice(row[1], row[2])) for row in advised(claims, found)]
    for group in GROUPS:
        of_group = [row for row in rows if row[3] == group]
        yield f"| **{group.capitalize()}**{'' if of_group else ': nothing'} | | | |"
        for claim, row, result, _ in of_group:
            yield f"| {name(row.group)} | {name(row.baseline)} | {evidence(claim, row)} | {where(claim, row, result)} |"


def advised(claims: Sequence[Claim], found: Found) -> Iterator[tuple[Claim, Row, Result]]:
    """The contrasts of the first table: those whose rates were tuned on one grid, and that were run."""
    for claim in claims:
        named = found[claim["sweep"]]
        if named is None or not words.is_tuned(claim):
            continue
        for first, second in claim["contrasts"]:
            of = [row for row in words.rows(claim, named[1]) if (row.baseline, row.group) == (first, second)]
            if of:
                yield claim, min(of, key=lambda row: (bool(row.beyond), claim["axes"].index(row.axis))), named[1]


def evidence(claim: Claim, row: Row) -> str:
    """ "gain by steps, 1.29 (1.12 to 1.48); claim 3, secondary, 5 seeds"."""
    how = "primary" if row.primary else "secondary"
    return f"{phrase(row)}; claim {claim['number']}{PARTS.get(claim['sweep'], '')}, {how}, {row.look} seeds"


def where(claim: Claim, row: Row, result: Result) -> str:
    """When the evidence applies: the cost of a step for a contrast by steps, and the comment on the sweep."""
    parts = []
    if row.axis == words.STEPS and (known := words.step_costs(result, row.baseline, row.group)):
        costs = " and ".join(f"{cost:.2f} times as much {COSTS[costs]}" for costs, cost in known.items())
        parts.append(f"a step costs {costs}")
    parts.append(comments().get(claim["sweep"], {}).get("where", "one prompt per step"))
    return "; ".join(parts)


def phrase(row: Row, *, by: bool = True) -> str:
    """ "gain by steps, 1.29 (1.12 to 1.48)": the word, and the numbers that it is made from."""
    of = row.decision
    if of.word == "not decided":
        return f"not decided{f' by {axis(row)}' if by else ''}: rates not tuned, {ratio(row)}"
    excluded = of.word == "undecided" and not of.bound and not of.low <= 1 <= of.high
    why = (", not reached by the order" if row.primary else ", as its level is unstable") * excluded
    return f"{of.word}{f' by {axis(row)}' if by else ''}{why}, {ratio(row)}"


def ratio(row: Row) -> str:
    """ "1.29 (1.12 to 1.48)"; "at most 0.57 (0.45 to 0.73)" with seeds that never reached the level."""
    return f"{interval(row.decision)}{'†' if row.beyond else ''}"


def interval(of: Decision) -> str:
    """The ratio with its 95% interval."""
    if math.isnan(of.ratio):
        return "a seed starts above the level"
    bound = f"{of.bound} " if of.bound not in ("", "none") else ""
    return f"{bound}{of.ratio:.2f} ({of.low:.2f} to {of.high:.2f})"


def axis(row: Row) -> str:
    return f"seconds {COSTS[row.costs]}" if row.axis == words.SECONDS else AXES[row.axis]


def filled(text: str, claims: Sequence[Claim], found: Found) -> str:
    """A comment with each {sweep baseline group axis [costs]} replaced by its phrase, wrapped again. Of several that
    "or" separates, the first that was measured is taken.
    """

    def replaced(match: re.Match[str]) -> str:
        kind, *rest = match[1].split()
        if kind == "shared":
            different, places = words.shared([named[1] for named in found.values() if named])
            return f"{different} different runs fill {places} places"
        if kind == "candidates":
            count, better, worse = words.candidates(rest)
            return f"of {count} candidates, {better or 'none'} reached a higher and {worse or 'none'} a lower accuracy"
        if kind == "items":
            return "".join(f"\n{item}" for item in items(rest[0], claims, found))
        for choice in match[1].split(" or "):
            sweep, first, second, on, *costs = choice.split()
            wanted = (first, second, on, *(costs or [""]))
            for row in rows_of(sweep, claims, found):
                if (row.baseline, row.group, row.axis, row.costs) == wanted:
                    return phrase(row)
        return f"not measured by {f'seconds {COSTS[costs[0]]}' if costs else AXES[on]}"

    return "\n".join(map(_wrapped, re.sub(r"\{([^}]+)\}", replaced, text.strip()).split("\n")))


def rows_of(sweep: str, claims: Sequence[Claim], found: Found) -> list[Row]:
    """The decided rows of a claim; empty if it has no result."""
    (claim,) = (claim for claim in claims if claim["sweep"] == sweep)
    named = found[sweep]
    return [] if named is None else words.rows(claim, named[1])


def items(sweep: str, claims: Sequence[Claim], found: Found) -> Iterator[str]:
    """A list item per contrast of a claim that was run, with its word on the first axis within the costs' points."""
    rows = [row for row in rows_of(sweep, claims, found) if not row.beyond]
    for first, second in dict.fromkeys((row.baseline, row.group) for row in rows):
        row = next(row for row in rows if (row.baseline, row.group) == (first, second))
        yield f"- **{name(second)}, instead of {name(first)}**: {phrase(row)}."


def _wrapped(line: str) -> str:
    """A line of a comment, over as many lines as it needs. Items of a list are indented; tables and code are kept."""
    if line.startswith(("|", "    ", "#")):
        return line
    indent = "  " * line.startswith("- ")
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def readme(text: str, claims: Sequence[Claim], found: Found) -> str:
    """README.md with its paragraph of effects between the two marks."""
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{filled(comments()['readme']['effects'], claims, found)}\n\n{MARKS[1]}{after}"


def summary(claims: Sequence[Claim], found: Found) -> Iterator[str]:
    """One row per contrast: the word and the ratio of times on each axis."""
    yield "| claim | instead of | this | seconds, this machine | seconds, published costs | tokens | steps | rates |"
    yield "|---|---|---|---|---|---|---|---|"
    tuned = {(row.baseline, row.group): claim["number"] for claim, row, _ in advised(claims, found)}
    for claim in claims:
        if (named := found[claim["sweep"]]) is None:
            yield f"| {claim['number']} | not measured yet | | | | | | |"
            continue
        rows = words.rows(claim, named[1])
        for first, second in claim["contrasts"]:
            also = "" if claim["number"] == OTHERS else tuned.get((first, second), "")
            rates = "one grid" if words.is_tuned(claim) else f"not tuned{f', see claim {also}' if also else ''}"
            of = {row.costs or row.axis: row for row in rows if (row.baseline, row.group) == (first, second)}
            tokens = next((row for row in of.values() if row.axis.startswith("tokens")), None)
            cells = [of.get(words.THIS_MACHINE), of.get(words.PUBLISHED), tokens, of.get(words.STEPS)]
            shown = " | ".join("-" if row is None else _cell(row) for row in cells) if of else "not run | - | - | -"
            label = f"{claim['number']}{PARTS.get(claim['sweep'], '')}"
            yield f"| {label} | {name(first)} | {name(second)} | {shown} | {rates} |"


def _cell(row: Row) -> str:
    """Word and ratio, bold if the contrast is primary; the ratio alone if its rates were not tuned."""
    text = ratio(row) if row.decision.word == "not decided" else phrase(row, by=False)
    return f"**{text}**" if row.primary else text


def section(claim: Claim, named: tuple[str, Result] | None, comment: Mapping[str, str]) -> Iterator[str]:
    """The section of a claim: question, conclusions, picture, table, and how to repeat the measurement."""
    yield f"## Claim {claim['number']}{PARTS.get(claim['sweep'], '')}: {claim['question']}"
    yield ""
    yield f"Source: {claim['paper']}. Command: `winnow sweep configs/sweeps/{claim['sweep']}.toml`"
    if named is None:
        yield ""
        yield "Not measured yet."
        return
    file, result = named
    yield f"([result](../benchmarks/results/{file}))."
    yield ""
    rows = words.rows(claim, result)
    yield from conclusions(claim, rows)
    yield ""
    yield f"![Accuracy of claim {claim['number']}'s cells over steps and seconds](static/{claim['sweep']}.svg)"
    yield ""
    yield from table(result, rows, fixed="level" in claim)
    yield ""
    yield from cells(result)
    if words.is_tuned(claim):
        yield ""
        yield from unstable(result)
        if "looks" in claim:
            yield from levels(claim, result)
            yield ""
        yield from pilots(claim)
    if limits := comment.get("limits", "").strip():
        yield ""
        yield limits


def unstable(result: Result) -> Iterator[str]:
    """The arms that are unstable in the claim's runs."""
    for label in result["cells"]:
        if (fall := words.fall(result, label)) > words.MOST_FALL:
            yield f"{name(label)}: unstable in these runs, with a fall of {100 * fall:.1f} points from its own maximum."
            yield ""


def levels(claim: Claim, result: Result) -> Iterator[str]:
    """The words by steps at levels around the registered one."""
    yield "The same by steps at other levels, which shows how far a word depends on the level (secondary):"
    yield ""
    shown = [claim["level"] + difference for difference in LEVELS]
    yield f"| this | instead of | {' | '.join(f'{100 * level:.1f}%' for level in shown)} |"
    yield "|---" * (2 + len(shown)) + "|"
    columns = [words.at_level(claim, result, level) for level in shown]
    for (first, second), *found in zip(claim["contrasts"], *columns, strict=True):
        texts = ["-" if of is None else f"{of.word}, {interval(of)}" for of in found]
        yield f"| {name(second)} | {name(first)} | {' | '.join(texts)} |"


def pilots(claim: Claim) -> Iterator[str]:
    """The pilots of a claim: a row per arm, with the mean accuracy and the fall at every rate of the grid."""
    path = max(words.RESULTS.glob(f"20??-??-??_{claim['pilots'][-1]}.json"))
    found = json.loads(path.read_text(encoding="utf-8"))
    grid: dict[str, dict[float, Mapping[str, Any]]] = {}
    for label, cell in found["cells"].items():
        arm, _, rate = label.partition(",learning_rate=")
        grid.setdefault(arm, {})[float(rate)] = cell
    rates = sorted({rate for of in grid.values() for rate in of})
    link = f"[result](../benchmarks/results/{path.name})"
    text = (
        f"Pilots ({link}): held-out accuracy, averaged over all evaluations, and in brackets the largest fall below a "
        "seed's own maximum in points. Both are means over seeds. The chosen rate is bold."
    )
    yield textwrap.fill(text, WIDTH, break_on_hyphens=False)
    yield ""
    yield f"| arm | {' | '.join(f'{rate:g}' for rate in rates)} |"
    yield "|---" * (1 + len(rates)) + "|"
    for arm, of in grid.items():
        texts = {rate: f"{100 * cell['mean accuracy']:.1f}% ({100 * cell['fall']:.1f})" for rate, cell in of.items()}
        texts[found["chosen"][arm]] = f"**{texts[found['chosen'][arm]]}**"
        yield f"| {name(arm)} | {' | '.join(texts.get(rate, '-') for rate in rates)} |"
    yield ""
    yield f"The level is {100 * claim['level']:.1f}%."


def conclusions(claim: Claim, rows: Sequence[Row]) -> Iterator[str]:
    """A line per contrast: the word on each axis, the primary one first, or that it was not run or not tuned."""
    for first, second in claim["contrasts"]:
        of = [row for row in rows if (row.baseline, row.group) == (first, second)]
        said = "; ".join(f"{phrase(row)}{row.how}" for row in sorted(of, key=lambda row: not row.primary))
        if not words.is_tuned(claim):
            said = "; ".join(f"{ratio(row)} by {axis(row)}" for row in of)
            said = f"not decided, because the rates were not tuned on one grid. {said}"
        line = f"- {name(second)}, against {name(first)}: {said if of else 'not run'}."
        yield textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def table(result: Result, rows: Sequence[Row], *, fixed: bool) -> Iterator[str]:
    """One row per contrast and axis."""
    yield "| instead of | this | by | word | times sooner (95%) | 90% | PODS's 99%, a point | level | reached by |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        of, source = row.decision, row.source
        reached = " / ".join(
            f"{sum(isinstance(t, float) for t in source['times'][side].values())} of {len(source['times'][side])}"
            for side in ("baseline", "group")
        )
        pods = "-" if source["pods_99"] is None else f"{source['pods_99']:.2f}"
        near = f"{of.near_low:.2f} to {of.near_high:.2f}"
        word = f"{of.word}{', primary' * row.primary}"
        yield (
            f"| {name(row.baseline)} | {name(row.group)} | {axis(row)} | {word} | {ratio(row)} | {near} | {pods} "
            f"| {level(result, source, fixed=fixed)} | {reached} |"
        )


def level(result: Result, row: Mapping[str, Any], *, fixed: bool) -> str:
    """ "65.2%, still rising", "unstable", or "fixed" beforehand."""
    if row["level"] is None:
        return "-"
    if fixed:
        return f"{100 * row['level']:.1f}%, fixed"
    rising = row["still_rising"] and row["gain_of_last_third"] >= -0.01
    unstable = words.fall(result, row["baseline"]) > words.MOST_FALL
    return f"{100 * row['level']:.1f}%{', still rising' * rising}{', unstable' * unstable}"


def cells(result: Result) -> Iterator[str]:
    """The work of a step of each cell, and its dominating phase."""
    yield "| cell | label | seeds | learning rate | sampled | trained | flat groups | final accuracy | largest phases |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for label, cell in result["cells"].items():
        work, shares = cell["per step"], cell["shares of measured seconds"]
        large = sorted(((share or 0.0, phase) for phase, share in shares.items()), reverse=True)[:2]
        phases = ", ".join(f"{phase} {100 * share:.0f}%" for share, phase in large if share)
        groups = work["group/count"] or 1
        final = result["curves"][label]["accuracy"][-1]
        rate = cell["keys"].get("optimizer.learning_rate")
        yield (
            f"| {name(label)} | `{label}` | {len(cell['seeds'])} | {rate:g} | {work['budget/rollouts']:.0f} "
            f"| {work['select/trained']:.1f} | {100 * work['group/flat'] / groups:.0f}% | {100 * final:.1f}% "
            f"| {phases} |"
        )


def draw(result: Result, path: Path) -> None:
    """Accuracy over steps, and over the seconds of each accepted pair of cost curves."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"], mpl.rcParams["svg.fonttype"] = "winnow", "none"
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    allocation = result["rollouts by pass rate"]
    seconds = {costs: by for costs, by in result["seconds"].items() if words.accepted(result, costs)}
    every = figure.subplots(1, 1 + len(seconds) + bool(allocation), squeeze=False)[0]
    panels = every[: 1 + len(seconds)]
    for label, color in zip(result["curves"], (COLORS * 3), strict=False):
        curve = result["curves"][label]
        over = {"steps": curve["steps"]} | {costs: by[label] for costs, by in seconds.items()}
        for panel, (costs, x) in zip(panels, over.items(), strict=True):
            if len(x) == len(curve["accuracy"]):
                beyond = costs != "steps" and words.is_beyond(result, label, costs)
                named = name(label) + " (costs extrapolated)" * beyond
                panel.plot(x, curve["accuracy"], "--" if beyond else "-", color=color, linewidth=1.4, label=named)
                if None not in (*curve["low"], *curve["high"]):
                    panel.fill_between(x, curve["low"], curve["high"], color=color, alpha=0.12, linewidth=0)
    titles = ["steps", *(f"seconds {COSTS.get(costs, costs)}" for costs in seconds)]
    levels = {row["level"] for row in result["contrasts"] if row["level"] is not None}
    for panel, title in zip(panels, titles, strict=True):
        panel.set_xlabel(title)
        panel.grid(alpha=0.25)
        for height in levels:
            panel.axhline(height, color="#888888", linewidth=0.8, linestyle=":")
        panel.set_ylim(0, 1)
    panels[0].set_ylabel("held-out accuracy")
    for (label, counts), color in zip(allocation.items(), COLORS * 3, strict=False):
        known = [(rate, count) for rate, count in counts.items() if count is not None]
        every[-1].plot(*zip(*known, strict=True), color=color, marker="o", linewidth=1.2, label=label)
        every[-1].set(xlabel="pass rate of a prompt in the step, %", ylabel="rollouts per prompt")
    panels[0].legend(fontsize=7, frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
