"""Model output and files are data: nothing in winnow executes, unpickles or symbolically evaluates them.

`sympy.parse_expr` and `sympify` count, because both are an `eval`. The tree is parsed, so that comments and names that
merely contain a word do not matter and an alias does not help.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "winnow"
LAB = SOURCE.parent / "winnow_lab"

EXECUTES = {"eval", "exec", "compile", "__import__", "parse_expr", "sympify", "parse_latex"}
UNPICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
LOADS = {
    "yaml": {"load", "load_all", "full_load", "unsafe_load"},
    "torch": {"load", "save"},  # both are pickle; weights travel as safetensors
    "np": {"load"},
    "numpy": {"load"},
}

# (file below src/winnow, what it does); a new entry needs its reason here. The shim runs the program to be judged:
# inside the sandbox, in a process of its own, and nothing imports it. It also imports the standard modules that
# preamble.py lists, under the names that the program reads. A trainer and its engine's process pickle what
# they say over a socket pair without a name, which nobody else can write to; what a model wrote is in it as text. The
# ranks of a run do so among each other, over connections that they made in torch's process group, whose network must be
# trusted as for any training with torch. The file of user code runs a "file.py:function" from its text, as an import
# would take compiled code beside it.
ALLOWED: set[tuple[str, str]] = {
    ("user_code.py", "compile"),
    ("user_code.py", "exec"),
    ("verify/sandbox/shim.py", "compile"),
    ("verify/sandbox/shim.py", "exec"),
    ("verify/sandbox/shim.py", "__import__"),
    ("engines/process/engine.py", "pickle"),
    ("engines/process/messages.py", "pickle"),
    ("ranks.py", "pickle"),
}


LOOKED_AT = (ast.Call, ast.Attribute, ast.Import, ast.ImportFrom, ast.keyword)  # the cases of `_of`


def violations(tree: ast.AST) -> set[str]:
    return {found for node in ast.walk(tree) if isinstance(node, LOOKED_AT) for found in _of(node)}


def _of(node: ast.AST) -> list[str]:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in EXECUTES:
            return [name]
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in LOADS.get(module, ()):
            return [f"{module}.{name}"]
        case ast.Attribute(value=owner, attr=name) if name in EXECUTES:
            is_re = isinstance(owner, ast.Name) and owner.id == "re" and name == "compile"
            is_torch = name in ("eval", "compile")  # module.eval(), torch.compile: nothing to do with text
            return [] if is_re or is_torch else [name]
        case ast.Import(names=names):
            return [alias.name for alias in names if alias.name.partition(".")[0] in UNPICKLES]
        case ast.ImportFrom(module=module, names=names):
            taken = [alias.name for alias in names if alias.name in EXECUTES | LOADS.get(module or "", set())]
            return [*taken, *([module] if module and module.partition(".")[0] in UNPICKLES else [])]
        case ast.keyword(arg="allow_pickle" | "trust_remote_code" as name, value=ast.Constant(value=True)):
            return [name]
        case ast.keyword(arg="shell", value=ast.Constant(value=True)):
            return ["shell"]
    return []


def test_nothing_is_executed_or_unpickled():
    found = {
        (str(path.relative_to(SOURCE if SOURCE in path.parents else LAB.parent)), what)
        for path in (*SOURCE.rglob("*.py"), *LAB.rglob("*.py"))
        for what in violations(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    }
    assert found <= ALLOWED, f"executes or unpickles what may come from a model or a file: {sorted(found - ALLOWED)}"
    assert found >= ALLOWED, f"no longer needed in ALLOWED: {sorted(ALLOWED - found)}"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("eval(answer)", "eval"),
        ("exec(answer)", "exec"),
        ("compile(answer, '', 'eval')", "compile"),
        ("__import__(answer)", "__import__"),
        ("sympy.parse_expr(answer)", "parse_expr"),
        ("sympy.parsing.sympy_parser.parse_expr(answer)", "parse_expr"),
        ("from sympy import sympify", "sympify"),
        ("from sympy.parsing.latex import parse_latex as safe", "parse_latex"),
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("import dill as json", "dill"),
        ("yaml.load(text)", "yaml.load"),
        ("from yaml import unsafe_load", "unsafe_load"),
        ("torch.load(path)", "torch.load"),
        ("from torch import load", "load"),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "trust_remote_code"),
        ("subprocess.run(line, shell=True)", "shell"),
    ],
)
def test_the_search_finds(code: str, what: str):
    assert what in violations(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "re.compile(x)",
        "model.eval()",
        "torch.compile(f)",
        "yaml.safe_load(x)",
        "json.load(f)",
        "evaluate(x)",
        "x = 'eval(x)'",
    ],
)
def test_the_search_leaves_alone(code: str):
    assert violations(ast.parse(code)) == set()
