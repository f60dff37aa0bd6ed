"""The names that the checkers of problem sites import for a program: `List`, `math`, `deque`, `sqrt` and others.

Starter code such as `def f(self, nums: List[int])` relies on them. The checkers of APPS (Hendrycks et al., 2021, arXiv
2105.09938), TACO (Li et al., 2023, arXiv 2312.14852) and LiveCodeBench (Jain et al., 2024, arXiv 2403.07974) put
imports before every program, whole programs and functions alike. The union of their imports is provided here, without
numpy, which no program can import.

Python finds the program's own names first, then its builtins, and these names only then. So no text is put before the
program: its line numbers, its docstring, its `from __future__` imports and its own names stay as they are. Only
modules of names that the program reads are imported, because importing all would double the time of a small program.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterator
from importlib import import_module

# From these every public name is provided. A later module replaces the names of an earlier one.
_ALL_NAMES = (
    *("typing", "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "json"),
)
_SOME_NAMES = {  # those of `sys` depend on what a process has done
    "sys": ("argv", "maxsize", "setrecursionlimit", "stdin", "stdout", "stderr"),
    "fractions": ("Fraction",),
    "decimal": ("Decimal",),
}
_MODULES = (*_ALL_NAMES, *_SOME_NAMES, "time")  # a module's name wins over a name in a module: `datetime`, `copy`


@functools.cache
def table() -> bytes:
    """A line for each name: the name, its module, and its name there (none: the module itself)."""
    names = {name: f"{name} {module} {name}" for module, name in _members() if not hasattr(builtins, name)}
    names |= {module: f"{module} {module}" for module in _MODULES}
    return "\n".join(names.values()).encode()


def _members() -> Iterator[tuple[str, str]]:
    """(module, name) as `from module import *` finds them."""
    for module in _ALL_NAMES:
        found = import_module(module)
        for name in getattr(found, "__all__", [name for name in vars(found) if not name.startswith("_")]):
            yield module, name
    for module, names in _SOME_NAMES.items():
        for name in names:
            yield module, name
