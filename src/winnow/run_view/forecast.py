"""The forecast of a run's held-out accuracy in words: the expected plateau, and when 95% of it is reached.

Steps become tokens and seconds at the pace of the last quarter of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.algos.forecast import REACHED, AccuracyForecast, forecast
from winnow.metrics import is_step
from winnow.run_view.configuration import EVALUATIONS, Evaluations, evaluations
from winnow.state.logbook import read_metrics
from winnow.state.saved_runs import manifest_of
from winnow.view.text import format_count, format_duration, format_percent

Row = Mapping[str, float]
MEASURE = "eval/accuracy_sampled"
SPENT = ("budget/tokens_generated", "seconds/step")
SURE = 0.9  # the weight of rising curves below which no plateau is forecast
FARTHEST = 10.0  # times the steps done, beyond which a forecast has no number


@dataclass(frozen=True)
class RunForecast:
    """A forecast, and the costs by which its steps are converted."""

    found: AccuracyForecast
    done: int  # steps
    spent: Mapping[str, tuple[float, float]]  # metric -> its sum over the steps done, and its mean per further step

    @property
    def rises(self) -> bool:
        """Whether the accuracy rises. A plateau of a curve that falls, or stays, is no reason to stop or to go on."""
        return self.found.rising >= SURE

    def line(self) -> str:
        """ "95% of the expected plateau (71.0%, 68.2% to 75.1%) at step 140 (110 to 200), 1.2M tokens (...)".

        The last part is the seconds of training. All intervals have 90%."""
        if not self.rises:
            return "the held-out accuracy does not rise, so no plateau is forecast"
        plateau = self.found.expected_plateau
        of = f"{format_percent(plateau.middle)}, {format_percent(plateau.low)} to {format_percent(plateau.high)}"
        parts = [f"{REACHED:.0%} of the expected plateau ({of}) at step {self._shown(lambda step: f'{step:,.0f}')}"]
        if (tokens := self.spent.get("budget/tokens_generated")) is not None:
            parts.append(self._shown(lambda step: format_count(self._cost(tokens, step)), " tokens"))
        if (seconds := self.spent.get("seconds/step")) is not None:
            parts.append(self._shown(lambda step: format_duration(self._cost(seconds, step)), " of training"))
        return f"{', '.join(parts)}; 90% intervals"

    def advice(self) -> str | None:
        """That the run is past its plateau; None unless the whole interval of the step is."""
        if not self.rises or self.done < self.found.reached.high:
            return None
        twice = self.found.at(2 * self.done)
        return (
            f"the run is past {REACHED:.0%} of its plateau: consider stopping. Twice the steps are expected to end at "
            f"{format_percent(max(0.0, twice.middle))} ({format_percent(max(0.0, twice.low))} to "
            f"{format_percent(min(1.0, twice.high))})"
        )

    def lines(self) -> list[str]:
        """The forecast, and the advice if there is one."""
        advice = self.advice()
        return [self.line(), *([advice] if advice else [])]

    def short(self) -> str:
        """ "plateau at 140 (110 to 200)", for a line of progress of a run whose accuracy rises."""
        return f"plateau at {self._shown(lambda step: f'{step:,.0f}')}"

    def _cost(self, spent: tuple[float, float], step: float) -> float:
        total, pace = spent
        return total + (step - self.done) * pace if step >= self.done else total * step / max(1, self.done)

    def _shown(self, show: Callable[[float], str], unit: str = "") -> str:
        """ "140 (110 to 200)" for the step; numbers beyond FARTHEST times the steps done are "more than" that."""
        most, of = FARTHEST * max(1, self.done), self.found.reached
        middle, low, high = (
            "more than " * (step > most) + show(min(step, most)) for step in (of.middle, of.low, of.high)
        )
        return f"{middle}{unit} ({low} to {high})"


def read_of(row: Row) -> Row:
    """What `forecast_of` reads of a row: a run in progress keeps no more of each of its steps."""
    return {name: row[name] for name in ("step", "budget/rollouts", MEASURE, *SPENT) if name in row}


def forecast_of(rows: Sequence[Row], evaluated: Evaluations = EVALUATIONS) -> RunForecast | None:
    """The forecast from a run's rows; None if too few evaluations can be compared with each other."""
    seen = [row for row in evaluated.rows(rows) if not math.isnan(row.get(MEASURE, math.nan))]
    found = forecast([row["step"] for row in seen], [row[MEASURE] for row in seen])
    if found is None:
        return None
    steps = [row for row in rows if is_step(row)]
    spent = {}
    for name in SPENT:
        each = np.array([row.get(name, math.nan) for row in steps], dtype=np.float64)
        if len(each) and np.isfinite(each).all():
            spent[name] = float(each.sum()), float(each[-max(1, len(each) // 4) :].mean())
    done = max([int(row["step"]) + 1 for row in steps], default=int(found.last))
    return RunForecast(found, done, spent)


def forecast_lines(run: Path) -> list[str]:
    """The forecast of a run's folder in words; none if there is no forecast. Raises DataError for a damaged log."""
    found = forecast_of(read_metrics(run), evaluations(manifest_of(run).data))
    return [] if found is None else found.lines()
