"""What a program may use up, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ending = Literal[
    "finished", "compile_error", "runtime_error", "time_limit", "memory_limit", "output_limit", "sandbox_error"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For one run. Processes, files written, sockets and signals to others need no number: there are none."""

    cpu_seconds: int = 2
    wall_seconds: float = 4.5  # for sleepers; CPU time is what a program is judged by
    memory_mb: int = 512  # of address space, the interpreter's 20 or so included
    output_bytes: int = 2**20  # of each of stdout, stderr and the returned value
    threads: int = 64
    open_files: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and all that it gets to see. A program reads `stdin`; a function is called with `arguments`."""

    code: bytes
    stdin: bytes = b""
    function: str = ""  # of the code, or of its class Solution; empty: the code is a whole program
    arguments: str = "[]"  # a JSON list


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How it went. Only `sandbox_error` is not the program's own doing."""

    ending: Ending
    stdout: bytes = b""
    value: bytes | None = None  # what the function returned, as JSON that nobody has checked
    detail: str = ""  # for a person: the end of stderr, or why the sandbox failed
    seconds: float = 0.0  # wall time
    late: bool = False  # ended by the clock on the wall, so a less busy machine may end it otherwise
