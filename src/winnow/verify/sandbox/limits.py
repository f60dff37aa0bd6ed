"""The limits of a program, and the result of running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from winnow.rewards.programs import LONGEST_OUTPUT

Ending = Literal[
    "finished", "compile_error", "runtime_error", "time_limit", "memory_limit", "output_limit", "sandbox_error"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run. Other processes, written files, sockets and signals need no limit, as every sandbox but
    "unsafe" refuses them.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 4.5  # for programs that sleep; CPU time is the usual limit
    memory_mb: int = 512  # of address space, including about 20 of the interpreter
    output_bytes: int = LONGEST_OUTPUT  # of each of stdout, stderr and the returned value
    threads: int = 64
    open_files: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its input. A whole program reads `stdin`; a function is called with `arguments`."""

    code: bytes
    stdin: bytes = b""
    function: str = ""  # its name in the code, or in the class Solution; empty: the code is a whole program
    arguments: str = "[]"  # a JSON list


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run. Only the ending `sandbox_error` is not caused by the program."""

    ending: Ending
    stdout: bytes = b""
    value: bytes | None = None  # the function's return value, as unchecked JSON
    detail: str = ""  # for a person: the end of stderr, or the reason why the sandbox failed
    seconds: float = 0.0  # wall time
    late: bool = False  # killed at the wall-clock limit, so the result may differ on a less busy machine
