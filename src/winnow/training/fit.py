"""`fit`: from a configuration's members to a trained model. It opens or resumes the run's folder, builds the run, and
trains it in the loop of core/loop.py. Notices report where a run resumes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import torch

from winnow import ranks
from winnow.core.events import Ended, Notice, PhaseBegan, Watch, call_each, ignore_event, without_repeats
from winnow.core.loop import Result, train
from winnow.core.members import Members
from winnow.core.progress import Now, Phases, TrainingClock
from winnow.errors import DataError, conflict
from winnow.models.device import describe_gpu, resolve_device, set_deterministic, set_matrix_products
from winnow.models.folder import is_hub_id, settings_folder
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.folder import RunFolder
from winnow.state.log import METRICS
from winnow.state.manifest import describe_run
from winnow.state.resume import Change, Digests, compare, digests, evaluated_since, recorded, same_evaluation
from winnow.training.build import build, threads_set

_Resumed = tuple[Checkpoint | None, Digests, tuple[Change, ...]]
_NEW: _Resumed = None, {}, ()


def fit(
    members: Members,
    *,
    resume: bool = False,
    allow_change: Sequence[str] = (),
    watch: Watch | Sequence[Watch] = (),
    now: Now = time.monotonic,
) -> Result:
    """Train to the last step, or for `max_hours` by the clock `now`. The run folder then has everything that a resume
    from its newest checkpoint needs.

    `watch`, or each of several, is called with every event (`Event` of core/events.py), on the rank that writes.

    A resume needs the configuration that the run was started with, except for keys that may always change. It may also
    change the keys in `allow_change`.

    SIGTERM, SIGINT and SIGHUP end the run with a checkpoint, after the current step or at once, as
    `checkpoint.on_signal` sets it. Raises WinnowError subclasses. What is intact is saved before, and a note of the
    error names the folder (`winnow.errors.format_error`).
    """
    config = members.config
    if allow_change and not resume:
        raise conflict(
            "allow-change is for a resumed run: a new run uses every key as it is given",
            remedy="resume the run, or remove allow-change",
        )
    with ranks.joined(timeout_seconds=config.ranks.timeout_seconds), threads_set(config.threads):
        watching = (watch,) if callable(watch) else tuple(watch)
        watch = without_repeats(call_each(watching)) if ranks.is_writer() else ignore_event
        return _fit(members, resume=resume, allow_change=allow_change, watch=watch, now=now)


def _fit(members: Members, *, resume: bool, allow_change: Sequence[str], watch: Watch, now: Now) -> Result:
    """`fit` on every rank."""
    config = members.config
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
        built = build(members, folder=folder.path, device=device, saved=saved, clock=clock)
        run, progress = built.run, built.progress
        progress.phases = Phases(watch, done)
        try:
            notices = (*(c.notice for c in changes), *start_notices(folder, resume, saved), *built.notices)
            for text in ranks.gather(notices):
                watch(Notice(text))
            same = resume and same_evaluation(changes, allow_change)
            # Decisions of another run do not fit this one, nor do those of other ranks, whose bounds differ
            anew = not resume or bool(allow_change) or any(change.key == "ranks" for change in changes)
            evaluated = ranks.from_writer(
                lambda: run.logbook.truncate_from(done, but_evaluation=same, decisions=anew), doing="cutting the logs"
            )
            # After the logs, as what stays in them depends on the changes, which the next resume does not see again
            with ranks.announced("writing the manifest"):
                if ranks.is_writer():
                    # For a new run only now: `build` has downloaded a model of the hub, whose files are hashed too
                    inputs = inputs or digests(config, members.base)
                    folder.record(_manifest(members, device, inputs), recorded(changes))
            since = evaluated_since([*folder.before.get("changes", []), *recorded(changes)])
            rows = ranks.from_writer(run.logbook.metrics, doing="reading the log")
            progress.alarms.remember(rows, evaluated_since=since)
            result = train(run, progress, first_step=done, evaluated=evaluated, watch=watch, devices=built.devices)
            watch(Ended(result.steps, result.model, result.interrupted))
            return result
        finally:
            built.close()


def _manifest(members: Members, device: torch.device, inputs: Digests) -> dict[str, Any]:
    """The manifest of this process's run."""
    return describe_run(
        members.config,
        base=members.base,
        recipe=members.recipe,
        device=str(device),
        threads=torch.get_num_threads(),
        inputs=inputs,
        packages=members.packages,
        gpu=describe_gpu(device),
        ranks=ranks.count(),
    )


def _resumed(members: Members, folder: RunFolder, device: torch.device, allow: Sequence[str]) -> _Resumed:
    """The checkpoint to resume from, the digests of the inputs, and what this resume changes.

    Raises RunFolderError for a change that is not allowed.
    """
    saved = checkpoint.newest(folder.path)
    for path in (members.config.model.path, getattr(members.config.critic, "path", None)):
        with contextlib.suppress(DataError):  # loading the model raises it, with the key
            if path and is_hub_id(path):
                settings_folder(path)  # its revision is compared, also if this machine had none
    inputs = digests(members.config, members.base)
    changes = compare(
        folder.before,
        _manifest(members, device, inputs),
        run=folder.path,
        step=saved.step if saved else 0,
        may_change=[f"rollout.engine.{name}" for name in members.engine.traits.may_change],
        allow=allow,
    )
    return saved, inputs, changes


def start_notices(folder: RunFolder, resume: bool, saved: Checkpoint | None) -> tuple[str, ...]:
    """Notices about where a run resumes, or starts again."""
    if saved is not None:
        return saved.notices
    if resume:
        return ("there is no checkpoint yet: the run starts again from its first step",)
    if (folder.path / METRICS).exists():
        return ("an earlier launch in this folder ended before its first step was done: its logs are removed",)
    return ()
