"""`fit`: resume, plan, step, evaluate every k, checkpoint every m, stop. All of it happens between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from winnow.build import REFERENCE, Run, build, evaluation_sampling
from winnow.errors import RunFolderError
from winnow.evaluate import evaluate
from winnow.learner.device import resolve_device
from winnow.measure import RATIOS
from winnow.members import Members
from winnow.probe import plan
from winnow.records import StepReport
from winnow.state import checkpoint
from winnow.state.folder import RunFolder
from winnow.state.manifest import describe_run
from winnow.step import train_step


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
    model: Path  # the newest checkpoint, a Hugging Face model folder
    steps: int  # done
    interrupted: bool  # a signal came before the last step


def fit(members: Members, *, resume: bool = False, watch: Watch = lambda event: None) -> Result:
    """Train to the last step. The run folder then holds all that is needed to go on from its newest checkpoint.

    SIGTERM and SIGINT end the run after the step under way, with a checkpoint. Raises WinnowError subclasses.
    """
    config, watch = members.config, _once(watch)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    device = resolve_device(config.device)
    about = describe_run(config, base=members.base, device=str(device), threads=torch.get_num_threads())
    with RunFolder.open(members.output, resume=resume, manifest=about) as folder:
        saved = checkpoint.newest(folder.path) if resume else None
        run = build(members, folder=folder.path, device=device, saved=saved)
        try:
            for text in (*folder.notices, *_resume_notices(resume, saved), *run.notices):
                watch(Notice(text))
            return _fit(run, first_step=saved.step if saved else 0, watch=watch)
        finally:
            run.close()


def _fit(run: Run, *, first_step: int, watch: Watch) -> Result:
    config = run.config
    run.logbook.truncate_from(first_step)
    watch(Started(run.folder, first_step, config.steps, run.devices))
    in_parity = True
    with _stop_signals() as stop:
        for step in range(first_step, config.steps):
            if step == 0 or _due(step, config.evaluate.every):
                _evaluate(run, step, watch)
            plan(run, step)
            watch(report := train_step(run, step))
            _warn_about_silence(report, watch)
            in_parity = _warn_about_parity(run, report, watch, before=in_parity)
            done = step + 1
            if stop.is_set() and done < config.steps:
                return Result(run.folder, _save(run, done, watch), done, interrupted=True)
            if done < config.steps and _due(done, config.checkpoint.every):
                _try_to_save(run, done, watch)
        saved = _save(run, config.steps, watch)
        _evaluate(run, config.steps, watch)
    return Result(run.folder, saved, config.steps, interrupted=False)


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
        _save(run, step, watch)
    except RunFolderError as error:
        watch(Notice(f"step {step}: {error}; training goes on"))


def _resume_notices(resume: bool, saved: checkpoint.Checkpoint | None) -> tuple[str, ...]:
    if saved is not None:
        return saved.notices
    return ("there is no checkpoint yet: the run starts again from its first step",) if resume else ()


def _save(run: Run, step: int, watch: Watch) -> Path:
    logs = run.logbook.sync(step)  # before a checkpoint that presumes their rows
    tensors, counts = run.optimizer.state()
    if run.policy.reference is not None:
        tensors |= {f"{REFERENCE}{name}": value for name, value in run.policy.reference.state().items()}
    state: dict[str, Any] = {
        "optimizer": counts,
        "history": run.history.state_dict(),
        "verifiers": run.verifiers.state_dict(),
    }
    saved = checkpoint.save(
        run.folder,
        step,
        write_model=lambda path: checkpoint.write_model_folder(run.policy.model, run.tokenizer, path),
        tensors=tensors,
        state=state,
        keep_last=run.config.checkpoint.keep_last,
        logs=logs,
    )
    for text in saved.notices:
        watch(Notice(text))
    return saved.path


def _warn_about_silence(report: StepReport, watch: Watch) -> None:
    """A step from which nothing could be learned says so, and why."""
    m = report.metrics
    if m["budget/updates"] > 0:
        return
    if m["select/trained"] > 0:
        why = "the gradient was not finite; is the learning rate too high?"
        watch(Notice(f"step {report.step}: no update was taken: {why}"))
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
        engine, config = run.engine, run.config.rollout
        watch(
            Notice(
                f"step {report.step}: the engine {config.engine.label!r} did not sample what is trained: of the same "
                f"tokens its log-probs and the policy's differ by {m['policy/logprob_gap_mean']:.2g} on average and "
                f"{m['policy/logprob_gap_max']:.2g} at most (it declares {engine.logprob_tolerance:.2g}), and "
                f"{m['policy/ratio_outside']:.1%} of the ratios lie outside [{RATIOS[0]}, {RATIOS[1]}] (limit "
                f"{config.max_ratio_outside:.1%}). It says that it sampled with the weights of version {report.step}. "
                f"Look for weights that it did not take over, another temperature, or reduced precision; until "
                f"policy/parity_alarm is 0 again, every ratio and gradient is biased"
            )
        )
    return not m["policy/parity_alarm"]


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set on the first SIGTERM or SIGINT; a second one acts as usual. Off the main thread there is nothing to catch."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
