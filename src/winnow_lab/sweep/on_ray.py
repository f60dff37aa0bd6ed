"""Runs as plain Ray tasks: the cluster schedules them, and each task starts its run on its node.

The sweep's folder must be on shared storage, at the same path on every node. Needs the package ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winnow.commands.command_line import connect_to_ray
from winnow.errors import ConfigError
from winnow.state.disk import replace_file
from winnow.version import __version__
from winnow_lab.sweep.process import Child, Launched, Launcher, ProcessEnd
from winnow_lab.sweep_folder import SweepRun

PROBE = ".storage-probe"


class OnRay(Launcher):
    """Runs as tasks of a Ray cluster.

    "local" starts a cluster on this machine; "auto" uses the cluster that this machine belongs to.

    Raises ConfigError if ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, address: str, folder: Path, *, cpus: float, gpus: float) -> None:
        self.at_once: int | None = None
        self.alone, self.verb = False, "submitted"
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "ray: the package 'ray' is not installed here",
                remedy="install winnow-rl[ray]",
                key="ray",
                code="config.not_installed",
            ) from error
        self._ray = ray
        self._probe = Path(os.path.abspath(folder)) / PROBE
        self._token = secrets.token_hex(16)
        connect_to_ray(ray, address, log_to_driver=False, include_dashboard=False if address == "local" else None)
        replace_file(self._probe, self._token.encode())
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_on_node)

    def start(self, run: SweepRun, arguments: Sequence[str]) -> Launched:
        return _Task(
            self._ray,
            self._task.options(name=f"winnow {run.name}").remote(
                list(arguments), str(run.log), os.getcwd(), str(self._probe), self._token, __version__
            ),
        )

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()
        with contextlib.suppress(OSError):
            self._probe.unlink()


class _Task:
    """The Ray task of a run."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def poll(self) -> ProcessEnd | None:
        ready, _ = self._ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        try:
            return ProcessEnd(*self._ray.get(self._reference))
        except self._ray.exceptions.TaskCancelledError:
            return ProcessEnd(None, cancelled=True)
        except self._ray.exceptions.RayError as error:
            return ProcessEnd(None, f"the task of Ray failed: {str(error).strip().splitlines()[-1]}")

    def stop(self) -> None:
        self._ray.cancel(self._reference, force=False)  # raises KeyboardInterrupt in the task


def run_on_node(
    arguments: list[str], log: str, cwd: str, probe: str, token: str, version: str
) -> tuple[int | None, str | None]:
    """Start the run and wait for its end, in a task on a node.

    Returns (exit code, None), or (None, problem) if the run was not started.
    """
    if problem := _node_problem(probe, token, cwd, version):
        return None, f"{problem} (on the node {socket.gethostname()})"
    try:
        child = Child(arguments, Path(log), cwd)
    except OSError as error:
        return None, f"cannot be launched on the node {socket.gethostname()}: {error}"
    while True:
        try:
            while (ended := child.poll()) is None:
                time.sleep(0.05)
            return ended.code, None
        except KeyboardInterrupt:  # cancelled
            child.stop()


def _node_problem(probe: str, token: str, cwd: str, version: str) -> str | None:
    """Why a run cannot start on this node; None if it can."""
    try:
        probed = Path(probe).read_text(encoding="ascii")
    except OSError:
        probed = None
    if probed != token:
        return f"{os.path.dirname(probe)} is not the sweep's folder here; put the sweep on storage that all nodes share"
    if not os.path.isdir(cwd):
        return f"there is no folder {cwd}, in which the sweep was started and to which paths are relative"
    return None if version == __version__ else f"winnow is {__version__} here, and {version} where the sweep runs"
