"""The command line. A command imports what it needs when it runs, so that `--help`, `show` and `plot` load no torch."""

from __future__ import annotations

# Each import adds commands, in the order in which `winnow --help` lists them.
from winnow.cli import launching, sweeping, evaluating, planning, profiling, inspecting, comparing, judging  # isort: skip
from winnow.cli.door import CommandGroup, app, main

__all__ = [
    "CommandGroup",
    "app",
    "comparing",
    "evaluating",
    "inspecting",
    "judging",
    "launching",
    "main",
    "planning",
    "profiling",
    "sweeping",
]
