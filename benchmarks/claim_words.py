"""What a stored result of a claim says: which result counts, its times, and the decision on each contrast and axis.

scripts/results.py prints these, and tests/documentation/test_results.py recomputes them. A contrast is primary if
benchmarks/claims.toml registers its claim with `primary` and `looks`. All others are secondary: their words are those
of one look at their own two arms, and no word of theirs is corrected for their number. A claim without `pilots` has
rates that were not tuned on one grid. Its contrasts have intervals, and are not decided.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from decisions import Decision, Times, decided, in_sequence

from winnow_lab.compare.curve import ACCURACY, Curve
from winnow_lab.compare.speed_up import MOST_FALL, mean_fall, seed_time

ROOT = Path(__file__).parents[1]
CLAIMS, RESULTS = ROOT / "benchmarks" / "claims.toml", ROOT / "benchmarks" / "results"
SWEEPS, COSTS = ROOT / "configs" / "sweeps", ROOT / "configs" / "costs"
PUBLISHED, THIS_MACHINE = "pods_a", "two_cpu_cores"  # files of costs
WITHIN = 0.10  # computed over measured seconds, at every point of a file of costs that was measured
STEPS, SECONDS = "steps", "seconds"
Claim = Mapping[str, Any]
Result = Mapping[str, Any]


def claims() -> list[Claim]:
    """The registered claims."""
    return list(tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"])


def is_tuned(claim: Claim) -> bool:
    """Whether the learning rates of its arms were chosen on one grid, by pilots to the horizon."""
    return "pilots" in claim


def dated(name: str, folder: Path = RESULTS) -> list[Path]:
    """The results of this name, the newest first. The second one of a day ends in _2."""
    named = re.compile(rf"(\d{{4}}-\d\d-\d\d)_{name}(?:_(\d+))?\.json")
    found = [(match[1], int(match[2] or 1), path) for path in folder.iterdir() if (match := named.fullmatch(path.name))]
    return [path for *_, path in sorted(found, reverse=True)]


def newest(sweep: str, folder: Path = RESULTS) -> tuple[str, Result] | None:
    """(file name, content) of the newest result of the registered sweep; None without one.

    A result of other cells, seeds, steps, evaluations or learning rates is not the claim's, and a note names it.
    """
    for path in dated(sweep, folder):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not (reasons := list(differences(sweep, result))):
            return path.name, result
        print(f"note: {path.name} is not used: it is not of the registered sweep ({'; '.join(reasons)})")
    return None


def differences(sweep: str, result: Result) -> Iterator[str]:
    """How a result differs from the registered sweep."""
    file = tomllib.loads((SWEEPS / f"{sweep}.toml").read_text(encoding="utf-8"))
    common, variants = file.get("set", {}), file["variants"]
    if result["cells"].keys() != variants.keys():
        yield f"cells {', '.join(result['cells'])}"
        return
    looks = next((c["looks"] for c in claims() if c["sweep"] == sweep and "looks" in c), [len(file["seeds"])])
    allowed = [[str(seed) for seed in file["seeds"][:look]] for look in looks]
    base = tomllib.loads((SWEEPS / file["config"]).read_text(encoding="utf-8"))
    every = common.get("evaluate.every", base["evaluate"]["every"])
    steps = common.get("steps", base["steps"])
    for label, cell in result["cells"].items():
        keys = common | variants[label]
        rate = keys.get("optimizer.learning_rate", base["optimizer"]["learning_rate"])
        points = result["curves"][label]["steps"]
        if sorted(cell["seeds"], key=int) not in allowed:
            yield f"{label}: seeds {', '.join(cell['seeds'])}"
        if cell["steps"] != [steps]:
            yield f"{label}: steps {cell['steps']}"
        if points and {round(b - a) for a, b in itertools.pairwise(points)} != {every}:
            yield f"{label}: evaluated after {points[:3]} steps"
        if cell["keys"].get("optimizer.learning_rate") != rate:
            yield f"{label}: learning rate {cell['keys'].get('optimizer.learning_rate')}"


@dataclass(frozen=True)
class Row:
    """A contrast on one axis, decided."""

    baseline: str
    group: str
    axis: str  # steps, tokens_generated, tokens_trained, or seconds
    costs: str  # the file of costs, for seconds
    decision: Decision
    primary: bool
    source: Mapping[str, Any] = field(repr=False)  # the row of the result
    beyond: tuple[str, ...] = ()  # cells whose costs are beyond the last point of a curve


def rows(claim: Claim, result: Result) -> list[Row]:
    """Every contrast on every axis, in the registered order. Without seconds from costs that fail their own check, or
    that give the arms different numbers of machines.
    """
    primary = _primary(claim, result)
    found = []
    for baseline, group in claim["contrasts"]:
        for row in _distinct(result["contrasts"]):
            seconds = row["axis"] == SECONDS
            if (row["baseline"], row["group"]) != (baseline, group) or (seconds and not accepted(result, row["costs"])):
                continue
            decision = primary.get((baseline, group)) if row["axis"] == claim.get("primary") else None
            costs = row["costs"] if seconds else ""
            if seconds and not of_one_machine(result, baseline, group, costs):
                continue
            beyond = tuple(b for b in (baseline, group) if seconds and is_beyond(result, b, costs))
            own = decision or _secondary(result, row, fixed="level" in claim)
            if not is_tuned(claim):
                own = replace(own, word="not decided")
            found.append(Row(baseline, group, row["axis"], costs, own, decision is not None, row, beyond))
    return found


def _primary(claim: Claim, result: Result) -> dict[tuple[str, str], Decision]:
    """The decision on each contrast of a registered sequence."""
    if "looks" not in claim:
        return {}
    steps = {(row["baseline"], row["group"]): row for row in result["contrasts"] if row["axis"] == claim["primary"]}
    arms = {row[side]: times(result, row, side) for row in steps.values() for side in ("baseline", "group")}
    if any(arm is None for arm in arms.values()):
        raise ValueError(f"claim {claim['number']}: a seed is above the level at its first evaluation")
    pairs = [(first, second) for first, second in claim["contrasts"]]
    known = {label: arm for label, arm in arms.items() if arm is not None}
    return dict(zip(pairs, in_sequence(known, pairs, claim["looks"]), strict=True))


def _secondary(result: Result, row: Mapping[str, Any], *, fixed: bool) -> Decision:
    """One look at the two arms alone; undecided without numbers if a seed starts above the level, and undecided if the
    level is taken from an unstable baseline and not `fixed`.
    """
    baseline, group = (times(result, row, side) for side in ("baseline", "group"))
    if baseline is None or group is None:
        return Decision("undecided", *[math.nan] * 5, len(row["times"]["group"]), "none")
    decision = decided(baseline, group)
    return decision if fixed or fall(result, row["baseline"]) <= MOST_FALL else replace(decision, word="undecided")


def fall(result: Result, label: str) -> float:
    """The mean over seeds of the largest fall of a smoothed curve below its own maximum."""
    return mean_fall([np.array(seed) for seed in result["curves"][label]["seeds"].values()])


def at_level(claim: Claim, result: Result, level: float) -> list[Decision | None]:
    """The decisions on a registered sequence, in steps, at another level; None each if a seed starts above it."""
    arms: dict[str, Times] = {}
    for label, cell in result["curves"].items():
        seeds = [cell["seeds"][seed] for seed in sorted(cell["seeds"], key=int)]
        of = [Curve(label, None, {STEPS: np.array(cell[STEPS])}, {ACCURACY: np.array(seed)}) for seed in seeds]
        found = [seed_time(curve, ACCURACY, level) for curve in of]
        if any(time.ending == "at the first" for time in found):
            return [None] * len(claim["contrasts"])
        arms[label] = Times(tuple(time.x[STEPS] for time in found), tuple(not time.reached for time in found))
    pairs = [(first, second) for first, second in claim["contrasts"]]
    return [*in_sequence(arms, pairs, claim["looks"])]


def times(result: Result, row: Mapping[str, Any], side: str) -> Times | None:
    """The times of a side's seeds in order, those that never reached the level at their horizon. None if a seed was
    above the level at its first evaluation.
    """
    seeds = sorted(row["times"][side], key=int)
    at = [row["times"][side][seed] for seed in seeds]
    if "at the first" in at:
        return None
    never = tuple(time == "never" for time in at)
    if any(never):
        at = [
            _horizon(result, row, side, seed) if out else time for seed, time, out in zip(seeds, at, never, strict=True)
        ]
    return Times(tuple(map(float, at)), never)


def _horizon(result: Result, row: Mapping[str, Any], side: str, seed: str) -> float:
    """The place of a seed's last evaluation; in older results the mean of its cell."""
    if "horizon" in row:
        return float(row["horizon"][side][seed])
    label, axis = row[side], row["axis"]
    of = result["seconds"][row["costs"]][label] if axis == SECONDS else result["curves"][label][axis]
    return float(of[-1])


def _distinct(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows without repeated ones for tokens and steps, which do not depend on the costs."""
    key = ("baseline", "group", "axis")
    return list({(*(r[k] for k in key), r["axis"] == SECONDS and r["costs"]): r for r in found}.values())


def accepted(result: Result, costs: str) -> bool:
    """Whether a result's seconds count: from published costs, or from a file of costs that passes its own check."""
    if costs == PUBLISHED:
        return True
    file = json.loads((COSTS / f"{costs}.json").read_text(encoding="utf-8"))
    check = file.get("check")
    fits = check is not None and max(1 - check["lowest"], check["highest"] - 1) <= WITHIN
    return bool(fits and result["costs"].get(costs) == file["source"])


def is_beyond(result: Result, label: str, costs: str) -> bool:
    """Whether a cell samples or trains more rollouts than the last point of a curve: its cost is then extrapolated."""
    file = json.loads((COSTS / f"{costs}.json").read_text(encoding="utf-8"))
    step = result["cells"][label]["per step"]
    parts = max(1.0, step["group/count"] or 1.0) if file["per"] == "prompt" else 1.0
    work = {"sampling": step["budget/rollouts"], "update": step["select/trained"]}
    return any(done / parts > 1.01 * file[phase]["rollouts"][-1] for phase, done in work.items())


def of_one_machine(result: Result, baseline: str, group: str, costs: str) -> bool:
    """Whether the costs give two cells equal numbers of machines: published ones count one per prompt of a step."""
    file = json.loads((COSTS / f"{costs}.json").read_text(encoding="utf-8"))
    one, two = (result["cells"][label]["keys"]["rollout.prompts_per_step"] for label in (baseline, group))
    return file["per"] != "prompt" or bool(one == two)


def step_costs(result: Result, baseline: str, group: str) -> dict[str, float]:
    """file of costs -> seconds of the group's mean step over the baseline's, by accepted costs within their points."""
    found = {}
    for costs, of in result["seconds"].items():
        within = not any(is_beyond(result, label, costs) for label in (baseline, group))
        comparable = within and of_one_machine(result, baseline, group, costs)
        if accepted(result, costs) and comparable and of[baseline] and of[group]:
            found[costs] = of[group][-1] / of[baseline][-1] * _steps(result, baseline) / _steps(result, group)
    return found


def _steps(result: Result, label: str) -> float:
    return float(result["curves"][label]["steps"][-1])


def relative_cost(result: Result, baseline: str, group: str) -> tuple[float, float]:
    """(least, most) cost of a step of the group over the baseline's.

    From known costs, the most with the error that their check allows. Without any, a step that neither samples nor
    trains more rollouts costs at most as much, and one that does neither less at least as much.
    """
    known = step_costs(result, baseline, group).values()
    if known:
        return min(known), max(known) * (1 + WITHIN)
    one, two = (result["cells"][label]["per step"] for label in (baseline, group))
    more = [two[name] / one[name] - 1 for name in ("budget/rollouts", "select/trained")]
    return (1.0 if min(more) > -SAME else 0.0), (1.0 if max(more) < SAME else math.inf)


SAME = 0.1  # relative difference of two numbers of rollouts that are meant to be equal; flat groups are not trained on


def candidates(sweeps: Sequence[str]) -> tuple[int, int, int]:
    """(candidates, better ones, worse ones) of sweeps of docs/results.md, by the 95% interval of the difference of
    their mean accuracy from the baseline at equal generated tokens.
    """
    found = []
    for sweep in sweeps:
        path = dated(sweep)[0]
        contrasts = json.loads(path.read_text(encoding="utf-8"))["contrasts"]
        found += [of["tokens_generated"]["mean difference"] for of in contrasts.values()]
    return len(found), sum(of["low"] > 0 for of in found), sum(of["high"] < 0 for of in found)


def shared(results: Sequence[Result]) -> tuple[int, int]:
    """(different runs, places that they fill) in these results; a run is known by its seed and its curve."""
    places = [
        (seed, tuple(curve))
        for result in results
        for cell in result["curves"].values()
        for seed, curve in cell["seeds"].items()
    ]
    return len(set(places)), len(places)


def advice(row: Row, result: Result) -> str:
    """ "do", "do not" or "no effect shown": for a contrast by steps in seconds, else on its own axis.

    Without a word there is no advice. A secondary gain is no "do": nothing corrects it for the number of contrasts.
    """
    of, unit = row.decision, (1.0, 1.0)
    if of.word in ("undecided", "not decided"):
        return "no effect shown"
    least, most = relative_cost(result, row.baseline, row.group) if row.axis == STEPS else unit
    if row.primary and of.bound in ("", "at least") and of.low / most > 1:
        return "do"
    if of.bound in ("", "at most") and least > 0 and of.high / least < 1:
        return "do not"
    return "no effect shown"
