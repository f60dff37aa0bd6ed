#!/usr/bin/env python
"""List the statements of src that no test and no dry run reaches: on a GPU's first day, run those first.

    python scripts/unreached_lines.py run COMMAND...    # trace a command and its child processes; may be repeated
    python scripts/unreached_lines.py list [PATH...]    # what is unreached so far, by file; paths below src/winnow, or
                                                      # below src of the packages beside it
    python scripts/unreached_lines.py table COMMANDS    # as a table, with what reaches them on a GPU; COMMANDS is what
                                                      # was traced

For example:

    python scripts/unreached_lines.py run scripts/test
    python scripts/unreached_lines.py run scripts/test-gpu --dry-run all --out /tmp/gpu
    python scripts/unreached_lines.py table "scripts/test and scripts/test-gpu --dry-run all"

Each process appends a line to .unreached/reached when it first runs it, so a killed process loses nothing. Remove the
folder to start again. A statement counts as reached with any of its lines, and branches do not count. Left out are
docstrings, imports for the type checker, and bodies that are only `...`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src"
OWN = "winnow/"  # what the names of winnow's own files omit
REACHED = REPOSITORY / ".unreached" / "reached"
WIDTH = 120  # columns
TRACE = "WINNOW_TRACE_LINES"  # the file that the traced processes append to
# The files whose statements a device can reach, and what reaches them first; empty where a device changes nothing
FIRST = {
    "engines/native": "scripts/test-gpu tests generation",
    "engines/process": "",
    "engines/vllm": "",
    "engines": "scripts/test-gpu tests learn",
    "learner/packing.py": "scripts/test-gpu tests layouts",
    "learner": "scripts/test-gpu tests update",
    "memory/usage.py": "scripts/test-gpu update memory",
    "models": "scripts/test-gpu tests resume",
    "ranks.py": "winnow train grpo --ranks 2",
}


def main() -> int:
    action, *arguments = sys.argv[1:] or [""]
    if action == "run" and arguments:
        return run(arguments)
    if action == "list":
        for path, found in sorted(unreached(read()).items()):
            if found and (not arguments or any(path.startswith(prefix) for prefix in arguments)):
                print(f"{path}: {sum(found.values())}")
                for function, count in found.items():
                    print(f"    {function}: {count}")
        return 0
    if action == "table" and len(arguments) == 1:
        print("\n".join(table(unreached(read()), arguments[0])))
        return 0
    print(__doc__)
    return 2


def run(command: Sequence[str]) -> int:
    """Run a command with every Python process of it traced."""
    REACHED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unreached-") as folder:
        start = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import unreached_lines as lines"
        Path(folder, "sitecustomize.py").write_text(f"{start}; lines.trace()\n", encoding="utf-8")
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, TRACE: str(REACHED)}).returncode


def trace() -> None:
    """Append every line of src that this process runs for the first time, as "path:line", with the names of `files`."""
    file = os.open(os.environ[TRACE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    prefix = f"{SOURCE}{os.sep}"
    missing: dict[CodeType, set[int]] = {}  # lines that have not run yet; without any, a function is traced no more

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(prefix):
            return None
        lines = missing.get(code)
        if lines is None:
            lines = missing[code] = {line for _, _, line in code.co_lines() if line}
            reach(code, lines, code.co_firstlineno)
        return line_of if lines else None

    def line_of(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno in (lines := missing[frame.f_code]):
            reach(frame.f_code, lines, frame.f_lineno)
        return line_of

    def reach(code: CodeType, lines: set[int], line: int) -> None:
        lines.discard(line)
        name = code.co_filename.removeprefix(prefix).removeprefix(OWN)
        os.write(file, f"{name}:{line}\n".encode())

    threading.settrace(enter)
    sys.settrace(enter)


def read() -> dict[str, set[int]]:
    """name of a file -> lines that some process has run."""
    reached: dict[str, set[int]] = {}
    for entry in set(REACHED.read_text(encoding="utf-8").splitlines()):
        path, _, line = entry.rpartition(":")
        reached.setdefault(path, set()).add(int(line))
    return reached


def files() -> dict[str, Path]:
    """name -> file of src: its path below src/winnow, or below src for the packages beside winnow."""
    return {path.relative_to(SOURCE).as_posix().removeprefix(OWN): path for path in sorted(SOURCE.rglob("*.py"))}


def unreached(reached: Mapping[str, set[int]]) -> dict[str, Counter[str]]:
    """name of a file -> function -> number of its statements that no line has reached."""
    return {name: missed(path.read_text(encoding="utf-8"), reached.get(name, set())) for name, path in files().items()}


def missed(source: str, reached: Iterable[int]) -> Counter[str]:
    """function -> number of its statements without a reached line, in the order of the source."""
    statement_of: dict[int, tuple[int, str]] = {}  # line -> the first line of its innermost statement, and its function
    for first, last, function in statements(ast.parse(source).body):
        statement_of.update((line, (first, function)) for line in range(first, last + 1))
    done = {statement_of[line] for line in reached if line in statement_of}
    return Counter(
        function for first, function in dict.fromkeys(statement_of.values()) if (first, function) not in done
    )


def statements(body: Sequence[ast.stmt], within: tuple[str, ...] = ()) -> Iterator[tuple[int, int, str]]:
    """(first line, last line, function) of every statement; of a compound one, its header. Outer ones come first."""
    name = ".".join(within) or "(module)"
    for statement in body:
        if _is_silent(statement):
            continue
        inner = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
        inner += [handler.body for handler in getattr(statement, "handlers", ())]
        inner += [case.body for case in getattr(statement, "cases", ())]
        defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        last = statement.end_lineno or statement.lineno
        if any(inner):
            last = max(statement.lineno, min(part[0].lineno for part in inner if part) - 1)
        yield first, last, name
        for part in inner:
            yield from statements(part, (*within, statement.name) if defines else within)  # type: ignore[attr-defined]


def _is_silent(statement: ast.stmt) -> bool:
    """Whether a statement computes nothing: a docstring, `...`, or what only a type checker reads."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.If):
        return isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING"
    return isinstance(statement, ast.Global | ast.Nonlocal)


def table(found: Mapping[str, Counter[str]], commands: str) -> list[str]:
    """The lines of the table, with the files that a device can reach."""
    chosen = {path: first_for(path) for path, missing in found.items() if missing}
    rows = [
        f"| `{path}` | {sum(found[path].values())} | {_named(found[path])} | `{first}` |"
        for path, first in chosen.items()
        if first
    ]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    total = sum(sum(found[path].values()) for path, first in chosen.items() if first)
    return [
        *textwrap.wrap(f"Traced at commit {commit.stdout.strip()}: {commands}.", WIDTH),
        f"{total} statements in {len(rows)} files are unreached, of the files that a device can reach.",
        "",
        "| file | statements | in | run first |",
        "|---|---|---|---|",
        *rows,
    ]


def first_for(path: str) -> str:
    """The command that reaches a file's statements on a GPU; empty for a file that no device concerns."""
    return next((command for prefix, command in FIRST.items() if path == prefix or path.startswith(f"{prefix}/")), "")


def _named(missing: Counter[str]) -> str:
    return ", ".join(f"{function} {count}" for function, count in missing.items())


if __name__ == "__main__":
    raise SystemExit(main())
