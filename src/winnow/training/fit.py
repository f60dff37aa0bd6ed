"""`fit`: resume, plan, step, evaluate every k, checkpoint every m, stop. All of it happens between steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from winnow import ranks
from winnow.engines.base import evaluating
from winnow.errors import ConfigError, Leave, RankError, RunFolderError
from winnow.models.device import describe_gpu, resolve_device
from winnow.models.precision import set_deterministic, set_matrix_products
from winnow.records import Group, StepReport
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.input_digests import Digests, digests
from winnow.state.manifest import describe_run
from winnow.state.resume_changes import Change, compare, evaluated_since, recorded, same_evaluation
from winnow.state.run_folder import RunFolder
from winnow.training.boundary import Boundary, begin_save, reached, rescued, save, untouched
from winnow.training.build import Run, build
from winnow.training.clock import Now, TrainingClock
from winnow.training.evaluation import evaluate
from winnow.training.events import (
    AlarmRaised,
    Ended,
    Evaluated,
    Notice,
    PhaseBegan,
    Started,
    Watch,
    nobody,
    several,
    without_repeats,
)
from winnow.training.machine_share import threads_of_rank
from winnow.training.members import Members
from winnow.training.notices import beginning, check_skipped, of_step
from winnow.training.phases import Phases
from winnow.training.probe import plan
from winnow.training.prompts import evaluation_sampling
from winnow.training.signals import Stop, stop_signals
from winnow.training.step import train_step
from winnow.training.step_metrics import completion_tokens, prompt_tokens


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    folder: Path
    model: Path | None  # the newest checkpoint, a Hugging Face model folder; None where no step was done
    steps: int  # done, fewer than configured where `max_hours` or a signal ended it
    interrupted: bool  # a signal ended it early: a resume goes on


def fit(
    members: Members,
    *,
    resume: bool = False,
    allow_change: Sequence[str] = (),
    watch: Watch | Sequence[Watch] = (),
    now: Now = time.monotonic,
) -> Result:
    """Train to the last step, or for `max_hours`, of which `now` reads the clock. The run folder then holds all that is
    needed to go on from its newest checkpoint.

    `watch`, or each of several, is called with every event (events.py), on the rank that writes.

    A resume keeps to what the run began with; `allow_change` names the keys that it may change nevertheless.

    SIGTERM, SIGINT and SIGHUP end the run with a checkpoint, after the step under way or at once, as
    `checkpoint.on_signal` says. Raises WinnowError subclasses; what is intact is saved before, and a note of the error
    says where (`winnow.errors.told`).
    """
    config = members.config
    if allow_change and not resume:
        raise ConfigError(
            "allow-change is for a run that is resumed: a new one takes every key as it is given",
            remedy="resume the run, or remove allow-change",
            code="config.combination",
        )
    with ranks.joined(timeout_seconds=config.ranks.timeout_seconds):
        watching = (watch,) if callable(watch) else tuple(watch)
        watch = without_repeats(several(watching)) if ranks.is_writer() else nobody
        return _fit(members, resume=resume, allow_change=allow_change, watch=watch, now=now)


def _fit(members: Members, *, resume: bool, allow_change: Sequence[str], watch: Watch, now: Now) -> Result:
    """`fit`, on every rank."""
    config = members.config
    torch.set_num_threads(threads_of_rank(config.threads))
    set_matrix_products(tf32=config.model.tf32)
    device = resolve_device(config.device)
    set_deterministic(device, deterministic=config.deterministic)
    with RunFolder.open(members.output, resume=resume) as folder:
        saved, inputs, changes = ranks.from_writer(
            lambda: _resumed(members, folder, device, allow_change) if resume else _NEW, doing="resuming the run"
        )
        done = saved.step if saved else 0
        clock = TrainingClock(config, now)
        watch(PhaseBegan(done, "load"))
        run = build(members, folder=folder.path, device=device, saved=saved, clock=clock)
        run.phases = Phases(watch, done)
        try:
            with ranks.announced("writing the manifest"):
                if ranks.is_writer():
                    inputs = inputs or digests(config, members.base)  # a new run's; a model of the hub is here by now
                    folder.record(_described(members, device, inputs), recorded(changes))
            said = (*(c.notice for c in changes), *beginning(folder, resume, saved), *run.notices)
            for text in ranks.gather(said):
                watch(Notice(text))
            same = resume and same_evaluation(changes, allow_change)
            evaluated = ranks.from_writer(
                lambda: run.logbook.truncate_from(done, but_evaluation=same), doing="cutting the logs"
            )
            since = evaluated_since([*folder.before.get("changes", []), *recorded(changes)])
            run.alarms.remember(ranks.from_writer(run.logbook.metrics, doing="reading the log"), evaluated_since=since)
            result = _train(run, first_step=done, evaluated=evaluated, watch=watch)
            watch(Ended(result.steps, result.model, result.interrupted))
            return result
        finally:
            run.close()


def _described(members: Members, device: torch.device, inputs: Digests) -> dict[str, Any]:
    """What the manifest says of this process's run."""
    return describe_run(
        members.config,
        base=members.base,
        device=str(device),
        threads=torch.get_num_threads(),
        inputs=inputs,
        packages=members.packages,
        gpu=describe_gpu(device),
        ranks=ranks.count(),
    )


_Resumed = tuple[Checkpoint | None, Digests, tuple[Change, ...]]
_NEW: _Resumed = None, {}, ()


def _resumed(members: Members, folder: RunFolder, device: torch.device, allow: Sequence[str]) -> _Resumed:
    """Where a run goes on, the digests of its inputs, and what this resume changes of it. Raises RunFolderError for
    what it may not change.
    """
    saved = checkpoint.newest(folder.path)
    inputs = digests(members.config, members.base)
    changes = compare(
        folder.before,
        _described(members, device, inputs),
        run=folder.path,
        step=saved.step if saved else 0,
        may_change=[f"rollout.engine.{name}" for name in members.engine.traits.may_change],
        allow=allow,
    )
    return saved, inputs, changes


def _train(run: Run, *, first_step: int, evaluated: bool, watch: Watch) -> Result:
    """From one boundary between two steps to the next; `evaluated` says that the log knows how good the first is."""
    config = run.config
    watch(Started(run.folder, first_step, config.steps, run.devices, config.max_hours))
    done = first_step

    def advance(step: int) -> None:
        if _evaluation_is_due(run, step) and not (evaluated and step == first_step):
            _evaluate(run, step, watch)
        if not ranks.any_rank(stop.asked):
            with run.clock.step():
                run.phases.step = step
                plan(run, step)
                report = train_step(run, step)
            _tell_step(run, report, watch)
            check_skipped(run, step)

    alone = ranks.count() == 1  # a step that all ranks make is left by all or none
    with stop_signals(now=config.checkpoint.on_signal == "now" and alone) as stop:
        for step in _steps(run, first_step, watch):
            before = Boundary.of(run, step)
            if not ranks.any_rank(stop.asked):
                _leave_at_will(run, before, stop, partial(advance, step))
            if ranks.any_rank(stop.asked):
                after = reached(run, before)
                assert after is not None, "a step is left before its first update or not at all"
                model = _save(run, after, watch) if after.step else None
                return Result(run.folder, model, after.step, interrupted=True)
            done = step + 1
            if _checkpoint_is_due(run, done):
                _try_to_save(run, done, watch)
        last = Boundary.of(run, done)
        model = _save(run, last, watch)
        whole = evaluated and first_step == done
        if not whole and not ranks.any_rank(stop.asked):
            whole = _leave_at_will(run, last, stop, partial(_evaluate, run, done, watch))
            for alarm in run.alarms.at_end(done) if whole else ():
                watch(AlarmRaised(alarm))
    return Result(run.folder, model, done, interrupted=not whole)


def _tell_step(run: Run, report: StepReport, watch: Watch) -> None:
    """A step that is done, the alarms that began with it, and what else there is to say of it."""
    watch(report)
    for alarm in run.alarms.begun:
        watch(AlarmRaised(alarm))
    for text in of_step(run, report):
        watch(Notice(text))


def _steps(run: Run, first: int, watch: Watch) -> Iterator[int]:
    """From `first` to the last one, or to the first boundary at which `max_hours` are over."""
    steps, hours = run.config.steps, run.config.max_hours
    for step in range(first, steps):
        if run.clock.is_over(hours):
            watch(Notice(f"max_hours = {hours:g} of training are over: the run ends after {step} of {steps} steps"))
            return
        yield step


def _evaluation_is_due(run: Run, step: int) -> bool:
    """Before a step: of the weights that a run begins with, and on time."""
    every = run.config.evaluate
    return step == 0 or _due(step, every.every) or run.clock.passed(every.every_minutes)


def _checkpoint_is_due(run: Run, done: int) -> bool:
    """Between two steps; the end of the run saves by itself."""
    config = run.config
    on_time = _due(done, config.checkpoint.every) or run.clock.passed(config.checkpoint.every_minutes)
    return on_time and done < config.steps and not run.clock.is_over(config.max_hours)


def _leave_at_will(run: Run, before: Boundary, stop: Stop, act: Callable[[], None]) -> bool:
    """Do what follows a boundary, False where a signal ended it. What is intact is saved before an error goes on."""
    try:
        with rescued(run, before), stop.may_leave(lambda: untouched(run, before)):
            act()
    except Leave:
        return False
    return True


def _due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0


def _evaluate(run: Run, step: int, watch: Watch) -> None:
    run.phases.step = step
    run.phases.begin("evaluate")
    metrics = {**_measured(run), **run.clock.metrics("eval/training_hours")}
    run.logbook.write_between(step, metrics)
    run.alarms.evaluated(metrics)
    watch(Evaluated(step, metrics))


def _measured(run: Run) -> dict[str, float]:
    """Of every task that the run is evaluated on; eval/seconds and budget/... are those of all."""
    config, metrics, seconds, groups = run.config.evaluate, dict[str, float](), 0.0, list[Group]()
    with evaluating(run.engine) as bits:
        for task, held_out in run.held_out:
            found = evaluate(
                run.engine,
                run.verifiers,
                held_out.prompts,
                evaluation_sampling(run.config),
                rollouts_per_prompt=config.rollouts_per_prompt,
                greedy=config.greedy,
                seed=(run.seed, "evaluate"),
                of=task,
                told=run.phases.told(len(held_out.prompts) * (config.rollouts_per_prompt + config.greedy)),
            )
            metrics |= found.metrics
            seconds += found.seconds
            groups += [*found.sampled, *found.greedy]
    precision = {} if bits is None else {"eval/weight_bits": float(bits)}
    return {
        **metrics,
        **precision,
        "eval/seconds": seconds,
        "budget/evaluation_tokens": completion_tokens(groups),
        "budget/evaluation_prompt_tokens": prompt_tokens(groups),
    }


def _try_to_save(run: Run, step: int, watch: Watch) -> None:
    """Beside the next step. What comes of it is told when `run.saving.wait` finds that it has ended."""

    def done(outcome: Callable[[], Checkpoint]) -> None:
        with _failure_told(step, watch):
            _tell(outcome(), watch)

    with _failure_told(step, watch):
        begin_save(run, Boundary.of(run, step), done)


@contextmanager
def _failure_told(step: int, watch: Watch) -> Iterator[None]:
    """A full disk in the middle of a run costs a checkpoint, not the run; the next one is tried all the same."""
    try:
        yield
    except (RunFolderError, RankError) as error:
        watch(Notice(f"step {step}: {error}; training goes on"))


def _save(run: Run, at: Boundary, watch: Watch) -> Path:
    run.phases.step = at.step
    run.phases.begin("checkpoint")
    saved = save(run, at)
    _tell(saved, watch)
    return saved.path


def _tell(saved: Checkpoint, watch: Watch) -> None:
    for text in saved.notices:
        watch(Notice(text))
