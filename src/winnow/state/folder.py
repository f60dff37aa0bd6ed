"""A run's folder: one run, one writer at a time, and nobody else's files.

    runs/arithmetic/
      manifest.json     configuration, versions, threads, platform; what changed at each resume
      metrics.jsonl     one row per step; see logbook.py
      rollouts.jsonl    one row per rollout; see rows.py
      checkpoints/      step-000010/ ...; see checkpoint.py
      .lock             held with flock while a process writes here

This module imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winnow.errors import RunFolderError
from winnow.state.disk import check_kind, draft_of, open_file, write_json

MANIFEST = "manifest.json"
LOCK = ".lock"
FORMAT = 1

# Keys of the configuration that a resume may change: where the run stands and what it may use, never what it computes.
MAY_CHANGE = (
    "steps",
    "output",
    "device",
    "threads",
    "checkpoint",
    "evaluate",
    "model.gradient_checkpointing",
    "rollout.max_ratio_outside",
    "rollout.max_rollouts_at_once",
    "rollout.engine.gpu_memory_utilization",
    "rollout.engine.key_value_gib",
    "rollout.engine.key_value_mb",
    "rollout.engine.start_seconds",
    "rollout.engine.timeout_seconds",
    "update.tokens_per_micro_batch",
    "verify.workers",
)


@dataclass(frozen=True)
class RunFolder:
    """A run folder that this process alone may write to, until `close` or the end of the process."""

    path: Path
    notices: tuple[str, ...]  # differences to the run being resumed, for a person
    lock: Lock

    @classmethod
    def open(cls, path: Path | str, *, resume: bool, manifest: Mapping[str, Any]) -> RunFolder:
        """Take a new folder, or a winnow run's when `resume`, and write `manifest` into it.

        `manifest` is JSON: "config" as `winnow.config.dump` gives it, and whatever else identifies the surroundings
        (versions, threads, platform). On resume, "config" may differ in `MAY_CHANGE` only; every other difference
        between the manifests becomes a notice.

        A launch that ended before it wrote a row leaves a folder that is still new.

        Raises RunFolderError for a folder that is not a winnow run, is in use, is already used (without `resume`),
        holds no run or one with another configuration (with `resume`), or cannot be written.
        """
        path = Path(path)
        try:
            _refuse_foreign(path)
            if resume and _read_manifest(path) is None:
                raise RunFolderError(f"there is no run to resume in {path}; start it without --resume")
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path / LOCK)
        except OSError as error:
            raise _unusable(path, error) from error
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.release)
            notices = _claim(path, resume, manifest)
            on_failure.pop_all()
        return cls(path, notices, lock)

    def close(self) -> None:
        """Let another process have the folder."""
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lock:
    """An exclusive flock on a file that names its holder; the kernel releases it when the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        # A forked verify worker shares the open file: without this, an orphan would keep the lock of a dead trainer.
        os.register_at_fork(after_in_child=self.release)

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Lock `path`, creating it. Raises RunFolderError, naming the holder, when it is taken."""
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 256, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise RunFolderError(
                f"{path.parent} is in use by {holder}; wait for it to end, or write elsewhere"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Close the file; in the process that took the lock, this frees it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _claim(path: Path, resume: bool, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Under the lock: settle whether the folder may be used, write the manifest, return the notices."""
    before = _read_manifest(path)
    after = json.loads(json.dumps({"winnow_run": FORMAT, "changes": [], **manifest}))
    notices: tuple[str, ...] = ()
    if before is not None and (resume or _begun(path)):
        if not resume:
            raise RunFolderError(
                f"{path} already holds a run ({_contents(path)}); continue it with --resume, "
                f"or choose another folder with --set output=..."
            )
        notices = _compare(path, before, after)
        after["changes"] = [*before.get("changes", []), *notices]
    try:
        write_json(path / MANIFEST, after)
    except OSError as error:
        raise _unusable(path, error) from error
    return notices


def _compare(path: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """The allowed differences, in words. Raises RunFolderError for the others."""
    config = list(_differences(before.get("config"), after.get("config")))
    forbidden = [text for key, text in config if not _may_change(key, after["config"])]
    if forbidden:
        raise RunFolderError(
            f"cannot resume {path} with another configuration: {'; '.join(forbidden)}; "
            f"put the old values back, or start a new run with --set output=..."
        )
    around = _differences(_surroundings(before), _surroundings(after))
    return (
        *(text for key, text in config if key != "output"),
        *(f"{text}; the last bits of the results may differ from an uninterrupted run" for _, text in around),
    )


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key not in ("config", "changes")}


def _may_change(key: str, config: Any) -> bool:
    if key == "steps" and (config.get("optimizer") or {}).get("schedule", "constant") != "constant":
        return False  # a decaying learning rate reaches 0 at the last step: another end is another run
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in MAY_CHANGE)


def _differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, sentence) for every leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from _differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif before != after:
        yield key, f"{key} was {before!r} and is now {after!r}"


def _refuse_foreign(path: Path) -> None:
    """A folder with anything in it that is not a winnow run is not ours to touch."""
    if not path.exists():
        return
    if not path.is_dir():
        raise RunFolderError(f"{path} is a file; a run needs a folder: choose another with --set output=...")
    ours = {LOCK, draft_of(path / MANIFEST).name}
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    if others and _read_manifest(path) is None:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise RunFolderError(f"{path} is not empty and not a winnow run ({some}); choose another with --set output=...")


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a winnow run, or None when there is none that winnow wrote.

    Raises RunFolderError for one of a later format: what it means, and what else lies there, is not known here.
    """
    try:
        check_kind(path / MANIFEST, "a file", follow=True)
        data = json.loads((path / MANIFEST).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(data, dict) or "winnow_run" not in data:
        return None
    if data["winnow_run"] not in range(1, FORMAT + 1):
        raise RunFolderError(
            f"{path / MANIFEST} is of format {data['winnow_run']!r}, and this winnow knows {FORMAT} at most; use the "
            f"version that wrote it, or a later one"
        )
    return data


def _begun(path: Path) -> bool:
    """False for what a launch leaves that ended before its first row: nothing that a new one could overwrite."""
    ours = {LOCK, MANIFEST, draft_of(path / MANIFEST).name}
    return any(entry.name not in ours for entry in path.iterdir())


def _contents(path: Path) -> str:
    """What a used folder holds, in a few words."""
    checkpoints = sorted(entry.name for entry in path.glob("checkpoints/step-*"))
    files = sorted(entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    newest = f"newest checkpoint {checkpoints[-1]}" if checkpoints else "no checkpoint"
    return f"{', '.join(files)}; {newest}"


def _unusable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot use the run folder {path}: {error.strerror}; choose another with --set output=...")
