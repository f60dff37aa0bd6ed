"""`fit`: resume, plan, step, evaluate every k, checkpoint every m, stop. All of it happens between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from winnow.errors import ConfigError, RunFolderError, UpdateError
from winnow.models.device import resolve_device
from winnow.records import StepReport
from winnow.state import checkpoint
from winnow.state.input_digests import Digests, digests
from winnow.state.logbook import METRICS
from winnow.state.manifest import Change, compare, describe_run, recorded, same_evaluation
from winnow.state.run_folder import RunFolder
from winnow.training.boundary import Boundary, reached, rescued, save, untouched
from winnow.training.build import Run, build
from winnow.training.evaluation import evaluate
from winnow.training.members import Members
from winnow.training.probe import plan
from winnow.training.prompts import evaluation_sampling
from winnow.training.signals import Leave, Stop, stop_signals
from winnow.training.step import train_step
from winnow.training.step_metrics import RATIOS


@dataclass(frozen=True)
class Started:
    """A run is about to take its first step."""

    folder: Path
    first_step: int
    last_step: int  # exclusive
    devices: tuple[str, ...] = ()  # in lines: who computes where, and what memory it will take


@dataclass(frozen=True)
class Evaluated:
    """The weights before `step` were evaluated."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Notice:
    """Something a person should read."""

    text: str


Event = Started | StepReport | Evaluated | Notice
Watch = Callable[[Event], None]


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    folder: Path
    model: Path | None  # the newest checkpoint, a Hugging Face model folder; None where no step was done
    steps: int  # done
    interrupted: bool  # a signal ended it early: a resume goes on


def fit(
    members: Members,
    *,
    resume: bool = False,
    allow_change: Sequence[str] = (),
    watch: Watch = lambda event: None,
) -> Result:
    """Train to the last step. The run folder then holds all that is needed to go on from its newest checkpoint.

    A resume keeps to what the run began with; `allow_change` names the keys that it may change nevertheless.

    SIGTERM, SIGINT and SIGHUP end the run with a checkpoint, after the step under way or at once, as
    `checkpoint.on_signal` says. Raises WinnowError subclasses; what is intact is saved before, and a note of the error
    says where (`winnow.errors.told`).
    """
    config, watch = members.config, _once(watch)
    if allow_change and not resume:
        raise ConfigError("allow-change is for a run that is resumed: a new one takes every key as it is given")
    torch.set_num_threads(config.threads or torch.get_num_threads())
    device = resolve_device(config.device)
    with RunFolder.open(members.output, resume=resume) as folder:
        saved = checkpoint.newest(folder.path) if resume else None
        done = saved.step if saved else 0
        about = partial(
            describe_run,
            config,
            base=members.base,
            device=str(device),
            threads=torch.get_num_threads(),
            packages=members.packages,
        )
        inputs: Digests = {}
        changes: tuple[Change, ...] = ()
        if resume:
            inputs = digests(config, members.base)
            changes = compare(folder.before, about(inputs=inputs), run=folder.path, step=done, allow=allow_change)
        run = build(members, folder=folder.path, device=device, saved=saved)
        try:
            inputs = inputs or digests(config, members.base)  # of a new run: by now a model of the hub is here, too
            folder.record(about(inputs=inputs), recorded(changes))
            for text in (*(c.notice for c in changes), *_beginning(folder, resume, saved), *run.notices):
                watch(Notice(text))
            same = resume and same_evaluation(changes, allow_change)
            evaluated = run.logbook.truncate_from(done, but_evaluation=same)
            return _fit(run, first_step=done, evaluated=evaluated, watch=watch)
        finally:
            run.close()


def _fit(run: Run, *, first_step: int, evaluated: bool, watch: Watch) -> Result:
    """From one boundary between two steps to the next; `evaluated` says that the log knows how good the first is."""
    config = run.config
    watch(Started(run.folder, first_step, config.steps, run.devices))
    in_parity = True

    def advance(step: int) -> None:
        nonlocal in_parity
        if (step == 0 or _due(step, config.evaluate.every)) and not (evaluated and step == first_step):
            _evaluate(run, step, watch)
        if not stop.asked:
            plan(run, step)
            watch(report := train_step(run, step))
            _warn_about_silence(report, watch)
            in_parity = _warn_about_parity(run, report, watch, before=in_parity)
            _check_skipped(run, step)

    with stop_signals(now=config.checkpoint.on_signal == "now") as stop:
        for step in range(first_step, config.steps):
            before = Boundary.of(run, step)
            if not stop.asked:
                _leave_at_will(run, before, stop, partial(advance, step))
            if stop.asked:
                after = reached(run, before)
                assert after is not None, "a step is left before its first update or not at all"
                model = _save(run, after, watch) if after.step else None
                return Result(run.folder, model, after.step, interrupted=True)
            if step + 1 < config.steps and _due(step + 1, config.checkpoint.every):
                _try_to_save(run, step + 1, watch)
        last = Boundary.of(run, config.steps)
        model = _save(run, last, watch)
        whole = evaluated and first_step == config.steps
        if not whole and not stop.asked:
            whole = _leave_at_will(run, last, stop, partial(_evaluate, run, config.steps, watch))
    return Result(run.folder, model, config.steps, interrupted=not whole)


def _leave_at_will(run: Run, before: Boundary, stop: Stop, act: Callable[[], None]) -> bool:
    """Do what follows a boundary, False where a signal ended it. What is intact is saved before an error goes on."""
    try:
        with rescued(run, before), stop.may_leave(lambda: untouched(run, before)):
            act()
    except Leave:
        return False
    return True


def _once(watch: Watch) -> Watch:
    """`watch`, without a notice that it has had before, word by word: what no save can remove is said once."""
    said: set[str] = set()

    def pass_on(event: Event) -> None:
        if not isinstance(event, Notice) or event.text not in said:
            watch(event)
        if isinstance(event, Notice):
            said.add(event.text)

    return pass_on


def _due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0


def _evaluate(run: Run, step: int, watch: Watch) -> None:
    config = run.config.evaluate
    evaluation = evaluate(
        run.engine,
        run.verifiers,
        run.held_out,
        evaluation_sampling(run.config),
        rollouts_per_prompt=config.rollouts_per_prompt,
        greedy=config.greedy,
        seed=(run.seed, "evaluate"),
    )
    run.logbook.write_between(step, evaluation.metrics)
    watch(Evaluated(step, evaluation.metrics))


def _try_to_save(run: Run, step: int, watch: Watch) -> None:
    """A full disk in the middle of a run costs a checkpoint, not the run; the next one is tried all the same."""
    try:
        _save(run, Boundary.of(run, step), watch)
    except RunFolderError as error:
        watch(Notice(f"step {step}: {error}; training goes on"))


def _beginning(folder: RunFolder, resume: bool, saved: checkpoint.Checkpoint | None) -> tuple[str, ...]:
    """What a person should know about where the run goes on, or starts again."""
    if saved is not None:
        return saved.notices
    if resume:
        return ("there is no checkpoint yet: the run starts again from its first step",)
    if (folder.path / METRICS).exists():
        return ("an earlier launch in this folder ended before its first step was done: what it had logged is removed",)
    return ()


def _save(run: Run, at: Boundary, watch: Watch) -> Path:
    saved = save(run, at)
    for text in saved.notices:
        watch(Notice(text))
    return saved.path


def _check_skipped(run: Run, step: int) -> None:
    """Raise UpdateError once more updates in a row than `update.max_skipped` could not be taken."""
    limit, skipped = run.config.update.max_skipped, run.optimizer.not_finite
    if limit and skipped >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the last {skipped} updates were not finite, and none of these was taken "
            f"(update.max_skipped = {limit}); the weights are those before them. Where a loss, a term or an advantage "
            f"of your own computes NaN or infinity, mend it; else the policy is near overflow: lower "
            f"optimizer.learning_rate or look for rewards of extreme size, and go on from an earlier checkpoint"
        )


def _warn_about_silence(report: StepReport, watch: Watch) -> None:
    """A step from which nothing could be learned says so, and why."""
    m = report.metrics
    if m["budget/updates"] > 0:
        return
    if m["select/trained"] > 0:
        why = "the gradient was not finite; is the learning rate too high?"
        watch(Notice(f"step {report.step}: no update was taken: {why}"))
        return
    if m["group/count"] == 0:
        watch(Notice(f"step {report.step}: no update was taken: the plan gave none of its prompts a rollout"))
        return
    flat, right, wrong = (int(m[f"group/{name}"]) for name in ("flat", "all_correct", "all_wrong"))
    watch(
        Notice(
            f"step {report.step}: nothing to learn from, no update was taken: {flat} of {int(m['group/count'])} groups "
            f"are flat ({right} all correct, {wrong} all wrong; {int(m['outcome/unparsable'])} rollouts without a "
            f"readable answer, {m.get('rollout/truncated', 0.0):.0%} cut off at max_new_tokens, "
            f"{int(m['outcome/failed'])} verifier failures)"
        )
    )


def _warn_about_parity(run: Run, report: StepReport, watch: Watch, *, before: bool) -> bool:
    """Whether the engine sampled what was trained; where it no longer does, that is said, once until it does again."""
    m = report.metrics
    if "policy/parity_alarm" not in m:  # nothing was trained
        return before
    if m["policy/parity_alarm"] and before:
        declared, config = run.engine.logprob_tolerance, run.config.rollout
        watch(
            Notice(
                f"step {report.step}: the engine {config.engine.label!r} did not sample what is trained: of the same "
                f"tokens its log-probs and the policy's differ by {m['policy/logprob_gap_mean']:.2g} on average (it "
                f"declares {declared.mean:.2g}), by {m['policy/logprob_gap_p999']:.2g} or more in one of a thousand "
                f"(it declares {declared.tail:.2g}) and by {m['policy/logprob_gap_max']:.2g} at most, and "
                f"{m['policy/ratio_outside']:.1%} of the ratios lie outside [{RATIOS[0]}, {RATIOS[1]}] (limit "
                f"{config.max_ratio_outside:.1%}). It says that it sampled with the weights of version {report.step}. "
                f"Look for weights that it did not take over, another temperature, or reduced precision; until "
                f"policy/parity_alarm is 0 again, every ratio and gradient is biased"
            )
        )
    return not m["policy/parity_alarm"]
