#!/usr/bin/env python
"""Print what a module imports in the end, and which single imports bring most of it.

    python scripts/closure.py                        # of winnow.core.step, or of another module, if one is named
    python scripts/closure.py winnow.core.loop --files

Counted is every module of winnow that is imported by the module, by what it imports, and so on: at the top of a file,
inside a function, and for type checkers. The `__init__` of each package above an imported module counts too. The
package winnow itself does not, as it is the interface over everything and nothing imports it.

An import is listed with the files and the lines that no other import would bring.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "winnow"
START = "winnow.core.step"
SHOWN = 40  # imports

Graph = Mapping[str, Collection[str]]  # module -> the modules that it imports
Edge = tuple[str, str]


def module_of(path: Path, above: Path) -> str:
    """The dotted name of a file in the folder `above`."""
    parts = path.relative_to(above).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: Path) -> dict[str, Path]:
    """dotted name -> file of every module of a package."""
    return {module_of(path, package.parent): path for path in sorted(package.rglob("*.py"))}


def imported(nodes: Iterable[ast.AST], known: Collection[str]) -> set[str]:
    """The `known` modules that are imported in a syntax tree, inside a function or for a type checker too."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner if inner <= set(known) else {node.module, *inner}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & set(known)


def packages_above(name: str) -> Iterator[str]:
    """The packages that a module is in, without the outermost."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(2, len(parts)))


def nodes(path: Path) -> Iterable[ast.AST]:
    """Of a file's syntax tree."""
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def import_graph(files: Mapping[str, Path], nodes: Callable[[Path], Iterable[ast.AST]] = nodes) -> dict[str, set[str]]:
    """module -> the modules that it imports, with the packages above them. `nodes` may remember those of a file."""
    direct = {name: imported(nodes(path), files) for name, path in files.items()}
    return {
        name: {*found, *(above for each in found for above in packages_above(each))} for name, found in direct.items()
    }


def closure(graph: Graph, start: str, *, without: Edge | None = None) -> set[str]:
    """The modules that `start` imports in the end, itself and its packages included; `without` one import."""
    reached = {start, *packages_above(start)}
    waiting = list(reached)
    while waiting:
        name = waiting.pop()
        new = {other for other in graph[name] if (name, other) != without} - reached
        reached |= new
        waiting += new
    return reached


def brought_alone(graph: Graph, start: str) -> dict[Edge, set[str]]:
    """import -> the modules that would leave the closure with it; only imports that bring any."""
    whole = closure(graph, start)
    edges = ((name, other) for name in whole for other in graph[name])
    found = {edge: whole - closure(graph, start, without=edge) for edge in edges}
    return {edge: names for edge, names in found.items() if names}


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="?", default=START)
    parser.add_argument("--files", action="store_true", help="also print every file")
    options = parser.parse_args()
    files = modules(SOURCE)
    graph = import_graph(files)
    names = closure(graph, options.module)
    print(f"{options.module}: {len(names)} files, {lines(files[name] for name in names)} lines")
    print("files  lines  import")
    sized = {
        edge: (lines(files[name] for name in of), len(of)) for edge, of in brought_alone(graph, options.module).items()
    }
    for (name, other), (size, count) in sorted(sized.items(), key=lambda item: item[1], reverse=True)[:SHOWN]:
        print(f"{count:>5}  {size:>5}  {name} -> {other}")
    for name in sorted(names) if options.files else ():
        print(f"{lines([files[name]]):>5}  {name}")


if __name__ == "__main__":
    main()
