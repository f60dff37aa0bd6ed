"""`winnow train --ray ADDRESS --ranks N`: Ray Train starts the ranks on a cluster, and restarts them after a failure.

A restart continues from the run folder, so the folder is on storage with the same path on every node. Ray saves no
checkpoints. The folder `OUTPUT.ray` beside it contains Ray's files and the notes that ranks leave after an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from winnow.commands.command_line import FAILED, SAVED, connect_to_ray, print_text
from winnow.commands.train.here import TrainingRequest, this_rank, train_here
from winnow.commands.train.rank_end import NOTE, Cause, RankEnd, first_cause
from winnow.config import Config, dump
from winnow.config_file import load, placed, validate
from winnow.core.members import Members
from winnow.errors import ConfigError, RankError, RunFolderError
from winnow.recipes import recipe_at
from winnow.state.disk import replace_file
from winnow.state.folder import check_free, has_finished_step
from winnow.training.resolve import resolve_members
from winnow.version import __version__

_OWN = re.compile(r"ray|\.?(?:code|rank-\d+)\.json.*")  # in the folder beside a run, with drafts


@dataclass(frozen=True)
class ClusterRequest(TrainingRequest):
    """A request that any node can execute: it contains the configuration, with absolute paths."""

    data: Mapping[str, Any] = field(default_factory=dict)
    cwd: str = "."  # the user's working directory, to which other paths are relative
    recipe: str | None = None  # the package may be elsewhere on another node
    version: str = __version__

    def members(self) -> Members:
        return resolve_members(validate(self.data), base=self.config.parent, recipe=self.recipe)


def launch_on_ray(request: TrainingRequest, address: str, ranks: int, *, restarts: int) -> int:
    """Train with `ranks` processes on a Ray cluster, and return the exit code of the run.

    "local" starts a cluster on this machine. After a rank has died, the run continues from its newest checkpoint, at
    most `restarts` times. Raises ConfigError for a mistake in the configuration, and where the cluster cannot be
    reached. Raises RunFolderError for a folder that already contains a run.
    """
    base = request.config.parent.absolute()
    config = placed(dump(load(request.config, request.sets, request.unset), secrets=True), base)
    output = Path(os.path.abspath(os.path.expanduser(config["output"])))
    if not request.resume:
        check_free(output)
    data = {**config, "output": str(output)}
    fields = asdict(replace(request, config=request.config.absolute()))
    on_cluster = ClusterRequest(**fields, data=data, cwd=os.getcwd(), recipe=recipe_at(request.config))
    beside = Path(f"{output}.ray")
    _check_own(beside)
    settings = request.members().config  # of the file itself: `data` names every key, and has no lines
    ray = _connected(address, ranks)
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        error = _fit(ray, on_cluster, settings, beside, ranks, restarts)
    finally:
        ray.shutdown()
    code = _code(beside, error, ranks, settings)
    if code == 0:
        shutil.rmtree(beside, ignore_errors=True)
    return code


def _check_own(beside: Path) -> None:
    """Raise RunFolderError for anything but the folder of an earlier launch, which this one replaces."""
    others = [entry.name for entry in beside.iterdir() if not _OWN.fullmatch(entry.name)] if beside.is_dir() else []
    if others or (os.path.lexists(beside) and not beside.is_dir()):
        raise RunFolderError(
            f"{beside} is where Ray's files of this run belong, and "
            + (f"contains {min(others)}, which is none of them" if others else "is no folder"),
            remedy="move it away, or choose another folder for the run with the key output",
            key="output",
            code="run_folder.foreign",
        )


def _connected(address: str, ranks: int) -> Any:
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # else Ray Train prints each line of a rank twice
    try:
        import ray
        import ray.train.torch
    except ImportError as error:
        raise ConfigError(
            f"ray: {error}", remedy="install winnow-rl[ray]", key="ray", code="config.not_installed"
        ) from error
    quiet = ray.LoggingConfig(log_level="ERROR")  # else Ray Train logs a line per second without a dashboard
    # A local cluster gets a CPU per rank: Ray Train would wait for missing ones forever.
    local = {"include_dashboard": False, "num_cpus": max(ranks, os.cpu_count() or 1)} if address == "local" else {}
    connect_to_ray(ray, address, logging_config=quiet, **local)
    return ray


def _fit(
    ray: Any, request: ClusterRequest, config: Config, beside: Path, ranks: int, restarts: int
) -> BaseException | None:
    """Run all ranks until they exit. Returns Ray's error if ranks failed more than `restarts` times; else None."""
    train = ray.train
    free = ray.cluster_resources().get("GPU", 0)
    use_gpu = config.device == "cuda" or (config.device == "auto" and free >= ranks)
    timeout = max(1, int(config.ranks.timeout_seconds))
    trainer = train.torch.TorchTrainer(
        train_on_worker,
        train_loop_config={"request": request, "beside": str(beside)},
        torch_config=train.torch.TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=timeout),
        scaling_config=train.ScalingConfig(num_workers=ranks, use_gpu=use_gpu),
        run_config=train.RunConfig(
            name="ray", storage_path=str(beside), failure_config=train.FailureConfig(max_failures=restarts)
        ),
    )
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        failed: BaseException = error
        return failed
    return None


def train_on_worker(work: dict[str, Any]) -> None:
    """Train as the rank that Ray assigned to this worker; a run with a finished step continues from its folder."""
    request, beside = work["request"], Path(work["beside"])
    if request.version != __version__:
        raise RankError(
            f"winnow is {__version__} on {socket.gethostname()}, and {request.version} where the run was started",
            remedy="install the same version on every machine",
            code="rank.machine",
        )
    if not (beside.is_dir() and os.path.isdir(request.cwd)):
        missing = request.cwd if beside.is_dir() else str(beside)
        raise RankError(
            f"there is no folder {missing} on {socket.gethostname()}",
            remedy="start the run on shared storage",
            code="rank.machine",
        )
    os.chdir(request.cwd)
    rank = this_rank()
    note = beside / f"rank-{rank}.json"
    note.unlink(missing_ok=True)  # left by an earlier attempt
    os.environ[NOTE] = str(note)
    resume = request.resume or has_finished_step(Path(request.data["output"]))  # begun: this is a restart by Ray
    code = train_here(replace(request, resume=resume), launched=True)
    end = RankEnd.read(note) if code == FAILED else None
    if end is not None and (end.begun or end.trace):
        raise RankError(end.text, code="rank.failed")  # makes Ray restart the ranks
    if rank == 0:
        replace_file(beside / "code.json", json.dumps(code).encode())


def _code(beside: Path, error: BaseException | None, ranks: int, config: Config) -> int:
    """The exit code of a run; prints the first cause of a failure."""
    code_file = beside / "code.json"
    if error is None and code_file.exists() and (code := int(json.loads(code_file.read_text()))) in (0, SAVED):
        return code
    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", {}) if error else {}
    notes = [note for path in sorted(beside.glob("rank-*.json")) if (note := RankEnd.read(path))]
    died = {rank: failure for rank, failure in failures.items() if not any(n.rank == rank for n in notes)}
    if died:
        rank, failure = sorted(died.items())[0]
        cause = Cause(f"rank {rank} of {ranks} ended: {_last_line(failure)}; resume the run to continue", FAILED)
    elif not notes:
        cause = Cause(f"the run on Ray failed: {_last_line(error)}", FAILED)
    else:
        seen = (notes[0].rank, notes[0].code)
        cause = first_cause(seen, notes, ranks=ranks, timeout_seconds=config.ranks.timeout_seconds)
    print_text(cause.text, err=True)
    return cause.code


def _last_line(error: BaseException | None) -> str:
    line = (str(error).strip() or repr(error)).splitlines()[-1]
    return line.partition(". Some common causes")[0]  # without Ray's general advice
