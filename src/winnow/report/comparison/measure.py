"""What a comparison measures: accuracy, its parts and format, or any metric of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from winnow.errors import ConfigError, near_miss

ACCURACY = "accuracy"
EVALUATION = "eval/"
MEASURED = {  # measure -> the metrics of an evaluation, the first one that is there counts
    ACCURACY: ("accuracy_sampled",),
    "length": ("length_mean",),
    "answer": ("part/answer", "accuracy_sampled"),
    "formatted": ("formatted",),
    "correct_and_formatted": ("correct_and_formatted",),
}
MEASURES = tuple(MEASURED)
SHARES = tuple(measure for measure in MEASURES if measure != "length")


def prefix_of(task: str | None) -> str:
    """What the metrics of an evaluation begin with, or those of its further task `task`."""
    return EVALUATION if task is None else f"{EVALUATION}{task}/"


def metrics_of(measure: str, task: str | None) -> list[str]:
    """The metrics that a measure reads in a row, of the further task where one is given; the first one that is there
    counts.
    """
    if measure in MEASURED:
        return [prefix_of(task) + name for name in MEASURED[measure]]
    return [prefix_of(task) + measure.removeprefix(EVALUATION)]


def measurable(rows: Iterable[Mapping[str, float]], task: str | None) -> frozenset[str]:
    """Every measure that some row has a number of."""
    names = {name for row in rows for name, value in row.items() if not math.isnan(value)}
    prefix = prefix_of(task)
    plain = {EVALUATION + name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return frozenset(plain | {measure for measure in SHARES if names & set(metrics_of(measure, task))})


def check_measure(measure: str, known: Sequence[tuple[str, frozenset[str]]]) -> None:
    """Raise ConfigError for a measure that any of these (a run or a file, what it has) lacks."""
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
    """What a table and a picture call it."""
    return measure.removeprefix(EVALUATION).replace("_", " ") if measure != ACCURACY else ACCURACY
