"""An engine's process as a fork of the process of forked.py, which has torch imported: a tenth of a second instead of
two. The fork runs the module that `EngineProcess` starts, with its arguments, environment and descriptors, in a session
of its own; only the start of an interpreter is left out.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import forked

if TYPE_CHECKING:  # forks import this module
    import pytest


def fork_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are started from here on are forks."""

    names = ("DEVNULL", "PIPE", "STDOUT", "TimeoutExpired")
    others = {name: getattr(subprocess, name) for name in names}
    monkeypatch.setattr("winnow.engines.process.lifecycle.subprocess", SimpleNamespace(Popen=Fork, **others))


class Fork:
    """What `EngineProcess` uses of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, pass_fds: Iterable[int], env: Mapping[str, str], **same_for_all: Any
    ) -> None:
        assert same_for_all == {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }
        read, write = os.pipe()
        numbers = {str(number): forked.Sent(number) for number in pass_fds}
        module, *arguments = command[command.index("-m") + 1 :]
        sent = [numbers.get(argument, argument) for argument in arguments]
        about = (os.getcwd(), dict(env), forked.Sent(write), module, sent)
        self._process = forked.context().Process(target=_live, args=about)
        self._process.start()
        os.close(write)
        self.pid: int = self._process.pid
        self.stdout = os.fdopen(read, "rb")
        self.returncode: int | None = None
        with suppress(ProcessLookupError):  # once it has its own session, as a process that was started has
            while self.poll() is None and os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a fork", timeout)
        assert self.returncode is not None
        return self.returncode


def _live(cwd: str, env: dict[str, str], output: int, module: str, arguments: list[Any]) -> None:
    """The whole of a fork."""
    os.setsid()
    sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    sys.argv = [module, *map(str, arguments)]
    forked.live(cwd, env, output, output, lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
