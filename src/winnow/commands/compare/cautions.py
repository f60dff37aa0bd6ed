"""Notes for the reader of a comparison: differences between the runs that affect its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from winnow.commands.compare.curve import AXES
from winnow.commands.compare.groups import ReadRun, SeedGroup
from winnow.commands.compare.measure import MEASURES
from winnow.config import leaves
from winnow.run_view.configuration import WHAT_IS_MEASURED, at, differing, shown, within

_WHEN = ("evaluate.every", "evaluate.every_minutes")
_MACHINE = ("device", "threads", "gpu", "platform")  # keys of a manifest that affect seconds


def cautions(groups: Sequence[SeedGroup], *, seconds_measured: bool = True) -> Iterator[str]:
    """The notes as sentences, most serious first. Different machines matter only if seconds were measured."""
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
        values = "; ".join(_values(key, [(run.path.name, run.keys.get(key)) for run in group.runs]) for key in keys[:3])
        yield f"{group.label}: its runs are not seeds of one configuration: {values}"


def _unlike_evaluations(groups: Sequence[SeedGroup]) -> Iterator[str]:
    named = [(group.label, group.runs[0].keys) for group in groups if group.runs]
    own_temperature = all(keys.get("evaluate.temperature") is not None for _, keys in named)
    for key in differing([keys for _, keys in named]):
        if not within(key, WHAT_IS_MEASURED) or (key == "rollout.temperature" and own_temperature):
            continue
        what = "the groups are evaluated at different steps" if key in _WHEN else "the evaluations are not comparable"
        yield f"{what}: {_values(key, [(label, keys.get(key)) for label, keys in named])}"


def _unlike_inputs(runs: Sequence[ReadRun]) -> Iterator[str]:
    """Notes on input files with the same key and name and different contents."""
    seen: dict[tuple[str | int, ...], tuple[str, ReadRun]] = {}
    noted: set[tuple[str | int, ...]] = set()
    for run in runs:
        for path, digest in leaves(run.manifest.get("inputs")):
            if len(path) < 2:  # digests are stored under a key and a file; anything else is not one
                continue
            was, first = seen.setdefault(path, (digest, run))
            if digest != was and path not in noted:
                noted.add(path)
                yield f"{path[0]}: the contents of {path[-1]} differ between {run.path} and {first.path}"


def _unfinished(run: ReadRun) -> Iterator[str]:
    steps = run.config.get("steps")
    if isinstance(steps, int) and run.done < steps and not run.config.get("max_hours"):
        yield f"{run.path} has finished {run.done} of {steps} steps: it is still running, or was interrupted"


def _changed(run: ReadRun) -> Iterator[str]:
    changes = run.manifest.get("changes")
    keys = dict.fromkeys(str(at(change, "key")) for change in (changes if isinstance(changes, list) else ()))
    changed = [key for key in keys if key not in ("steps", "output")]
    if changed:
        yield f"{run.path} was resumed with other {', '.join(changed)}: no single configuration or machine describes it"


def _unlike_machines(groups: Sequence[SeedGroup]) -> Iterator[str]:
    timed = [run for group in groups for run in group.runs if "seconds" in run.curve.x and run.named.alone]
    for what in _MACHINE:
        values = [(run.path.name, run.manifest.get(what)) for run in timed]
        if len({repr(value) for _, value in values}) > 1:
            yield f"seconds were measured on different machines: {_values(what, values)}"


def _one_seed(group: SeedGroup) -> Iterator[str]:
    if group.seeds == 1:
        yield f"{group.label}: one seed, so the variation between seeds is not known"


def _lacking(group: SeedGroup) -> Iterator[str]:
    """Notes on axes and measures that some curves of a group lack; the group then has no curve of them."""
    for names, of in ((AXES, "x"), (MEASURES, "y")):
        for name in names:
            present = [name in getattr(curve, of) for curve in group.curves]
            if any(present) and not all(present):
                without = group.curves[present.index(False)].source
                yield f"{group.label}: no {name.replace('_', ' ')}, which {without} lacks"


def _values(key: str, named: Sequence[tuple[str, Any]]) -> str:
    """ "evaluate.problems is 32 (a, b) and 64 (c)"."""
    of: dict[str, list[str]] = {}
    for name, value in named:
        of.setdefault("absent" if value is None else shown(value), []).append(name)
    each = (f"{value} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" for value, names in of.items())
    return f"{key} is {' and '.join(each)}"
