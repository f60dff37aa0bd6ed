"""What a reader of a comparison must know about its runs: how they differ beyond what is compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from winnow.config import leaves
from winnow.report.comparison.curve import AXES
from winnow.report.comparison.key_differences import WHAT_IS_MEASURED, at, differing, shown, within
from winnow.report.comparison.measure import MEASURES
from winnow.report.comparison.run_groups import ReadRun, SeedGroup

_WHEN = ("evaluate.every", "evaluate.every_minutes")
_MACHINE = ("device", "threads", "gpu", "platform")  # of a manifest: what seconds depend on


def cautions(groups: Sequence[SeedGroup], *, seconds_measured: bool = True) -> Iterator[str]:
    """In sentences, the gravest first. Machines matter only to seconds that were measured."""
    runs = [run for group in groups for run in group.runs]
    for group in groups:
        yield from _not_one_configuration(group)
    yield from _unlike_evaluations(groups)
    yield from _unlike_inputs(runs)
    for run in runs:
        yield from _unfinished(run)
        yield from _changed(run)
    if seconds_measured:
        yield from _unlike_machines(groups)
    for group in groups:
        yield from _one_seed(group)
        yield from _lacking(group)


def _not_one_configuration(group: SeedGroup) -> Iterator[str]:
    if keys := differing([run.keys for run in group.runs]):
        said = "; ".join(_values(key, [(run.path.name, run.keys.get(key)) for run in group.runs]) for key in keys[:3])
        yield f"{group.label}: its runs are no seeds of one configuration: {said}"


def _unlike_evaluations(groups: Sequence[SeedGroup]) -> Iterator[str]:
    named = [(group.label, group.runs[0].keys) for group in groups if group.runs]
    own_temperature = all(keys.get("evaluate.temperature") is not None for _, keys in named)
    for key in differing([keys for _, keys in named]):
        if not within(key, WHAT_IS_MEASURED) or (key == "rollout.temperature" and own_temperature):
            continue
        what = "the groups are evaluated at different steps" if key in _WHEN else "the accuracies are of unlike things"
        yield f"{what}: {_values(key, [(label, keys.get(key)) for label, keys in named])}"


def _unlike_inputs(runs: Sequence[ReadRun]) -> Iterator[str]:
    """Files of one name and key with other contents."""
    seen: dict[tuple[str | int, ...], tuple[str, ReadRun]] = {}
    said: set[tuple[str | int, ...]] = set()
    for run in runs:
        for path, digest in leaves(run.manifest.get("inputs")):
            if len(path) < 2:  # no digest, which stands under key and file
                continue
            was, first = seen.setdefault(path, (digest, run))
            if digest != was and path not in said:
                said.add(path)
                yield f"{path[0]}: {path[-1]} was another file for {run.path} than for {first.path}"


def _unfinished(run: ReadRun) -> Iterator[str]:
    asked = run.config.get("steps")
    if isinstance(asked, int) and run.done < asked and not run.config.get("max_hours"):
        yield f"{run.path} has done {run.done} of {asked} steps: it is still going, or was interrupted"


def _changed(run: ReadRun) -> Iterator[str]:
    changes = run.manifest.get("changes")
    keys = dict.fromkeys(str(at(change, "key")) for change in (changes if isinstance(changes, list) else ()))
    told = [key for key in keys if key not in ("steps", "output")]
    if told:
        yield f"{run.path} was resumed with other {', '.join(told)}: no single configuration or machine describes it"


def _unlike_machines(groups: Sequence[SeedGroup]) -> Iterator[str]:
    timed = [run for group in groups for run in group.runs if "seconds" in run.curve.x and run.named.alone]
    for what in _MACHINE:
        values = [(run.path.name, run.manifest.get(what)) for run in timed]
        if len({repr(value) for _, value in values}) > 1:
            yield f"seconds are of different machines: {_values(what, values)}"


def _one_seed(group: SeedGroup) -> Iterator[str]:
    if group.seeds == 1:
        yield f"{group.label}: one seed, so nothing is known of how far another would differ"


def _lacking(group: SeedGroup) -> Iterator[str]:
    """What some of its curves have and others do not; the group then has none."""
    for names, of in ((AXES, "x"), (MEASURES, "y")):
        for name in names:
            there = [name in getattr(curve, of) for curve in group.curves]
            if any(there) and not all(there):
                without = group.curves[there.index(False)].source
                yield f"{group.label}: no {name.replace('_', ' ')}, which {without} lacks"


def _values(key: str, named: Sequence[tuple[str, Any]]) -> str:
    """ "evaluate.problems is 32 (a, b) and 64 (c)"."""
    of: dict[str, list[str]] = {}
    for name, value in named:
        of.setdefault("absent" if value is None else shown(value), []).append(name)
    told = (f"{value} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" for value, names in of.items())
    return f"{key} is {' and '.join(told)}"
