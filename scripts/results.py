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
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]
import claim_words as words  # noqa: E402 - from a folder that was added
import equal_seconds  # noqa: E402
from claim_words import Claim, Result, Row  # noqa: E402
from decisions import Decision  # noqa: E402

COMMENTS, PAGE, README = ROOT / "docs" / "results_comments.toml", ROOT / "docs" / "results.md", ROOT / "README.md"
PICTURES = ROOT / "docs" / "static"
COLORS = (*equal_seconds.COLORS, "#cc79a7", "#e69f00", "#56b4e9", "#999999")
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
HEADS = ("seconds, this machine", "seconds, published costs", "tokens generated", "steps")  # of the columns with ratios
GROUPS = ("do", "do not", "no effect shown")
BUDGET = ("budget_screen", "budget_dr_grpo", "budget_cuts")  # sweeps of the table of samplers, allocators, rounds, cuts
Found = Mapping[str, tuple[str, Result] | None]


def main() -> None:
    claims = words.claims()
    found = {claim["sweep"]: words.newest(claim["sweep"]) for claim in claims}
    PAGE.write_text(page(claims, found), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), claims, found), encoding="utf-8")
    for sweep, named in found.items():
        if named is not None:
            draw(named[1], PICTURES / f"{sweep}.svg")
    equal_seconds.draw(words.RESULTS)


def comments() -> Mapping[str, Any]:
    return tomllib.loads(COMMENTS.read_text(encoding="utf-8"))


def name(label: str) -> str:
    """A cell in words that a reader knows."""
    return str(comments()["names"][label])


def page(claims: Sequence[Claim], found: Found, results: Path = words.RESULTS) -> str:
    """The whole page. A claim without a result is listed as not measured."""
    texts = comments()
    heading, _, text = texts["page"]["title"].strip().partition("\n\n")
    parts = [heading, "", *equal_seconds.table(results), text, "", *decided_table(claims, found), ""]
    parts += [filled(texts["page"]["method"], claims, found).strip(), ""]
    for heading, of in sections(claims):
        parts += [f"## {heading}", ""]
        for claim in of:
            parts += [*section(claim, found[claim["sweep"]], texts.get(claim["sweep"], {})), ""]
    parts += [filled(texts["page"]["budget"], claims, found).strip(), "", texts["page"]["end"].strip(), ""]
    return "\n".join(parts)


def sections(claims: Sequence[Claim]) -> Iterator[tuple[str, list[Claim]]]:
    """(heading, its claims): those with tuned rates, those without, and those of the appendix."""
    yield "Claims with learning rates from one grid", [c for c in claims if words.is_tuned(c)]
    yield "Claims without tuned rates", [c for c in claims if not words.is_tuned(c) and "appendix" not in c]
    yield "Without tuned rates, with three seeds", [c for c in claims if "appendix" in c]


def decided_table(claims: Sequence[Claim], found: Found) -> Iterator[str]:
    """A row per contrast with tuned rates, on every axis: first what to do, then what not to do, then the others."""
    yield f"| | this | instead of | {' | '.join(HEADS)} | claim |"
    yield "|---|---|---|---|---|---|---|---|"
    of_axes = [(claim, row, words.advice(row, result)) for claim, row, result in advised(claims, found)]
    for group in GROUPS:
        shown = [(claim, row) for claim, row, advice in of_axes if advice == group]
        if not shown:
            yield f"| **{group}** | none is shown | | | | | | |"
        for claim, row in shown:
            of = rows_of(claim["sweep"], claims, found)
            pair = [other for other in of if (other.baseline, other.group) == (row.baseline, row.group)]
            cells = " | ".join("-" if one is None else _cell(one) for one in on_axes(pair))
            yield f"| **{group}** | {name(row.group)} | {name(row.baseline)} | {cells} | {claim['number']} |"


def on_axes(pair: Sequence[Row]) -> list[Row | None]:
    """The rows of a contrast in the order of the columns: seconds of either costs, generated tokens, steps."""
    of = {row.costs or row.axis: row for row in pair}
    return [of.get(axis) for axis in (words.THIS_MACHINE, words.PUBLISHED, "tokens_generated", words.STEPS)]


def advised(claims: Sequence[Claim], found: Found) -> Iterator[tuple[Claim, Row, Result]]:
    """The contrasts of the first table on their first axis: those with tuned rates that were run."""
    for claim in claims:
        named = found[claim["sweep"]]
        if named is None or not words.is_tuned(claim):
            continue
        for first, second in claim["contrasts"]:
            of = [row for row in words.rows(claim, named[1]) if (row.baseline, row.group) == (first, second)]
            if of:
                yield claim, min(of, key=lambda row: (bool(row.beyond), claim["axes"].index(row.axis))), named[1]


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
        if kind == "budget":
            return "\n".join(budget())
        if kind == "sooner":
            of = _result("budget_confirm")["sooner at 95% of the plateau"][rest[0]][rest[1]]
            return f"{of['ratio']:.2f} ({of['low']:.2f} to {of['high']:.2f})"
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


def _wrapped(line: str) -> str:
    """A line of a comment, over as many lines as it needs. Items of a list are indented; tables and code are kept."""
    if line.startswith(("|", "    ", "#")):
        return line
    return "\n".join(equal_seconds.wrapped(line, "  " * line.startswith("- ")))


def readme(text: str, claims: Sequence[Claim], found: Found, results: Path = words.RESULTS) -> str:
    """README.md with its paragraph of effects between the two marks."""
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    effects = "\n".join([*equal_seconds.items(results), filled(comments()["readme"]["effects"], claims, found)])
    return f"{before}{MARKS[0]}\n{effects}\n\n{MARKS[1]}{after}"


def _cell(row: Row) -> str:
    """Word and ratio, bold if the contrast is primary; the ratio alone if its rates were not tuned."""
    text = ratio(row) if row.decision.word == "not decided" else phrase(row, by=False)
    return f"**{text}**" if row.primary else text


def section(claim: Claim, named: tuple[str, Result] | None, comment: Mapping[str, str]) -> Iterator[str]:
    """The section of a claim: the question, the answer in a line, the command, and the intervals."""
    yield f"### Claim {claim['number']}{PARTS.get(claim['sweep'], '')}: {claim['question']}"
    yield ""
    if named is None:
        yield f"Not measured yet: `winnow sweep configs/sweeps/{claim['sweep']}.toml`."
        return
    file, result = named
    rows = words.rows(claim, result)
    seeds = {len(cell["seeds"]) for cell in result["cells"].values()}
    yield from equal_seconds.wrapped(f"{answer(claim, rows)} Source: {claim['paper']}; {max(seeds)} seeds.")
    yield f"`winnow sweep configs/sweeps/{claim['sweep']}.toml`:"
    yield f"[result](../benchmarks/results/{file}), [curves](static/{claim['sweep']}.svg)."
    yield ""
    if words.is_tuned(claim):
        yield from equal_seconds.wrapped(" ".join(notes(claim, result)))
    else:
        yield from table(claim, rows)
    if limits := comment.get("limits", "").strip():
        yield ""
        yield limits


def answer(claim: Claim, rows: Sequence[Row]) -> str:
    """The words of a claim's contrasts on their first axis, counted; without tuned rates, the intervals by steps."""
    pairs = dict.fromkeys((row.baseline, row.group) for row in rows)
    if not words.is_tuned(claim):
        of = [row.decision for row in rows if row.axis == words.STEPS]
        above, below = sum(one.low > 1 for one in of), sum(one.high < 1 for one in of)
        return f"Not decided. By steps, {above} of {len(of)} intervals are above 1, and {below} below."
    first = [next(row.decision.word for row in rows if (row.baseline, row.group) == pair) for pair in pairs]
    counts = ", ".join(f"{first.count(word)} {word}" for word in dict.fromkeys(first))
    return f"In the table above, by the first axis of the claim: {counts}."


def notes(claim: Claim, result: Result) -> Iterator[str]:
    """Of a claim with tuned rates: the rates, how far a ratio depends on the level, and which arms are unstable."""
    rates: dict[float, list[str]] = {}
    for label, cell in result["cells"].items():
        rates.setdefault(cell["keys"]["optimizer.learning_rate"], []).append(name(label))
    path = words.dated(claim["pilots"][-1])[0]
    least, *others = sorted(rates, key=lambda rate: len(rates[rate]))
    chosen = (
        f"{least:g} for {' and for '.join(rates[least])}, and {', '.join(f'{rate:g}' for rate in others)} for others"
    )
    yield f"Chosen by [pilots](../benchmarks/results/{path.name}): a learning rate of {chosen}."
    yield f"The level is {100 * claim['level']:.1f}%."
    if "looks" in claim:
        yield from levels(claim, result)
    for label in result["cells"]:
        if (fall := words.fall(result, label)) > words.MOST_FALL:
            yield f"Unstable here, with a fall of {100 * fall:.1f} points from its own maximum: {name(label)}."


def levels(claim: Claim, result: Result) -> Iterator[str]:
    """The least and the largest ratio by steps at levels around the registered one."""
    shown = [claim["level"] + difference for difference in LEVELS]
    found = [at for at in (words.at_level(claim, result, level) for level in shown) if None not in at]
    ratios = [[of.ratio for of in at if of is not None] for at in found]
    ends = ", ".join(f"{min(of):.2f} to {max(of):.2f}" for of in zip(*ratios, strict=True))
    span = f"from {100 * shown[0]:.1f}% to {100 * shown[-1]:.1f}%"
    yield f"At levels {span}, the ratios by steps of its contrasts are {ends}."


def table(claim: Claim, rows: Sequence[Row]) -> Iterator[str]:
    """A row per contrast, with a column per axis that has an interval."""
    pairs = {
        pair: [row for row in rows if (row.baseline, row.group) == pair] for pair in map(tuple, claim["contrasts"])
    }
    columns = [place for place in range(len(HEADS)) if any(on_axes(of)[place] is not None for of in pairs.values())]
    yield f"| this | instead of | {' | '.join(HEADS[place] for place in columns)} |"
    yield "|---" * (2 + len(columns)) + "|"
    for (first, second), of in pairs.items():
        cells = [on_axes(of)[place] for place in columns]
        shown = ["-" if row is None else _cell(row) for row in cells] if of else ["not run"] * len(columns)
        yield f"| {name(second)} | {name(first)} | {' | '.join(shown)} |"


def budget() -> Iterator[str]:
    """The table of samplers, allocators, rounds and cuts: what each spent, and its accuracy at equal tokens."""
    signal = _result("budget_signal")["candidates"]
    yield "| candidate | signal | wasted | generated | at the end | at equal generated tokens |"
    yield "|---|---|---|---|---|---|"
    shown: set[str] = set()
    for sweep in BUDGET:
        result = _result(sweep)
        for label, cell in result["cells"].items():
            if label in shown:
                continue  # the baseline of the screen again
            shown.add(label)
            of = result["contrasts"].get(label)
            points = "-" if of is None else equal_seconds.points(of["tokens_generated"]["mean difference"])
            spent = signal.get(label, {}).get("signal per 1000 tokens")
            yield (
                f"| `{label}` | {'-' if spent is None else format(spent['mean'], '.1f')} "
                f"| {100 * cell['share of tokens wasted']:.0f}% | {cell['tokens'] / 1000:.0f}k "
                f"| {100 * cell['accuracy at the end']['mean']:.1f}% | {points} |"
            )


def _result(sweep: str) -> Any:
    return json.loads(words.dated(sweep)[0].read_text(encoding="utf-8"))


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
