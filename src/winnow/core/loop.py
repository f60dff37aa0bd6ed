"""The loop of a run: plan, take a step, evaluate every k steps, save every m, stop.

All of this but the step itself happens between two steps. Notices report when training of the policy starts. Signs of
trouble are alarms (winnow.alarms), or errors where the run cannot continue.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from winnow import ranks
from winnow.config import Config
from winnow.core.critic import is_pretraining
from winnow.core.evaluation import evaluate
from winnow.core.events import AlarmRaised, Evaluated, Notice, Started, Watch
from winnow.core.metrics import completion_tokens, prompt_tokens
from winnow.core.named_rollouts import measure_mismatch
from winnow.core.plan import plan
from winnow.core.progress import Phases, TrainingClock
from winnow.core.protocols import SavedCheckpoint
from winnow.core.run import Progress, Run, evaluation_sampling
from winnow.core.saving import Boundary, begin_save, reached, rescued, save_or_wait, untouched
from winnow.core.step import train_step
from winnow.core.stop_signals import Stop, stop_signals
from winnow.engines.base import evaluating
from winnow.errors import RankError, RunFolderError, StoppedBySignal, UpdateError, format_error
from winnow.records import Group, StepReport

MOST_FAILED_SAVES = 3  # in a row, after which the next save ends or waits for room, and no step is taken before it


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    folder: Path  # of the run
    model: Path | None  # the newest checkpoint, a Hugging Face model folder; None if no step was done
    steps: int  # done; fewer than configured if `max_hours` or a signal ended the run
    interrupted: bool  # a signal ended the run early; a resume continues it


def train(
    run: Run, progress: Progress, *, first_step: int, evaluated: bool, watch: Watch, devices: tuple[str, ...] = ()
) -> Result:
    """Train from the boundary before `first_step` to the end of the run, step by step.

    `evaluated`: the log already has the evaluation at that boundary. `devices` are lines about the work of each device.
    """
    config = run.config
    watch(Started(run.folder, first_step, config.steps, devices, config.max_hours))
    done = first_step

    def advance(step: int) -> None:
        if _evaluation_is_due(config, progress.clock, step) and not (evaluated and step == first_step):
            _evaluate(run, progress, step, watch)
        if not ranks.any_rank(stop.requested):
            with progress.clock.step():
                progress.phases.step = step
                sized = _sized(run, progress, step, watch)
                plan(sized, progress, step)
                report = train_step(sized, progress, step)
            _report_step(config, progress, report, watch)
            check_skipped(run, step)

    alone = ranks.count() == 1  # several ranks agree between two steps, as none can leave a step without the others
    with stop_signals(now=config.checkpoint.on_signal == "now" and alone) as stop:
        for step in _steps(config, progress.clock, first_step, watch):
            before = Boundary.of(run, progress, step)
            if not ranks.any_rank(stop.requested):
                _unless_signalled(run, progress, before, stop, partial(advance, step))
            if ranks.any_rank(stop.requested):
                after = reached(run, progress, before)
                assert after is not None, "a signal ends a step before its first update or after its last"
                model = _save(run, progress, after, watch, stop) if after.step else None
                return Result(run.folder, model, after.step, interrupted=True)
            done = step + 1
            if _checkpoint_is_due(config, progress.clock, done):
                _save_between_steps(run, progress, done, watch, stop)
        last = Boundary.of(run, progress, done)
        model = _save(run, progress, last, watch, stop)
        whole = evaluated and first_step == done
        if not whole and not ranks.any_rank(stop.requested):
            whole = _unless_signalled(run, progress, last, stop, partial(_evaluate, run, progress, done, watch))
            for alarm in progress.alarms.at_end(done) if whole else ():
                watch(AlarmRaised(alarm))
    return Result(run.folder, model, done, interrupted=not whole)


def _sized(run: Run, progress: Progress, step: int, watch: Watch) -> Run:
    """The run with the sizes that it has chosen for a step. A decision that is due is on the disk before it is used."""
    sizes = progress.sizes
    if sizes is None:
        return run

    def decision() -> dict[str, Any]:
        known = run.logbook.decided(step)  # before an interruption
        if known is None:
            known = sizes.decide(step)
            run.logbook.decide(step, known)
        return known

    if sizes.due(step):
        changed = sizes.apply(step, ranks.from_writer(decision, doing="choosing the sizes of the steps"))
        if changed is not None:
            watch(Notice(changed))
    return dataclasses.replace(run, members=sizes.sized)


def _report_step(config: Config, progress: Progress, report: StepReport, watch: Watch) -> None:
    """Pass a finished step to the watch, with the alarms that began in it and its notices."""
    watch(report)
    for alarm in progress.alarms.begun:
        watch(AlarmRaised(alarm))
    for text in step_notices(config, report):
        watch(Notice(text))


def _steps(config: Config, clock: TrainingClock, first: int, watch: Watch) -> Iterator[int]:
    """The steps from `first` to the last one, or to the first boundary at which `max_hours` are over."""
    steps, hours = config.steps, config.max_hours
    for step in range(first, steps):
        if clock.is_over(hours):
            watch(Notice(f"max_hours = {hours:g} of training are over: the run ends after {step} of {steps} steps"))
            return
        yield step


def _evaluation_is_due(config: Config, clock: TrainingClock, step: int) -> bool:
    """Whether to evaluate before a step: before the first one, and when one is due."""
    every = config.evaluate
    return step == 0 or _due(step, every.every) or clock.passed(every.every_minutes)


def _checkpoint_is_due(config: Config, clock: TrainingClock, done: int) -> bool:
    """Whether to save between two steps. The end of the run has a save of its own, so it is excluded here."""
    on_time = _due(done, config.checkpoint.every) or clock.passed(config.checkpoint.every_minutes)
    return on_time and done < config.steps and not clock.is_over(config.max_hours)


def _unless_signalled(run: Run, progress: Progress, before: Boundary, stop: Stop, act: Callable[[], None]) -> bool:
    """Call `act` after a boundary; False where a signal ended it. An error is raised after what is intact is saved."""
    try:
        with rescued(run, progress, before), stop.may_leave(lambda: untouched(run, before)):
            act()
    except StoppedBySignal:
        return False
    return True


def _due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0


def _evaluate(run: Run, progress: Progress, step: int, watch: Watch) -> None:
    progress.phases.step = step
    progress.phases.begin("evaluate")
    metrics = {**_evaluation_metrics(run, progress.phases), **progress.clock.metrics("eval/training_hours")}
    if run.config.rollout.ahead:  # nothing is under way here, and the engine has the policy's version
        metrics |= measure_mismatch(run, step)
    run.logbook.write_between(step, metrics)
    progress.alarms.evaluated(metrics)
    watch(Evaluated(step, metrics))


def _evaluation_metrics(run: Run, phases: Phases) -> dict[str, float]:
    """The metrics of all tasks that the run is evaluated on; eval/seconds and budget/... are totals over them."""
    config, metrics, seconds, groups = run.config.evaluate, dict[str, float](), 0.0, list[Group]()
    with evaluating(run.engine) as bits:
        for task, prompts in run.held_out.items():
            result = evaluate(
                run.engine,
                run.verifiers,
                prompts,
                evaluation_sampling(run.config),
                rollouts_per_prompt=config.rollouts_per_prompt,
                greedy=config.greedy,
                seed=(run.seed, "evaluate"),
                of=task,
                on_rollout=phases.rollout_counter(len(prompts) * (config.rollouts_per_prompt + config.greedy)),
            )
            metrics |= result.metrics
            seconds += result.seconds
            groups += [*result.sampled, *result.greedy]
    precision = {} if bits is None else {"eval/weight_bits": float(bits)}
    return {
        **metrics,
        **precision,
        "eval/seconds": seconds,
        "budget/evaluation_tokens": completion_tokens(groups),
        "budget/evaluation_prompt_tokens": prompt_tokens(groups),
    }


def _save_between_steps(run: Run, progress: Progress, step: int, watch: Watch, stop: Stop) -> None:
    """Start a save, which is written while the next step computes. Its notices come at the next `saving.wait`."""
    # Only the writer's saves may have failed
    if ranks.any_rank(progress.failed_saves >= MOST_FAILED_SAVES):  # further steps would be lost as well
        _save(run, progress, Boundary.of(run, progress, step), watch, stop)
        return

    def done(outcome: Callable[[], SavedCheckpoint]) -> None:
        with _failure_as_notice(step, watch):
            _report_notices(outcome(), watch)

    with _failure_as_notice(step, watch):
        begin_save(run, progress, Boundary.of(run, progress, step), done)


@contextmanager
def _failure_as_notice(step: int, watch: Watch) -> Iterator[None]:
    """A failed save inside becomes a notice: a full disk costs a checkpoint and not the run, and the next save is
    tried as usual, up to `MOST_FAILED_SAVES` in a row.
    """
    try:
        yield
    except (RunFolderError, RankError) as error:
        watch(Notice(f"step {step}: {format_error(error)}; training goes on"))


def _save(run: Run, progress: Progress, at: Boundary, watch: Watch, stop: Stop) -> Path:
    """Save while training waits. On a full disk the run waits for room, unless a signal has requested its end."""
    progress.phases.step = at.step
    progress.phases.begin("checkpoint")
    saved = save_or_wait(
        run, progress, at, stopped=lambda: stop.requested, tell=lambda text: watch(Notice(f"step {at.step}: {text}"))
    )
    progress.failed_saves = 0
    _report_notices(saved, watch)
    return saved.path


def _report_notices(saved: SavedCheckpoint, watch: Watch) -> None:
    for text in saved.notices:
        watch(Notice(text))


def check_skipped(run: Run, step: int) -> None:
    """Raise UpdateError once `update.max_skipped` updates in a row were skipped, of the policy or the value model."""
    limit, skipped = run.config.update.max_skipped, run.learner.not_finite
    if limit and run.critic is not None and run.critic.not_finite >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the value model's last {run.critic.not_finite} updates were not finite, "
            f"and all of these were skipped (update.max_skipped = {limit})",
            remedy="lower critic.optimizer.learning_rate or look for rewards of extreme size, and resume from an "
            "earlier checkpoint",
            key="critic.optimizer.learning_rate",
            code="update.not_finite",
        )
    if limit and skipped >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the last {skipped} updates were not finite, and all of these were skipped "
            f"(update.max_skipped = {limit}); the weights are those before them",
            remedy="repair your loss, term or advantage where it computes NaN or infinity; else the policy is near "
            "overflow: lower optimizer.learning_rate or look for rewards of extreme size, and resume from an earlier "
            "checkpoint",
            key="optimizer.learning_rate",
            code="update.not_finite",
        )


def step_notices(config: Config, report: StepReport) -> Iterator[str]:
    """A notice after the last step of pretraining that the policy is trained from now on, with the variance that its
    value model explains.
    """
    after = report.step + 1
    if not is_pretraining(config.critic, report.step) or is_pretraining(config.critic, after) or after == config.steps:
        return
    notice = f"step {report.step}: critic.pretraining_steps are over: the policy learns from step {after} on"
    explained = report.metrics.get("critic/explained_variance", math.nan)
    if not math.isnan(explained):
        notice += (
            f"; before its last update the value model explained {explained:.3g} of the returns' variance (1: all, "
            f"0: no more than a constant)"
        )
    yield notice
