"""Groups of runs that are seeds of one configuration, with labels, and notes on omitted inputs.

The seconds of a run's steps may be computed from two cost curves and the work of each step (--costs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from winnow import registry
from winnow.algos.costs import StepCosts, StepWork
from winnow.errors import DataError
from winnow.metrics import is_step
from winnow.run_view.configuration import Keys, at, differing, keys_of, labels
from winnow.state.foreign import open_log
from winnow.state.logbook import is_new, log_notes, read_metrics
from winnow.state.saved_runs import describe
from winnow.view.text import common_prefix
from winnow_lab.compare.curve import SHARES, Curve, Row, check_measure, curve_of, further_tasks, measurable
from winnow_lab.compare.inputs import NamedFile, NamedRun, read_curves

WORK = ("group/count", "budget/rollouts", "budget/tokens_generated", "select/trained", "budget/tokens_trained")
PROBE = ("budget/probe_rollouts", "budget/probe_tokens")


def works_of(row: Row, config: Mapping[str, Any], source: str) -> tuple[StepWork, StepWork]:
    """The work of one step, and of the probe before it. Raises DataError for a row that lacks the step's work.

    A probe is one further call that samples all prompts of its window. If the curves are per prompt, the window's
    prompts are spread over as many machines as the step has prompts.
    """
    lacking = [name for name in WORK if math.isnan(row.get(name, math.nan))]
    if lacking:
        raise DataError(
            f"{source}: its metrics of step {row['step']:g} lack {', '.join(lacking)}, from which its seconds are "
            f"computed",
            remedy="compare measured seconds (no costs), or omit the run",
            code="data.incomplete",
        )
    prompts, rollouts, generated, trained, tokens_trained = (row[name] for name in WORK)
    epochs = _epochs(config, source)
    work = StepWork(int(prompts), rollouts, generated, epochs * trained, epochs * tokens_trained)
    probed, probe_tokens = (row.get(name, 0.0) for name in PROBE)
    return work, StepWork(int(prompts), probed, probe_tokens, trained=0, tokens_trained=0)


def seconds_of(row: Row, costs: StepCosts, config: Mapping[str, Any], source: str) -> float:
    """Seconds of one step, including the probe before it. Raises as `works_of`."""
    work, probe = works_of(row, config, source)
    # A probe belongs to its step, so the fixed cost per step is counted once
    return costs.seconds(work) + (costs.seconds(probe) - costs.seconds_per_step if probe.rollouts else 0.0)


def costs_notes(costs: StepCosts, groups: Sequence[SeedGroup]) -> Iterator[str]:
    """Notes on computed seconds: their source, the groups in which they are extrapolated, and work that they omit."""
    yield (
        f"seconds are computed, not measured: from the rollouts that every step sampled and trained on, and the costs "
        f"of {costs.source}"
    )
    beyond = {group.label: sum(run.extrapolated for run in group.runs) for group in groups}
    if named := [f"{label} ({count:,} steps)" for label, count in beyond.items() if count]:
        yield (
            f"{', '.join(named)}: seconds are extrapolated, as more rollouts are sampled or trained than at the last "
            f"point of these costs"
        )
    if ahead := [group.label for group in groups if any(at(run.config, "rollout", "ahead") for run in group.runs)]:
        yield f"{', '.join(ahead)}: seconds of sampling and updates are added up, and rollout.ahead = 1 overlaps them"
    omitted = [(group.label, what) for group in groups for run in group.runs for what in omitted_work(run.config)]
    for what in dict.fromkeys(what for _, what in omitted):
        lacking = dict.fromkeys(label for label, of in omitted if of == what)
        yield f"{', '.join(lacking)}: these costs omit the seconds of {what}"


def omitted_work(config: Mapping[str, Any]) -> list[str]:
    """The work of a run's steps that two cost curves, of sampling and of updates, do not contain."""
    allocate = at(config, "allocate")
    name = at(allocate, "use") if isinstance(allocate, Mapping) else allocate
    member = registry.members("allocator").get(str(name))  # None: a user's own, or the default
    reads = member is not None and member.traits.source != "none" and member.traits.gradient_norms
    norms = reads and at(config, "probe", "gradient_norm") != "none"
    return ["a value model"] * (at(config, "critic") is not None) + ["an allocator's gradient norms"] * norms


def _epochs(config: Mapping[str, Any], source: str) -> int:
    epochs = at(config, "update", "epochs")
    if epochs is None:
        return 1
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise DataError(
            f"{source}: update.epochs in its manifest is {epochs!r}, and seconds need a number of epochs",
            remedy="put the manifest back as it was, or compare measured seconds (no costs)",
            key="update.epochs",
            code="data.malformed",
        )
    return epochs


@dataclass(frozen=True, eq=False)
class ReadRun:
    """A run with an evaluation."""

    named: NamedRun
    manifest: Mapping[str, Any]
    done: int  # finished steps
    curve: Curve
    measurable: frozenset[str]  # the measures of its evaluations
    extrapolated: int = 0  # steps that are beyond the last point of the given costs
    hours: float = 0.0  # of training at the last evaluation, if the run counts them

    @property
    def path(self) -> Path:
        return self.named.path

    @property
    def config(self) -> Mapping[str, Any]:
        return self.manifest["config"]  # type: ignore[no-any-return]

    @cached_property
    def keys(self) -> Keys:
        """The values of the keys that affect the results (`keys_of`), by dotted name; files by their contents."""
        return keys_of(self.config, self.manifest.get("inputs"))


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs, or curves from a file, that differ in their seed."""

    label: str
    curves: tuple[Curve, ...]
    runs: tuple[ReadRun, ...] = ()  # empty for curves from a file

    @property
    def seeds(self) -> int | None:
        """The number of seeds; None for one mean curve."""
        return None if any(curve.seed is None for curve in self.curves) else len(self.curves)


def seed_groups(
    inputs: Sequence[NamedRun | NamedFile], task: str | None, measure: str, costs: StepCosts | None
) -> tuple[list[SeedGroup], list[str]]:
    """The groups in the order of the inputs, and notes on omitted inputs. `task` is a further task of the evaluations,
    `measure` is required of every curve, and `costs` replace a run's measured seconds.

    Raises DataError if nothing is left, for two runs of one seed in a group, and for runs and files that cannot be
    read; RunFolderError for a folder without a manifest; ConfigError for a measure that a run or a file lacks.
    """
    notes: list[str] = []
    members: list[tuple[str, Curve, ReadRun | None]] = []
    runs = list(_read_runs([item for item in inputs if isinstance(item, NamedRun)], task, measure, costs, notes))
    named = dict(zip((run.path for run in runs), _labels(runs), strict=True))
    by_path = {run.path: run for run in runs}
    for item in inputs:
        if isinstance(item, NamedFile):
            members += _from_file(item, task, costs, notes)
        elif item.path in by_path:
            members.append((named[item.path], by_path[item.path].curve, by_path[item.path]))
    groups = [_group(label, members) for label in dict.fromkeys(label for label, _, _ in members)]
    if not groups:
        foreign = any(isinstance(item, NamedRun) and open_log(item.path) is not None for item in inputs)
        remedy = "compare the rollouts of training by the measure reward/mean, or " * foreign + "name other runs"
        raise DataError("; ".join(["nothing is left to compare", *notes]), remedy=remedy, code="data.empty")
    known = [(curve.source, run.measurable if run else frozenset(curve.y) & set(SHARES)) for _, curve, run in members]
    check_measure(measure, known)
    if costs is not None:
        return groups, [*notes, *costs_notes(costs, groups)]
    return [_without_shared_seconds(group) for group in groups], [*notes, *_shared_notes(groups)]


def _read_runs(
    named: Sequence[NamedRun], task: str | None, measure: str, costs: StepCosts | None, notes: list[str]
) -> Iterator[ReadRun]:
    for item in named:
        if not item.begun:
            notes.append(f"{item.path} has not started, and is omitted")
            continue
        manifest = describe(item.path).data
        if is_new(item.path):
            notes.append(f"{item.path} has not finished a step yet, and is omitted")
            continue
        notes += [f"{item.path}: {note}" for note in log_notes(item.path)]
        rows, config = read_metrics(item.path), manifest["config"]
        log = open_log(item.path)
        seconds = None if costs is None else partial(seconds_of, costs=costs, config=config, source=str(item.path))
        curve = curve_of(
            rows,
            source=str(item.path),
            seed=str(config.get("seed", item.path)),
            task=task,
            measure=measure,
            seconds=seconds,
            **({} if log is None else {"restoring": log.restoring}),
        )
        if curve is None:
            of, others = ("", []) if task is None else (f" of {task}", further_tasks(rows))
            has = f"; its further tasks: {', '.join(others)}" if others else ""
            notes.append(f"{item.path} has no evaluation{of} yet, and is omitted{has}")
            continue
        steps = [row for row in rows if is_step(row)]
        works = (works_of(row, config, str(item.path)) for row in (steps if costs else ()))
        beyond = sum(any(map(costs.extrapolates, of)) for of in works) if costs else 0
        hours = max((row.get("eval/training_hours", 0.0) for row in rows), default=0.0)
        yield ReadRun(item, manifest, len(steps), curve, measurable(rows, task), beyond, hours)


def _labels(runs: Sequence[ReadRun]) -> list[str]:
    """The user's and the sweeps' labels; for other runs, the keys in which their configurations differ."""
    kinds: list[ReadRun] = []
    kind_of: list[int | None] = []
    for run in runs:
        if run.named.label is not None:
            kind_of.append(None)
            continue
        kind = next((i for i, other in enumerate(kinds) if not differing([other.keys, run.keys])), len(kinds))
        if kind == len(kinds):
            kinds.append(run)
        kind_of.append(kind)
    names = labels([run.keys for run in kinds]) if len(kinds) > 1 else [_common_name(runs)]
    return [names[kind] if kind is not None else str(run.named.label) for run, kind in zip(runs, kind_of, strict=True)]


def _common_name(runs: Sequence[ReadRun]) -> str:
    """The label of the only configuration without one: the common prefix of its folders' names."""
    names = [run.path.resolve().name for run in runs if run.named.label is None]
    if not names:
        return ""
    return names[0] if len(names) == 1 else common_prefix(names).rstrip("-_. ") or "runs"


def _from_file(
    item: NamedFile, task: str | None, costs: StepCosts | None, notes: list[str]
) -> list[tuple[str, Curve, None]]:
    if task is not None:
        raise DataError(
            f"{item.path}: a CSV file contains curves of one task",
            remedy="omit the task, or the file",
            code="data.mismatch",
        )
    curves, of_file = read_curves(item.path)
    notes += of_file
    if costs is not None and any("seconds" in curve.x for _, curve in curves):
        raise DataError(
            f"{item.path}: the seconds of a CSV file cannot be computed from a step's costs",
            remedy="omit the file, or remove its column of time",
            code="data.mismatch",
        )
    if item.label is not None and any(group is not None for group, _ in curves):
        raise DataError(
            f"{item.label}={item.path}: its column 'group' names its curves",
            remedy="name the file without a label",
            code="data.mismatch",
        )
    return [(group or item.label or item.path.stem, curve, None) for group, curve in curves]


def _group(label: str, members: Sequence[tuple[str, Curve, ReadRun | None]]) -> SeedGroup:
    own = [(curve, run) for name, curve, run in members if name == label]
    seen: dict[str | None, Curve] = {}
    for curve, _ in own:
        if curve.seed in seen or None in seen or (seen and curve.seed is None):
            mean = curve.seed is None or None in seen
            which = "a mean curve beside another" if mean else f"two runs of seed {curve.seed}"
            raise DataError(
                f"{label} contains {which}: {seen.get(curve.seed, own[0][0]).source} and {curve.source}",
                remedy="give only one of them, or give one of them another label (LABEL=PATH)",
                code="data.mismatch",
            )
        seen[curve.seed] = curve
    return SeedGroup(label, tuple(curve for curve, _ in own), tuple(run for _, run in own if run is not None))


def _without_shared_seconds(group: SeedGroup) -> SeedGroup:
    """The group, without seconds if one of its runs shared its machine with another run, which slowed both down."""
    if all(run.named.alone for run in group.runs):
        return group
    without = (replace(c, x={axis: x for axis, x in c.x.items() if axis != "seconds"}) for c in group.curves)
    return replace(group, curves=tuple(without))


def _shared_notes(groups: Sequence[SeedGroup]) -> Iterator[str]:
    """One note on the groups whose seconds are not compared, with the runs if not all of a group's shared a machine."""
    named = []
    for group in groups:
        shared = [run.path.name for run in group.runs if not run.named.alone]
        if shared:
            named.append(group.label + f" ({', '.join(shared)})" * (len(shared) < len(group.runs)))
    if named:
        yield f"no seconds of {', '.join(named)}: not alone on their machine; tokens and steps are compared"
