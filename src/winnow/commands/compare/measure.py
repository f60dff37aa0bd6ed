"""The measures of a comparison: accuracy, its parts and format, or any metric of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from winnow.errors import ConfigError, near_miss

ACCURACY = "accuracy"
EVALUATION = "eval/"
MEASURED = {  # measure -> metrics of an evaluation; the first that is present counts
    ACCURACY: ("accuracy_sampled",),
    "length": ("length_mean",),
    "answer": ("part/answer", "accuracy_sampled"),
    "formatted": ("formatted",),
    "correct_and_formatted": ("correct_and_formatted",),
}
MEASURES = tuple(MEASURED)
SHARES = tuple(measure for measure in MEASURES if measure != "length")


def prefix_of(task: str | None) -> str:
    """The prefix of an evaluation's metrics, or of the metrics of its further task `task`."""
    return EVALUATION if task is None else f"{EVALUATION}{task}/"


def metrics_of(measure: str, task: str | None) -> list[str]:
    """The metrics of a measure, of the further task `task` if it is given; the first that is present counts."""
    if measure in MEASURED:
        return [prefix_of(task) + name for name in MEASURED[measure]]
    return [prefix_of(task) + measure.removeprefix(EVALUATION)]


def measurable(rows: Iterable[Mapping[str, float]], task: str | None) -> frozenset[str]:
    """Every measure that has a number in some row."""
    names = {name for row in rows for name, value in row.items() if not math.isnan(value)}
    prefix = prefix_of(task)
    plain = {EVALUATION + name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return frozenset(plain | {measure for measure in SHARES if names & set(metrics_of(measure, task))})


def check_measure(measure: str, known: Sequence[tuple[str, frozenset[str]]]) -> None:
    """Raise ConfigError for a measure that any of these pairs (run or file, its measures) lacks."""
    common = frozenset.intersection(*(names for _, names in known))
    lacking = [source for source, names in known if measure not in names]
    if not lacking:
        return
    if len(lacking) == len(known):
        what = f"there is no measure {measure!r} in what is compared"
    else:
        what = f"{', '.join(lacking[:3])}{', ...' * (len(lacking) > 3)} lacks the measure {measure!r}"
    raise ConfigError(what, remedy=near_miss(measure, common), code="config.unknown_name")


def title(measure: str) -> str:
    """The name of a measure in tables and pictures."""
    return measure.removeprefix(EVALUATION).replace("_", " ") if measure != ACCURACY else ACCURACY
