#!/usr/bin/env python
"""Print the test files that a change can affect, one per line: `scripts/test-changed` runs them.

    python scripts/changed_tests.py [--since REVISION]

A test file is affected if it changed, if it imports a changed module of src, scripts or benchmarks, or if it is in the
folder of tests/unit that mirrors the module's. The laws and the check of the mutants are always included. Imports are
followed for one step: run `scripts/test` before you open a pull request.
"""

from __future__ import annotations

import argparse
import ast
import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ("tests/unit/test_laws.py", "tests/unit/test_mutants_apply.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="main", help="compare with where the branch left this revision")
    for path in affected(changed(parser.parse_args().since)):
        print(path)


def changed(since: str) -> list[str]:
    """Files that differ from the revision at which the branch left `since`, and new ones; relative to the root."""
    base = _git("merge-base", since, "HEAD").strip()
    return [*_git("diff", "--name-only", base).split(), *_git("ls-files", "--others", "--exclude-standard").split()]


def affected(paths: Iterable[str]) -> list[str]:
    """The test files of changed files, in order; only those that exist."""
    paths = list(paths)
    modules = {module for path in paths if (module := module_of(path))}
    folders = {folder for path in paths if (folder := _mirror(Path(path)))}
    chosen = {name for name in ALWAYS if (ROOT / name).exists()}
    for test in (ROOT / "tests").rglob("test_*.py"):
        name = test.relative_to(ROOT)
        if str(name) in paths or name.parent in folders or _imports_any(test, modules):
            # pytest collects a named file although conftest.py ignores it, but not those of a named folder
            chosen.add(str(name.parent if name.parts[1].startswith("with_") else name))
    return sorted(chosen)


def _mirror(path: Path) -> Path | None:
    """The folder of tests/unit for a file of src: tests/unit/PACKAGE for winnow.PACKAGE, else tests/unit/winnow_lab.
    The nearest one above it that exists, as the files of the report's page have none of their own.
    """
    if path.parts[0] != "src":
        return None
    folder = Path("tests/unit", *path.parts[2 if path.parts[1] == "winnow" else 1 : -1])
    return next(above for above in (folder, *folder.parents) if (ROOT / above).is_dir())


def module_of(path: str) -> str | None:
    """The name that a test imports a changed file by; None for what is no module."""
    file = Path(path)
    if file.suffix != ".py":
        return None
    if file.parts[0] == "src":
        parts = file.with_suffix("").parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return file.stem if file.parts[0] in ("scripts", "benchmarks", "tests") else None


def _imports_any(test: Path, modules: Iterable[str]) -> bool:
    """Whether a test file imports one of the modules. It is not parsed where the words of no name are in it."""
    text = _text(test)
    return any(all(word in text for word in name.split(".")) and name in imports(test) for name in modules)


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.cache
def imports(test: Path) -> set[str]:
    """Every module that a test file imports, and what it imports from them: either may be the changed module."""
    found = set()
    for node in ast.walk(ast.parse(_text(test))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
