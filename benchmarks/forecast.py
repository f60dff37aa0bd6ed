"""Does the forecast of held-out accuracy keep its word? Its coverage on runs whose later part is hidden.

    python benchmarks/forecast.py

The runs are those of every result with the curves of its seeds in benchmarks/results.
A run that occurs twice, by its accuracies, counts once. Results before --split choose the shape and the widths: of
SHAPES x TEMPERS x DRIFTS, those with the smallest mean interval score (Gneiting and Raftery 2007) over CUTS, among
those that cover 88 to 92%. All other runs measure the coverage and choose nothing. CUTS are the shares of a run that a
forecast has seen. The value to cover is the mean of the last three evaluations; each forecast is one per run and cut.
Writes benchmarks/results/<date>_forecast.json.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import frame
import numpy as np

from winnow.algos.forecast import CHOSEN, LEAST_POINTS, LEVEL, AccuracyForecast, ForecastConstants, forecast
from winnow.records import FloatArray

SHAPES, TEMPERS, DRIFTS = ("exponential", "power", "hill"), (1.0, 1.5, 2.0), (0.015, 0.025, 0.035, 0.045)
CUTS = (0.2, 0.33, 0.5, 0.7)
MAIN = 0.5  # the cut of the coverage that a page cites
BAND = (0.88, 0.92)  # coverage of the choosing runs
LAST = 3  # evaluations whose mean is forecast


@dataclass(frozen=True, eq=False)
class Run:
    source: str
    name: str
    steps: FloatArray
    accuracies: FloatArray

    @property
    def came(self) -> float:
        return float(self.accuracies[-LAST:].mean())

    def seen(self, cut: float, constants: ForecastConstants) -> AccuracyForecast | None:
        seen = self.steps <= cut * self.steps[-1]
        return forecast(self.steps[seen], self.accuracies[seen], constants)


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--split", default="2026-11-24", metavar="DATE", help="results before it choose")
    options = frame.parse(parser)
    every = list(_distinct(list(_of_results())))
    choosing = [run for run in every if run.source < options.split]
    measuring = [run for run in every if run.source >= options.split]
    tried = [row for shape in SHAPES for temper in TEMPERS for row in _tried(choosing, shape, temper)]
    fitting = [row for row in tried if BAND[0] <= row["coverage"] <= BAND[1]] or tried
    best = min(fitting, key=lambda row: row["interval_score"])
    report = {
        "runs": {"choosing": _sources(choosing), "measuring": _sources(measuring)},
        "tried": tried,
        "best": best,
        "used": dataclasses.asdict(CHOSEN),
        "level": LEVEL,
        "coverage": {str(cut): _coverage(measuring, cut) for cut in CUTS},
        "coverage by source": {source: _coverage(list(of), MAIN) for source, of in _by_source(measuring)},
        "steps to 95% of the plateau": _reached(measuring, MAIN),
    }
    frame.finish("forecast", report, options, packages=("winnow-rl",), show=("runs", "best", "coverage"))


def _of_results() -> Iterator[Run]:
    for path in sorted(frame.RESULTS.glob("*.json")):
        curves = json.loads(path.read_text(encoding="utf-8")).get("curves")
        for label, of in (curves if isinstance(curves, dict) else {}).items():
            for seed, accuracies in of.get("seeds", {}).items():
                yield Run(path.stem, f"{label}/{seed}", np.array(of["steps"]), np.array(accuracies))


def _distinct(runs: Sequence[Run]) -> Iterator[Run]:
    """Without repetitions of a run, and without runs that are too short to hide a half of."""
    known: set[tuple[float, ...]] = set()
    for run in runs:
        key = tuple(np.round(run.accuracies, 3).tolist())  # results have five digits
        if key not in known and (run.steps <= MAIN * run.steps[-1]).sum() >= LEAST_POINTS:
            known.add(key)
            yield run


def _tried(runs: Sequence[Run], shape: Any, temper: float) -> Iterator[dict[str, Any]]:
    """One row for each drift, which needs no new fit."""
    constants = dataclasses.replace(CHOSEN, shape=shape, temper=temper)
    fits = [(run, cut, run.seen(cut, constants)) for run in runs for cut in CUTS]
    for drift in DRIFTS:
        rows = []
        for run, _, found in fits:
            if found is not None:
                widened = dataclasses.replace(found, constants=dataclasses.replace(constants, drift=drift))
                interval = widened.at(float(run.steps[-1]), evaluations=LAST)
                outside = max(0.0, interval.low - run.came, run.came - interval.high)
                width = interval.high - interval.low
                rows.append((outside == 0, width, width + 2 / (1 - LEVEL) * outside))
        covered, width, score = np.array(rows, dtype=np.float64).mean(axis=0).round(4).tolist()
        yield {
            "shape": shape, "temper": temper, "drift": drift, "coverage": covered, "width": width,
            "interval_score": score,
        }  # fmt: skip


def _coverage(runs: Sequence[Run], cut: float) -> dict[str, Any]:
    """Of the mean of the last evaluations, and of every hidden evaluation alone."""
    ends, single, errors, widths = [], [], [], []
    for run in runs:
        found = run.seen(cut, CHOSEN)
        if found is None:
            continue
        interval = found.at(float(run.steps[-1]), evaluations=LAST)
        ends.append(interval.low <= run.came <= interval.high)
        errors.append(run.came - interval.middle)
        widths.append(interval.high - interval.low)
        for step, accuracy in zip(run.steps, run.accuracies, strict=True):
            if step > cut * run.steps[-1]:
                of_one = found.at(float(step), evaluations=1)
                single.append(of_one.low <= accuracy <= of_one.high)
    if not ends:
        return {"runs": 0}
    return {
        "runs": len(ends),
        "covered": round(float(np.mean(ends)), 4),
        "interval": [round(value, 4) for value in _wilson(sum(ends), len(ends))],
        "covered, each evaluation": round(float(np.mean(single)), 4),
        "median width": round(float(np.median(widths)), 4),
        "mean error": round(float(np.mean(errors)), 4),
        "root mean square error": round(float(np.sqrt(np.mean(np.square(errors)))), 4),
    }


def _reached(runs: Sequence[Run], cut: float) -> dict[str, Any]:
    """How often the interval for the step at 95% of the plateau contains the one that the whole run shows."""
    pairs = [(run.seen(cut, CHOSEN), run.seen(1.0, CHOSEN)) for run in runs]
    known = [(early.reached, whole.reached.middle) for early, whole in pairs if early and whole]
    inside = [interval.low <= middle <= interval.high for interval, middle in known]
    ratios = np.array([min(interval.high / interval.low, 1e3) if interval.low > 0 else 1e3 for interval, _ in known])
    return {
        "runs": len(inside),
        "contains that of the whole run": round(float(np.mean(inside)), 4) if inside else None,
        "median of high / low": round(float(np.median(ratios)), 2) if inside else None,
    }


def _by_source(runs: Sequence[Run]) -> Iterator[tuple[str, Iterator[Run]]]:
    return itertools.groupby(sorted(runs, key=lambda run: run.source), key=lambda run: run.source)


def _sources(runs: Sequence[Run]) -> Mapping[str, int]:
    return {"all": len(runs), **{source: len(list(of)) for source, of in _by_source(runs)}}


def _wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927)."""
    z, p = 1.96, hits / of
    centre, half = p + z * z / (2 * of), z * (p * (1 - p) / of + z * z / (4 * of * of)) ** 0.5
    return (centre - half) / (1 + z * z / of), (centre + half) / (1 + z * z / of)


if __name__ == "__main__":
    main()
