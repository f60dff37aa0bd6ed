"""Commands in processes of their own that need not import torch again: forks of one process per test worker, which has
imported what winnow does and has computed nothing.

To import torch and transformers takes a second or more of a processor's time, a run of a tiny policy less. What must
be seen of a whole interpreter (its flags, what it imports, how it is installed) is for tests that start one.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import forkserver, reduction, spawn
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:  # forks import this module
    import pytest

SECONDS = 250.0


def context() -> Any:
    """The multiprocessing context whose processes are such forks."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["no_collection", "forked_imports"])
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}):
        forkserver.ensure_running()
    return forks


def winnow(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """`winnow ARGUMENTS`, as `run` does it."""
    return run(_command, *map(str, arguments), **more)


def python(script: Path, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """`python SCRIPT ARGUMENTS`, as `run` does it."""
    return run(_script, str(script), *map(str, arguments), **more)


def run(
    function: Callable[..., None],
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = SECONDS,
) -> subprocess.CompletedProcess[str]:
    """A function of a module in a fork: as `subprocess.run` with text that is captured; `env` adds to what is there.

    Raises TimeoutError, and the fork is killed, where it takes longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="forked-") as folder:
        environment = {**os.environ, **(env or {})}
        about = (folder, str(cwd or Path.cwd()), environment)
        process = context().Process(target=_live, args=(*about, function, arguments))
        process.start()
        process.join(timeout)
        late = process.exitcode is None
        if late:
            process.kill()
            process.join()
        out, err = (Path(folder, name).read_text(errors="replace") for name in ("out", "err"))
        if late:
            raise TimeoutError(f"{' '.join(arguments)} took longer than {timeout} seconds\n{out}{err}")
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out, err)


def _live(
    folder: str, cwd: str, env: dict[str, str], function: Callable[..., None], arguments: tuple[str, ...]
) -> None:
    """The whole of a fork that writes its output to files."""
    out, err = (os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err"))
    live(cwd, env, out, err, lambda: function(*arguments))


def live(cwd: str, env: Mapping[str, str], out: int, err: int, act: Callable[[], object]) -> None:
    """Act as a process with this folder, environment and output (two descriptors, which may be one), and then do what
    Python does at an exit.
    """
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, file in ((1, out), (2, err)):
        os.dup2(file, number)
    for file in {out, err}:
        os.close(file)
    import torch

    torch.set_num_threads(1)
    try:
        act()
    finally:
        atexit._run_exitfuncs()


def _command(*arguments: str) -> None:
    from winnow.commands import main

    sys.argv = ["winnow", *arguments]
    main()


def _script(script: str, *arguments: str) -> None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


class Sent:
    """A descriptor; pickled for a fork, it arrives as the number that it has there."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (reduction.DupFd(self.number),)


def _arrived(sent: Any) -> int:
    number: int = sent.detach()
    return number


# The supervisors of verifiers are forks of a second process. It has imported what they import, and no torch.

SUPERVISOR = "winnow.verify.supervisor"
_small = forkserver.ForkServer()
_small.set_forkserver_preload(
    [
        *("no_collection", "forked", "winnow.environments.judging", "winnow.verify.worker", "winnow.verify.dispatch"),
        *("winnow.rewards.answers", "winnow.rewards.gym", "winnow.rewards.verifiable", "winnow.verify.code_tests"),
    ]
)


def fork_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors that are started from here on are forks: a twentieth of a second instead of a third.

    A fork runs the supervisor's module with its arguments, environment and descriptors, in a session of its own. Only
    the start of an interpreter is left out.
    """
    replaced = SimpleNamespace(Popen=_Supervisor, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("winnow.verify.supervisor_client.subprocess", replaced)


class _Supervisor:
    """What `SupervisorClient` uses of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, pass_fds: Iterable[int], env: Mapping[str, str], **same_for_all: Any
    ) -> None:
        assert same_for_all == {"stdin": subprocess.PIPE, "start_new_session": True}
        assert command[-2] == SUPERVISOR
        reading, writing = os.pipe()
        ends = [Sent(number) for number in (*pass_fds, reading, 1, 2)]
        about = (os.getcwd(), dict(env), *ends)
        self._process: Any = multiprocessing.get_context("forkserver").Process(
            target=_supervise, args=about, daemon=True
        )
        with (
            mock.patch.object(spawn, "get_preparation_data", return_value={}),  # `_supervise` prepares the fork
            mock.patch.object(forkserver, "connect_to_new_process", _connect),
        ):
            self._process.start()
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb")
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        self.returncode = self._process.exitcode
        if self.returncode is None:
            raise subprocess.TimeoutExpired(SUPERVISOR, timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        self._process.kill()


def _connect(descriptors: list[int]) -> tuple[int, int]:
    """As multiprocessing's own function, but to the small process."""
    import winnow as package

    path = [str(Path(__file__).parent), str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    with mock.patch.dict(os.environ, environment):
        return _small.connect_to_new_process(descriptors)


def _supervise(cwd: str, env: dict[str, str], connection: int, *streams: int) -> None:
    """The whole of a fork; the streams are stdin, stdout and stderr."""
    gc.freeze()
    gc.enable()
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(streams):
        os.dup2(file, number)
    os.closerange(3, connection)  # a reward may write to every descriptor that is open
    os.closerange(connection + 1, 1024)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.FileIO(number, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        for number in (1, 2)
    )
    faulthandler.enable()
    sys.argv = [SUPERVISOR, str(connection)]
    runpy.run_module(SUPERVISOR, run_name="__main__", alter_sys=True)
