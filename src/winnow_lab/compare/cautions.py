"""Notes for the reader of a comparison: differences between the runs, and how far the times can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from winnow.config import leaves
from winnow.run_view.configuration import at, differing, shown
from winnow.state.resume import WHAT_IS_MEASURED, within
from winnow_lab.compare.curve import AXES, MEASURES
from winnow_lab.compare.groups import ReadRun, SeedGroup
from winnow_lab.compare.speed_up import Plateau, SeedTime

_WHEN = ("evaluate.every", "evaluate.every_minutes")
_MACHINE = ("device", "threads", "gpu", "platform")  # keys of a manifest that affect seconds
_NOT_COMPARED = ("steps", "max_hours", "output", "checkpoint", "log", "alarms", "track")  # a resume may change them
FEW = 4  # evaluations before the level: below, the mean of three of them moves a speed-up towards 1
_OF_SEEDS: Sequence[tuple[Callable[[SeedTime], bool], str]] = (  # the seeds that get a note, and its text
    (lambda s: s.ending == "never", "never reached the level, so the speed-up has no interval, and at most a bound"),
    (
        lambda s: s.ending == "at the first",
        "above the level in the mean of their first two evaluations, so their time to it is not known; evaluate "
        "earlier, or more often",
    ),
    (lambda s: s.at_last, "first reach the level at their last evaluation; longer runs may give another speed-up"),
)


def cautions(groups: Sequence[SeedGroup], *, seconds_measured: bool = True) -> Iterator[str]:
    """The notes as sentences, most serious first. Different machines matter only if seconds were measured."""
    runs = [run for group in groups for run in group.runs]
    for group in groups:
        yield from _not_one_configuration(group)
    yield from _unlike_evaluations(groups)
    yield from _unlike_inputs(runs)
    yield from merged(note for run in runs for note in _unfinished(run))
    for run in runs:
        yield from _changed(run)
    if seconds_measured:
        yield from _unlike_machines(groups)
    alone = "one seed, so the variation between seeds is not known"
    yield from merged((group.label, alone) for group in groups if group.seeds == 1)
    for group in groups:
        yield from _lacking(group)


def merged(notes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Notes of (subject, text) as sentences, one for each text, with all its subjects."""
    subjects: dict[str, list[str]] = {}
    for subject, text in notes:
        subjects.setdefault(text, []).append(subject)
    yield from (f"{', '.join(of)}: {text}" for text, of in subjects.items())


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


def _unfinished(run: ReadRun) -> Iterator[tuple[str, str]]:
    steps, hours = run.config.get("steps"), run.config.get("max_hours")
    over = isinstance(hours, (int, float)) and 0 < hours <= run.hours
    if isinstance(steps, int) and run.done < steps and not over:
        yield f"{run.path} ({run.done} of {steps} steps)", "unfinished, still running or interrupted"


def _changed(run: ReadRun) -> Iterator[str]:
    changes = run.manifest.get("changes")
    keys = dict.fromkeys(str(at(change, "key")) for change in (changes if isinstance(changes, list) else ()))
    changed = [key for key in keys if not within(key, _NOT_COMPARED)]
    if changed:
        yield f"{run.path} was resumed with other {', '.join(changed)}: no single configuration or machine describes it"


def _unlike_machines(groups: Sequence[SeedGroup]) -> Iterator[str]:
    timed = [run for group in groups for run in group.runs if "seconds" in run.curve.x and run.named.alone]
    for what in _MACHINE:
        values = [(run.path.name, run.manifest.get(what)) for run in timed]
        if len({repr(value) for _, value in values}) > 1:
            yield f"seconds were measured on different machines: {_values(what, values)}"


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
        of.setdefault("absent" if value is None else shown(value, contents=True), []).append(name)
    each = (f"{value} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" for value, names in of.items())
    return f"{key} is {' and '.join(each)}"


def time_cautions(
    groups: Sequence[SeedGroup],
    baseline: str,
    measure: str,
    plateau: Plateau,
    times: Mapping[str, Sequence[SeedTime]],
) -> Iterator[str]:
    """The notes as sentences. Those on times of seeds need two groups at least."""
    for group in groups:
        yield from _cut(group)
        yield from _lacks_evaluations(group, measure)
    if len(groups) < 2:
        return
    if plateau.level is None:
        yield f"{baseline}: its plateau is {plateau.value:.3g}, so there is no level above 0 and no speed-up"
    for applies, text in _OF_SEEDS:
        some = {label: [seed for seed in seeds if applies(seed)] for label, seeds in times.items()}
        yield from merged((_subject(label, own, times[label]), text) for label, own in some.items() if own)
    yield from merged(one for label, seeds in times.items() for one in _soon(label, seeds))
    if plateau.still_rising:
        yield _rising(baseline, plateau)
    if plateau.unstable:
        fall = f"{100 * plateau.fall:.3g} points" if plateau.share else f"{plateau.fall:.3g}"
        yield (
            f"{baseline}: unstable; its seeds fall by {fall} below their own maximum, in the mean, so its plateau is "
            f"no level to compare with; lower its learning rate"
        )


def _rising(baseline: str, plateau: Plateau) -> str:
    if math.isnan(plateau.gain):
        return f"{baseline}: one evaluation does not show whether it still rises; evaluate during training"
    scale, unit = (100.0, " points") if plateau.share else (1.0, "")
    gain, bound, most = (f"{scale * number:.3g}" for number in (plateau.gain, plateau.bound, plateau.most_gain))
    return (
        f"{baseline}: still rising by {gain}{unit} over the last third of its evaluations (95% upper bound {bound}, "
        f"and at most {most} at a plateau); train longer, or with more seeds"
    )


def _cut(group: SeedGroup) -> Iterator[str]:
    """Note that a group's mean curve ends where the first of its seeds ends."""
    lasts = {curve.source: float(curve.x["steps"][-1]) for curve in group.curves if "steps" in curve.x}
    if len(lasts) > 1 and min(lasts.values()) < max(lasts.values()):
        first = min(lasts, key=lambda source: lasts[source])
        yield (
            f"{group.label}: its curve ends after {lasts[first]:g} of {max(lasts.values()):g} steps, with the last "
            f"evaluation of {first}; omit that seed, or train it as far as the others"
        )


def _lacks_evaluations(group: SeedGroup, measure: str) -> Iterator[str]:
    """Notes on seeds that lack an evaluation of all other seeds. Evaluations by the clock are exempt: they are at
    different steps for each seed.
    """
    by_the_clock = any(at(run.config, "evaluate", "every_minutes") for run in group.runs)
    if len(group.curves) < 2 or by_the_clock or any("steps" not in curve.x for curve in group.curves):
        return
    steps = [set(curve.x["steps"][np.isfinite(curve.y[measure])].tolist()) for curve in group.curves]
    for place, curve in enumerate(group.curves):
        others = set.intersection(*(steps[:place] + steps[place + 1 :]))
        lacking = sorted(step for step in others - steps[place] if step < max(steps[place]))
        if lacking:
            listed = ", ".join(f"{step:g}" for step in lacking[:3]) + ", ..." * (len(lacking) > 3)
            yield (
                f"{group.label}: {curve.source} lacks the evaluation after {listed} steps, which the other seeds have; "
                f"its time to the level is less certain than theirs"
            )


def _soon(label: str, seeds: Sequence[SeedTime]) -> Iterator[tuple[str, str]]:
    places = [seed.evaluations for seed in seeds if seed.reached]
    if places and (mean := float(np.mean(places))) < FEW:
        yield (
            f"{label} ({mean:.1f})",
            f"average number of evaluations up to the level; below {FEW} a speed-up is biased towards 1",
        )


def _subject(label: str, some: Sequence[SeedTime], seeds: Sequence[SeedTime]) -> str:
    """ "GRPO (2 of 3 seeds: 0, 1)"."""
    names = [seed.seed for seed in some if seed.seed is not None]
    named = f": {', '.join(names[:5])}{', ...' * (len(names) > 5)}" if names else ""
    return f"{label} ({len(some)} of {len(seeds)} seeds{named})"
