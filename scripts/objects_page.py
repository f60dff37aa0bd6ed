"""docs/objects.md: the records and functions of Python, from their annotations, comments and docstrings.

`python scripts/reference.py` writes it, beside docs/reference.md.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import winnow
from winnow import records

PIPE = r"\|"  # a bar inside a cell
SHORT = {
    "IntArray": "int64 array",
    "FloatArray": "float64 array",
    "BoolArray": "bool array",
    "Tensor": "tensor",
    "Finish": "text",
    "Kind": "text",
    "Cause": "text",
}
VALUES = {"finish": "Finish", "kind": "Kind", "cause": "Cause"}  # fields of one of several texts

OPENING = """# Objects: records and functions of Python

This page lists the fields, shapes and units of the records that your own functions get, and the functions that train,
evaluate and read runs. A run, for example, is an object with its configuration, checkpoints, metrics and rollouts:

```sh
winnow train arithmetic --output runs/first --set steps=4 --set evaluate.problems=16
python -c "import winnow; print(winnow.open_run('runs/first'))"
```

```text
OpenRun('runs/first'): 4 of 4 steps, 1 checkpoint, bundled, clip on grpo, 16 -> 4 rollouts of 32 prompts per step
```

The page is generated from the code by `python scripts/reference.py`; do not edit it. It omits fields that are rarely
needed: see `help(winnow.Group)`. All names are attributes of `winnow`. Records are frozen.

A reward gets a Prompt and a Rollout, and returns a number, a dictionary or an Outcome ([verifiers.md](verifiers.md)).
An advantage and a selector get a Group, an allocator gets PromptStats, a weighting gets KeptRollouts, and a loss gets a
PolicyOutput (`out`) and a MicroBatch (`mb`) ([extending.md](extending.md)).

| letter | size | letter | size |
|---|---|---|---|
| G | prompts of a step | L | tokens of one completion |
| N | rollouts of one prompt | P | tokens of one prompt |
| B | sequences that are trained together | T | completion tokens of one micro-batch |

Rewards, advantages and weights are float64 arrays of numpy. The numbers of a MicroBatch are tensors on the policy's
device. Log-probabilities are natural logarithms. Times are seconds.
"""
RECORDS = (
    "Problem",
    "Prompt",
    "Rollout",
    "Outcome",
    "Group",
    "PromptStats",
    "KeptRollouts",
    "MicroBatch",
    "PolicyOutput",
)
RESULTS = ("Result", "EvaluationResult", "OpenRun")
SELDOM = ("ballots", "ties", "categories", "warnings", "timed_out", "where", "round", "beyond", "layout", "share")
FUNCTIONS = ("train", "evaluate", "open_run")


def page() -> str:
    """The whole text of docs/objects.md."""
    parts = [OPENING, "## Records\n"]
    parts += [line for name in RECORDS for line in _of_class(getattr(winnow, name))]
    parts += ["## Functions\n"]
    parts += [line for name in FUNCTIONS for line in _of_function(getattr(winnow, name))]
    parts += ["## What they return\n"]
    parts += [line for name in RESULTS for line in _of_class(getattr(winnow, name))]
    return "\n".join(parts).rstrip() + "\n"


def _of_class(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}\n"
    yield from _prose(kind.__doc__ or "")
    yield "| name | type | meaning |\n|---|---|---|"
    rows = (*_fields(kind), *_properties(kind))
    yield from (f"| `{name}` | {of} | {meaning} |" for name, of, meaning in rows if name not in SELDOM)
    yield ""


def _fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, type, comment) of each field of a data class."""
    source = textwrap.dedent(inspect.getsource(kind))
    comments, alone = _comments(source)
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = [comments[line] for line in _block_above(node.lineno, alone)]
            said = " ".join([*above, *filter(None, [comments.get(node.end_lineno or 0, "")])])
            values = records.__dict__.get(VALUES.get(node.target.id, ""))
            texts = ", ".join(f'"{value}"' for value in getattr(values, "__args__", ()))
            yield node.target.id, _type(ast.unparse(node.annotation)), _cell("; ".join(filter(None, [texts, said])))


def _comments(source: str) -> tuple[dict[int, str], set[int]]:
    """Comments by line, and the lines that have nothing else."""
    tokens = list(tokenize.generate_tokens(StringIO(source).readline))
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    return comments, {t.start[0] for t in tokens if t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip()}


def _block_above(line: int, alone: set[int]) -> list[int]:
    """The lines of comments directly above a line, in order."""
    first = line
    while first - 1 in alone:
        first -= 1
    return list(range(first, line))


def _properties(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, type, first sentences) of each property and public method."""
    for name, found in vars(kind).items():
        of = getattr(found, "fget", None) or getattr(found, "func", None) or found
        if name.startswith("_") or not inspect.isfunction(of):
            continue
        method = of is found
        parameters = [str(p) for p in inspect.signature(of).parameters.values()][1:] if method else []
        doc = " ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split())
        shown = f"{name}({', '.join(p.partition(':')[0] for p in parameters)})" if method else name
        yield shown, _type(str(of.__annotations__.get("return", ""))), _cell(doc)


def _of_function(function: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(function)
    parameters = ",\n".join(f"    {_parameter(p)}" for p in signature.parameters.values())
    yield f"### {function.__name__}\n\n```text\nwinnow.{function.__name__}(\n{parameters},\n)\n```\n"
    yield from _prose(function.__doc__ or "")


def _parameter(parameter: inspect.Parameter) -> str:
    mark = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{mark}{parameter.name}{default}"


def _prose(doc: str) -> Iterator[str]:
    """A docstring as Markdown: indented code is a block of its own, without the examples that a test runs."""
    for paragraph in inspect.cleandoc(doc).split("\n\n"):
        if ">>>" in paragraph or (paragraph.endswith(":") and ">>>" in doc):
            continue
        if paragraph.startswith("    "):
            yield f"```text\n{textwrap.dedent(paragraph)}\n```\n"
        else:
            yield _linked(paragraph) + "\n"


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def _type(annotation: str) -> str:
    for name, short in SHORT.items():
        annotation = re.sub(rf"\b{name}\b", short, annotation)
    return f"`{annotation}`".replace("|", PIPE) if annotation else ""


def _cell(text: str) -> str:
    return _linked(text.replace("|", PIPE))
