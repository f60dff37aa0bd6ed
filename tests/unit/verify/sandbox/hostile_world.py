"""Witnesses for hostile programs: what they could read, reach, write to or kill, and what became of it.

    python hostile_world.py <layer> <names>

runs the programs with these names, a JSON list, and prints as JSON how each went and what the witnesses saw: so a test
can do it as another user.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hostile_programs import HOSTILE, Hostile

from winnow.verify.sandbox import Limits, Program, Sandbox, choose

LIMITS = Limits(cpu_seconds=2, wall_seconds=120.0, memory_mb=256)
SLEEPERS_SECONDS = 3.0
AT_ONCE = 4
SECRET = "winnow-secret-answer"
_SUBREAPER = 36


class World:
    """Everything a program should have left alone."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.answers = folder / "answers"
        self.answers.write_text(SECRET)
        self.folder.chmod(0o777)  # open to all users, so that only the sandbox is in the way
        self.answers.chmod(0o666)
        self._before = self._files()
        self._tcp = _listener(stack, socket.create_server(("127.0.0.1", 0)))
        self._udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._udp.bind(("127.0.0.1", 0))
        self._udp.setblocking(False)
        self._unix = _listener(stack, _bound(str(folder / "socket")))
        self.abstract = f"winnow-hostile-{os.getpid()}"
        self._abstract = _listener(stack, _bound("\0" + self.abstract))
        self._before = self._files()
        self._children_before = _children()  # what other tests of this process have started
        self.neighbour = subprocess.Popen(["/bin/sleep", "600"])
        stack.callback(self._bury)

    def message(self) -> bytes:
        """What a program is told."""
        told = {
            "answers": str(self.answers), "folder": str(self.folder), "unix": str(self.folder / "socket"),
            "tcp": self._tcp.getsockname()[1], "udp": self._udp.getsockname()[1], "abstract": self.abstract,
            "harness": os.getpid(), "neighbour": self.neighbour.pid,
        }  # fmt: skip
        return json.dumps(told).encode() + b"\n"

    def traces(self) -> list[str]:
        """What happened to the witnesses; empty when nothing did."""
        found = [name for name in ("_tcp", "_unix", "_abstract", "_udp") if self._reached(getattr(self, name))]
        if self._files() != self._before:
            found.append(f"files changed: {self._before} -> {self._files()}")
        if self.neighbour.poll() is not None:
            found.append("the neighbour is dead")
        strays = [f"{folder}/winnow-hostile" for folder in ("/", "/tmp", "/var/tmp", "/dev/shm", "/root", "/etc")]
        found += [path for path in strays if os.path.exists(path)]
        left = _children().items() - self._children_before.items()
        return found + [f"left behind: {command}" for pid, command in left if pid != self.neighbour.pid]

    def _files(self) -> list[tuple[str, int, int, int]]:
        stats = {path.name: path.lstat() for path in self.folder.iterdir()}
        return sorted((name, s.st_mode, s.st_size, s.st_ctime_ns) for name, s in stats.items())

    def _reached(self, end: socket.socket) -> bool:
        try:
            end.recv(1) if end is self._udp else end.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def _bury(self) -> None:
        self.neighbour.kill()
        self.neighbour.wait()


@contextmanager
def a_world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)


def run_list(
    sandbox: Sandbox, programs: list[Hostile], *, limits: Limits = LIMITS, strikes_after: float = 0.7
) -> dict[str, Any]:
    """How each program went, by name, and what the witnesses saw."""
    os.environ["SECRET_TOKEN"] = SECRET
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what a program leaves behind becomes a child of ours
    try:
        with a_world() as world:
            brief = dataclasses.replace(limits, wall_seconds=SLEEPERS_SECONDS)
            least = dataclasses.replace(limits, cpu_seconds=1)
            busy = [p for p in programs if p.busy and not p.sleeps]  # they burn all they may
            others = [p for p in programs if p not in busy and not p.sleeps]
            ended = _run(sandbox, others, limits, world.message())
            ended |= _run(sandbox, busy, least, world.message())
            ended |= _run(sandbox, [p for p in programs if p.sleeps], brief, world.message())
            time.sleep(strikes_after)
            return {"runs": ended, "traces": world.traces()}
    finally:
        del os.environ["SECRET_TOKEN"]
        ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)


def _run(sandbox: Sandbox, programs: list[Hostile], limits: Limits, told: bytes) -> dict[str, Any]:
    runs = sandbox.run_all([Program(code=p.source, stdin=told) for p in programs], limits, at_once=AT_ONCE)
    return {
        programs[place].name: {
            "ending": run.ending, "stdout": run.stdout[:200].decode("utf-8", "replace"), "detail": run.detail,
            "seconds": run.seconds,
        }
        for place, run in runs
    }  # fmt: skip


def _bound(name: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind(name)
    end.listen()
    return end


def _listener(stack: ExitStack, end: socket.socket) -> socket.socket:
    stack.enter_context(end)
    end.setblocking(False)
    return end


def _children() -> dict[int, str]:
    """The command line of each, by process."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid): Path(f"/proc/{pid}/cmdline").read_text()[:80] for pid in listed}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listed = [program for program in HOSTILE if program.name in json.loads(sys.argv[2])]
    print(json.dumps(run_list(choose(sys.argv[1]), listed)))  # type: ignore[arg-type]
