"""The choice of layers: they are tested at the start, strongest first, and only layers that work are used."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from winnow.errors import VerifierError
from winnow.verify.sandbox import bwrap, interpreter, landlock, seccomp
from winnow.verify.sandbox.launch import Layers, run_all
from winnow.verify.sandbox.limits import Limits, Program, RunResult

Preference = Literal["auto", "bubblewrap", "landlock", "unsafe"]
RUNS_BETWEEN_CANARIES = 500

_PATIENT = Limits(wall_seconds=20.0)

# The two canary programs use what every program may use, and what none may. Each succeeds only in a correct sandbox.
_HONEST = Program(
    stdin=b"20 22\n",
    code=b"""
import threading
total = []
thread = threading.Thread(target=lambda: total.append(sum(map(int, input().split()))))
thread.start(); thread.join()
print(total[0])
""",
)
_INTRUDER = Program(
    code=b"""
import os, socket
def forked():
    if os.fork() == 0: os._exit(0)
attempts = {
    "read a file": lambda: open("/etc/passwd").close(),
    "listed the root folder": lambda: os.listdir("/proc"),
    "wrote a file": lambda: open("/tmp/winnow-canary", "w").close(),
    "opened a socket": lambda: socket.socket().close(),
    "started a process": forked,
    "signalled a process": lambda: os.kill(os.getppid() or 1, 0),
}
for name, attempt in attempts.items():
    try: attempt()
    except OSError: pass
    else: print(name)
"""
)
_ORDER = (("bubblewrap", True, True), ("landlock", False, True), ("bubblewrap", True, False))


class SandboxError(VerifierError):
    """No sandbox works on this machine, or the one in use has stopped working."""


@dataclass(eq=False)
class Sandbox:
    """Runs programs under the chosen layers, and tests these again every 500 runs. The time of a test does not count
    against the programs' limits.
    """

    layers: Layers
    _runs: int = 0

    def run_all(
        self, programs: Sequence[Program], limits: Limits, *, at_once: int, until: float = math.inf
    ) -> Iterator[tuple[int, RunResult]]:
        """`launch.run_all`, but a run that failed because of the sandbox is repeated once, if `until` allows it.

        Raises SandboxError when the canary programs fail.
        """
        until += self._test_again(len(programs))
        for place, run in run_all(self.layers, programs, limits, at_once=at_once, until=until):
            if run.ending == "sandbox_error" and time.monotonic() < until:
                ((_, run),) = run_all(self.layers, [programs[place]], limits, at_once=1, until=until)
            yield place, run

    def run(self, program: Program, limits: Limits) -> RunResult:
        """Run one program."""
        ((_, run),) = self.run_all([program], limits, at_once=1)
        return run

    def _test_again(self, programs: int) -> float:
        """Run the canary programs if they are due, and return the seconds that this took."""
        self._runs += programs
        if self._runs < RUNS_BETWEEN_CANARIES or not self.layers.seccomp:
            return 0.0
        began = time.monotonic()
        complaint = complaint_about(self.layers)
        if complaint:
            raise SandboxError(
                f"the sandbox ({self.layers}) has stopped working: {complaint}",
                remedy="find what changed on this machine, then resume the run",
                code="verifier.sandbox",
            )
        self._runs = 0  # not before: a sandbox that has stopped working runs nothing more
        return time.monotonic() - began


@functools.cache
def choose(preference: Preference = "auto") -> Sandbox:
    """The strongest sandbox that works here; raises SandboxError with every reason if none does.

    auto: bubblewrap over landlock and seccomp, else landlock and seccomp alone, else bubblewrap and seccomp.
    unsafe: limits alone. A program can then read, write, connect and kill with all rights of this user.
    """
    reasons = []
    for name, candidate in _candidates(preference):
        complaint = candidate if isinstance(candidate, str) else complaint_about(candidate)
        if not complaint:
            assert isinstance(candidate, Layers)
            return Sandbox(candidate)
        reasons.append(f"  {name}: {complaint}")
    raise SandboxError(
        f"no sandbox works here for sandbox = {preference!r}, so programs written by a model are not run:\n"
        + "\n".join(reasons),
        remedy="remove one of these causes; on a machine with nothing worth protecting, sandbox = 'unsafe' runs them "
        "with limits alone",
        code="verifier.sandbox",
    )


def complaint_about(layers: Layers) -> str:
    """The fault that the canary programs show; empty when both end as they must."""
    (_, honest), = run_all(layers, [_HONEST], _PATIENT, at_once=1)  # fmt: skip
    if honest.ending != "finished" or honest.stdout != b"42\n":
        return f"an honest program ended in {honest.ending}: {honest.detail}"
    if not layers.seccomp:
        return ""  # unsafe: no protection is claimed
    (_, intruder), = run_all(layers, [_INTRUDER], _PATIENT, at_once=1)  # fmt: skip
    if intruder.ending != "finished" or intruder.stdout:
        return f"an intruder {intruder.stdout.decode()!r} ended in {intruder.ending}: {intruder.detail}"
    return ""


def _candidates(preference: Preference) -> Iterator[tuple[str, Layers | str]]:
    """Layers to test, or why they are not available, strongest first."""
    root = os.name == "posix" and os.geteuid() == 0
    if preference == "unsafe":
        own = interpreter.own()
        yield "unsafe", Layers(interpreter=own, bubblewrap=None, landlock=0, seccomp=False, own_user=False)
        return
    if seccomp.machine() is None:
        yield "seccomp", "the system call filter exists for Linux on x86_64 and aarch64 only"
        return
    try:
        own = interpreter.own()
        python = interpreter.copied() if root and not interpreter.reachable_by_others(own) else own
    except OSError as error:
        yield "python", f"each program runs as a separate user, and such a user cannot start this Python: {error}"
        return
    path, version = bwrap.available(), landlock.version()
    for name, wrapped, locked in _ORDER:
        if preference not in ("auto", name):
            continue
        if wrapped and path is None:
            yield name, "bubblewrap (bwrap) is not installed; install it"
        elif locked and version == 0:
            yield name, "the kernel, or this container, has no landlock; Linux has it since 5.13"
        else:
            bubblewrap, rules = path if wrapped else None, version if locked else 0
            yield name, Layers(interpreter=python, bubblewrap=bubblewrap, landlock=rules, seccomp=True, own_user=root)
