"""Rules of the architecture, read from the source: imports go to lower floors only, and light modules stay light."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import checkout
import winnow
from winnow.commands import OWN

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import closure
import trees

SOURCE = Path(winnow.__file__).parent
SHIMS = {"winnow_trl", "winnow_verl", "winnow_nemo"}  # beside winnow, for other trainers
LAB = SOURCE.parent / "winnow_lab"
LAB_COMMANDS = set(checkout.declared()["winnow.commands"])
# Each imports only from those before it.
WORDS = [
    "version",
    "errors",
    "installed",
    "background",
    "bounds",
    "control_groups",
    "recipes",
    "seeds",
    "metrics",
    "records",
    "ranks",
    "families",
    "user_code",
    "other_names",
    "registry",
    "options",
    "config",
    "config_keys",
    "config_file",
]
# From the lowest to the highest; "winnow" is the API
FLOORS = [{name.removesuffix(".py").replace("__init__", "winnow") for name in of} for of in trees.FLOORS.values()]


def place(path: Path) -> str:
    """The top-level name a file belongs to: a module, a package, or "winnow" for the API."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "winnow" if first == "__init__" else first


def floor_of(name: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if name in floor)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Of a file's syntax tree, for all laws."""
    return list(ast.walk(tree(path)))


def imports(path: Path) -> set[str]:
    """Top-level winnow names that a file imports, also inside functions and for type checkers; "winnow" for the API."""
    found = closure.imported(nodes(path), MODULES)
    return {name.split(".")[1] for name in found if name.startswith("winnow.")} | ({"winnow"} & found)


FILES = sorted(SOURCE.rglob("*.py"))
LAB_FILES = sorted(LAB.rglob("*.py"))


def may_import(own: str, name: str) -> bool:
    same = {name, own} <= FLOORS[0] or {name, own} <= FLOORS[-1]
    return name == own or same or floor_of(name) < floor_of(own)


def test_a_file_imports_only_from_lower_floors_or_its_own_room():
    pairs = ((path, name) for path in FILES for name in sorted(imports(path)))
    assert [(str(path), name) for path, name in pairs if not may_import(place(path), name)] == []


STEP, FILES_OF_STEP, LINES_OF_STEP = "winnow.core.step", 60, 12_000
# Packages whose parts a step uses through core/protocols.py, or not at all
OUTSIDE = {"alarms", "learner", "memory", "models", "rewards", "tasks", "trackers", "training", "verify"}


def test_what_a_step_imports_is_read_in_an_afternoon():
    """In the end, with imports in functions and for type checkers; `python scripts/closure.py` shows what brings it."""
    reached = closure.closure(closure.import_graph(closure.modules(SOURCE), nodes), STEP)
    assert {"winnow.records", "winnow.core.plan", "winnow.budget.selection", "winnow.core"} < reached
    assert not OUTSIDE & {name.split(".")[1] for name in reached}
    assert len(reached) <= FILES_OF_STEP
    assert closure.lines(MODULES[name] for name in reached) <= LINES_OF_STEP


# Families whose members are loaded by name, and packages that are imported for one of their files alone
WITHOUT_IMPORTS = ("alarms", "core", "engines", "environments", "rewards", "tasks", "trackers", "verify")


def test_a_package_of_members_imports_none():
    assert [name for name in WITHOUT_IMPORTS if imported_modules(SOURCE / name / "__init__.py")] == []


def test_every_file_has_a_floor():
    for path in FILES:
        floor_of(place(path))


def test_a_word_is_made_of_earlier_words():
    pairs = ((place(path), name) for path in FILES if place(path) in WORDS for name in sorted(imports(path)))
    assert [(word, name) for word, name in pairs if WORDS.index(name) >= WORDS.index(word)] == []


MODULES = {**closure.modules(SOURCE), **closure.modules(LAB)}


def imported_modules(path: Path) -> set[str]:
    """Every module of winnow and winnow_lab that a file imports, inside a function or for a type checker too."""
    return closure.imported(nodes(path), MODULES) - {closure.module_of(path, SOURCE.parent)}


def test_no_import_goes_in_a_circle():
    graph = {name: imported_modules(path) for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def package_of(name: str) -> str:
    """The innermost package of a module; of a module directly in winnow, the module itself."""
    above = name.rpartition(".")[0]
    return name if MODULES[name].stem == "__init__" or above == "winnow" else above


def package_graph(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """package -> the packages that its files import, of module -> imported modules."""
    graph = defaultdict[str, set[str]](set)
    for name, others in modules.items():
        graph[package_of(name)] |= {package_of(other) for other in others} - {package_of(name)}
    return graph


def test_no_packages_import_each_other():
    """Neither two packages, nor a package and one inside it, nor several in a circle."""
    graph = package_graph({name: imported_modules(path) for name, path in MODULES.items()})
    assert {"winnow.engines", "winnow.models"} < graph["winnow.engines.native"]  # a package inside another has its own
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_a_package_and_one_inside_it_may_not_import_each_other():
    inner, outer = "winnow.engines.native.memory", "winnow.engines.hf"
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(package_graph({inner: {outer}, outer: {inner}})).static_order())


def command_of(name: str) -> str | None:
    """The command to which a module belongs: NAME of winnow.commands.NAME and of winnow_lab.NAME. None for others, as
    for command_line.py and for what the laboratory's commands share.
    """
    first, *inner = name.split(".")
    if first == "winnow_lab":
        return inner[0] if inner and inner[0] in LAB_COMMANDS else None
    return inner[1] if inner[:1] == ["commands"] and len(inner) > 1 and inner[1] != "command_line" else None


def test_no_command_imports_another():
    pairs = ((name, other) for name, path in MODULES.items() for other in imported_modules(path) if command_of(name))
    assert [(name, other) for name, other in pairs if command_of(other) not in (None, command_of(name))] == []


def test_what_commands_share_imports_no_command():
    shared = [name for name in MODULES if "." in name and command_of(name) is None]
    inner = {name: {other for other in imported_modules(MODULES[name]) if command_of(other)} for name in shared}
    assert not {name: others for name, others in inner.items() if others}


def test_every_command_is_declared_in_its_own_file():
    own = {command_of(name) for name in MODULES if name.startswith("winnow.")} - {None}
    assert own == set(OWN)
    for name, place in checkout.declared()["winnow.commands"].items():
        assert place == f"winnow_lab.{name}:{name}"
        assert f"winnow_lab.{name}" in MODULES


def test_winnow_imports_neither_the_laboratory_nor_another_trainer():
    beside = {path.parent.name for path in SOURCE.parent.glob("winnow_*/__init__.py")}
    assert {"winnow_lab", "winnow_trl", "winnow_verl", "winnow_nemo"} <= beside
    others = beside | {"trl", "accelerate", "verl", "transfer_queue", "tensordict", "nemo_rl"}
    every = [node for path in FILES for node in nodes(path)]
    named = {alias.name.partition(".")[0] for node in every if isinstance(node, ast.Import) for alias in node.names}
    named |= {(node.module or "").partition(".")[0] for node in every if isinstance(node, ast.ImportFrom)}
    assert "numpy" in named
    assert not named & others
    texts = {text for path in FILES for text in messages(path)}
    assert "winnow.commands" in texts
    imported_by_name = re.compile(rf"({'|'.join(beside)})([.:][\w.:]*)?")
    assert [text for text in texts if imported_by_name.fullmatch(text)] == []


def test_an_entry_point_names_what_its_module_defines():
    for points in checkout.declared().values():
        for place in points.values():
            name, _, defined = place.partition(":")
            assert defined in {getattr(node, "name", None) for node in nodes(MODULES[name])}, place


def test_the_readers_of_logs_import_no_other_part_of_the_laboratory():
    readers = [name for name in MODULES if name.startswith("winnow_lab.logs.")]
    assert {f"winnow_lab.logs.{name}" for name in checkout.declared()["winnow.logs"]} <= set(readers)
    inner = {other for name in readers for other in imported_modules(MODULES[name])}
    assert [name for name in inner if name.startswith("winnow_lab") and name not in (*readers, "winnow_lab.logs")] == []


def test_the_shims_build_on_functions_of_arrays():
    """They import no package above the algorithms, whose imports would need a configuration or a run."""
    shims = sorted(path for name in SHIMS for path in (SOURCE.parent / name).rglob("*.py"))
    assert {path.parent.name for path in shims} == SHIMS
    assert {name for path in shims for name in imports(path)} <= set().union(*FLOORS[: floor_of("algos") + 1])


def test_nothing_imports_the_api():
    assert [name for name, path in MODULES.items() if "winnow" in imported_modules(path)] == []


def test_a_folder_has_at_most_16_files():
    rooms = ("commands", "evaluation", "run_view", "trackers", "view")
    places = (LAB, *(SOURCE / room for room in rooms))
    files = (path for place in places for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert {folder: count for folder, count in Counter(path.parent for path in files).items() if count > 16} == {}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_light_modules_do_not_import_torch():
    light = ("winnow", "winnow.config", "winnow.records", "winnow.registry", "winnow.rewards", "winnow.state.logbook")
    steps = "".join(f"import {module}; print('{module}', 'torch' in sys.modules)\n" for module in light)
    assert run_python(f"import sys\n{steps}").splitlines() == [f"{module} False" for module in light]


def test_no_module_shadows_the_standard_library():
    top_level = {p.stem for p in SOURCE.glob("*.py")} | {p.name for p in SOURCE.iterdir() if p.is_dir()}
    assert not top_level & sys.stdlib_module_names


MOST_WITH_LATE_CONSTANTS = 23  # files; only ever lowered


def late_constants(body: list[ast.stmt]) -> list[str]:
    """The constants of a module that are below its first function."""
    first = next((i for i, node in enumerate(body) if isinstance(node, ast.FunctionDef)), len(body))
    assigned = (node for node in body[first:] if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = (
        target for node in assigned for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id.lstrip("_").isupper()]


def test_constants_precede_functions():
    assert late_constants(ast.parse("A = 1\ndef f(): ...\n_B: int = 2\nC = D = 3\nc = 4").body) == ["_B", "C", "D"]
    late = [path for path in FILES if late_constants(tree(path).body)]
    assert len(late) <= MOST_WITH_LATE_CONSTANTS, late


def test_no_two_modules_define_a_public_class_of_one_name():
    homes = defaultdict(list)
    for name, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_the_door_lists_what_it_opens_in_order():
    assert winnow.__all__ == sorted(winnow.__all__)
    for name in winnow.__all__:
        assert hasattr(winnow, name)


# A message that a Python program shows must not name options of the command line. These are about --set itself, name a
# command, or start another program.
SPEAKS_OF_FLAGS = {
    "commands/init.py",
    "commands/check/dry_run.py",
    "commands/doctor/machine.py",
    "commands/doctor/text.py",
    "commands/doctor/examine.py",
    "config_file.py",
    "installed.py",
    "run_view/summary.py",
    "training/gold_check.py",
    "verify/sandbox/bwrap.py",
    "winnow_lab/plan/from_log.py",
    "winnow_lab/plan/text.py",
    "winnow_lab/sweep/process.py",
}


def messages(path: Path) -> set[str]:
    """Every text in a file that is no docstring."""
    docstrings = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    texts = (node for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {node.value for node in texts if id(node) not in docstrings}


def test_errors_from_python_contain_no_flags():
    """A message is for Python and for the command line, which adds its flags in the declarations of commands."""
    declared = {MODULES[f"winnow.commands.{name}"] for name in OWN} | {
        MODULES[name] for name in ("winnow.commands", "winnow.commands.command_line")
    }
    declared |= {MODULES[f"winnow_lab.{name}"] for name in LAB_COMMANDS}
    names = {path: path.relative_to(SOURCE) for path in FILES}
    names |= {path: path.relative_to(LAB.parent) for path in LAB_FILES}
    files = [path for path, name in names.items() if path not in declared and str(name) not in SPEAKS_OF_FLAGS]
    texts = ((str(path), text) for path in files for text in messages(path))
    flags = [(file, text) for file, text in texts if re.search(r"(^|[\s(])--[a-z]", text)]
    assert [(file, text) for file, text in flags if "on the command line" not in text] == []
