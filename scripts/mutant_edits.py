"""Small changes to one function of a module, described without quoting its lines.

A mutant names a place, `package.module:name`, where the name is that of a function, a method (`Class.method`), a
function within a function, a class, or a variable of the module. It has one edit or several, each one of these:

    drop = KIND                     a statement becomes `pass`
    replace = KIND, by = CODE       a statement becomes other statements
    negate = KIND                   a condition becomes its opposite
    value = KIND, by = EXPRESSION   a condition or a value becomes another
    operator = OP, by = OP          an operator becomes another
    constant = C, by = C            a constant becomes another
    swap = NAME                     the first two arguments of a call of NAME change places
    unwrap = NAME                   a call of NAME becomes its first argument
    returns = EXPRESSION            the function returns this at once
    find = PATTERN, by = TEXT       a few symbols that follow each other become others

STATEMENTS, CONDITIONS and VALUES below list the kinds. In CODE and EXPRESSION the word OLD is the replaced text.

The code that an edit describes must occur exactly once. If there are several occurrences, `holding = PATTERN` chooses
the one that contains the pattern, and `which = "2 of 3"` chooses by order. A pattern contains at most one identifier,
so that a mutant depends on no other name; comments, docstrings and the layout of the code do not matter.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STATEMENTS: dict[str, tuple[type[ast.stmt], ...]] = {
    "assignment": (ast.Assign, ast.AnnAssign, ast.AugAssign),
    "assert": (ast.Assert,),
    "call": (ast.Expr,),
    "for": (ast.For,),
    "if": (ast.If,),
    "raise": (ast.Raise,),
    "return": (ast.Return,),
    "try": (ast.Try,),
    "while": (ast.While,),
    "with": (ast.With,),
}
CONDITIONS: dict[str, type[ast.AST]] = {
    "assert": ast.Assert,
    "filter": ast.comprehension,  # the `if` of a comprehension
    "if": ast.If,
    "ternary": ast.IfExp,
    "while": ast.While,
}
VALUES: dict[str, tuple[str, tuple[type[ast.AST], ...]]] = {
    "assignment": ("value", STATEMENTS["assignment"]),
    "for": ("iter", (ast.For,)),
    "keyword": ("value", (ast.keyword,)),  # the value of a keyword argument
    "lambda": ("body", (ast.Lambda,)),
    "return": ("value", (ast.Return,)),
}
OPERATORS: dict[str, type[ast.AST]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "**": ast.Pow,
    "@": ast.MatMult, "&": ast.BitAnd, "|": ast.BitOr, "^": ast.BitXor, "<<": ast.LShift, ">>": ast.RShift,
    "==": ast.Eq, "!=": ast.NotEq, "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "is": ast.Is,
    "is not": ast.IsNot, "in": ast.In, "not in": ast.NotIn, "and": ast.And, "or": ast.Or,
}  # fmt: skip
_SIGNS = {kind: sign for sign, kind in OPERATORS.items()}
_SYMBOL = re.compile(
    r"""(?P<blank>(?:\s|\\\n|\#[^\n]*)+)
    |(?P<string>[a-zA-Z]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"""(?:\\.|[^\\])*?\"""|'(?:\\.|[^\\'\n])*'|"(?:\\.|[^\\"\n])*"))
    |(?P<name>[^\W\d]\w*)
    |(?P<number>\.?\d(?:[eE][+-]|[\w.])*)
    |(?P<sign>\*\*=|//=|>>=|<<=|\.\.\.|\*\*|//|>>|<<|<=|>=|==|!=|->|:=|[-+*/%@&|^]=|.)""",
    re.VERBOSE | re.DOTALL,
)


class CannotApply(Exception):
    """An edit is invalid, or its place does not exist or is not unique."""


@dataclass(frozen=True)
class Change:
    """The characters from `start` to `end` become `text`."""

    start: int
    end: int
    text: str
    around: tuple[int, int]  # the text that `holding` searches


@dataclass(frozen=True)
class Symbol:
    text: str
    start: int
    end: int


def mutated(text: str, name: str, edits: Sequence[Mapping[str, str]]) -> str:
    """A module's text after all edits of the function, class or variable `name`. Raises CannotApply."""
    before = ast.dump(ast.parse(text))
    try:
        for edit in edits:
            text = _edited(text, name, dict(edit))
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CannotApply(f"the result is not Python: {error}") from error
    if ast.dump(tree) == before:
        raise CannotApply("it changes nothing")
    if unknown := sorted(_unknown_names(tree, name)):
        raise CannotApply(f"the name {unknown[0]} is not defined there")
    return text


def _edited(text: str, name: str, edit: dict[str, str]) -> str:
    if not all(isinstance(value, str) for value in edit.values()):
        raise CannotApply("every value of an edit is a text")
    place = Place(text, name)
    kinds = [key for key in edit if key in _EDITS]
    if len(kinds) != 1:
        raise CannotApply(f"an edit has one of the keys {list(_EDITS)}; this edit has {list(edit)}")
    needed, changes_of = _EDITS[kinds[0]]
    if set(edit) - {"holding", "which"} != {kinds[0], *needed}:
        raise CannotApply(f"{kinds[0]!r} takes the keys {[kinds[0], *needed]}; this edit has {list(edit)}")
    change = _chosen(list(changes_of(place, *(edit[key] for key in (kinds[0], *needed)))), place, edit)
    return text[: change.start] + change.text + text[change.end :]


def _chosen(changes: list[Change], place: Place, edit: Mapping[str, str]) -> Change:
    if "holding" in edit:
        pattern = _pattern(edit["holding"])
        changes = [change for change in changes if list(place.matches(pattern, *change.around))]
        outer = {a for a, b in itertools.permutations(changes, 2) if _within(b.around, a.around)}
        changes = [
            change for change in changes if change not in outer
        ]  # a loop also contains the text of its statements
    changes.sort(key=lambda change: change.start)
    if "which" not in edit:
        if len(changes) != 1:
            raise CannotApply(f"{edit} describes {len(changes)} places")
        return changes[0]
    numbers = re.fullmatch(r"(\d+) of (\d+)", edit["which"])
    if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise CannotApply(f'which = {edit["which"]!r}: write "2 of 3"')
    if len(changes) != int(numbers[2]):
        raise CannotApply(f"{edit} describes {len(changes)} places, not {numbers[2]}")
    return changes[int(numbers[1]) - 1]


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1] and inner != outer


class Place:
    """A function, class or variable of a module's text."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.node = _found(ast.parse(text), name)[-1]
        self._lines = text.split("\n")
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in self._lines)]
        self._docstrings = {self.span(node) for node in _docstrings(self.node)}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Start and end of a node, in characters; a decorator is not part of its function."""
        begin: Any = node.target if isinstance(node, ast.comprehension) else node
        end: Any = [node.iter, *node.ifs][-1] if isinstance(node, ast.comprehension) else node
        return self._offset(begin.lineno, begin.col_offset), self._offset(end.end_lineno, end.end_col_offset)

    def _offset(self, line: int, byte: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:byte].decode())

    def nodes(self) -> Iterator[ast.AST]:
        """Every node with a position, except docstrings and nodes within a formatted string."""
        start = self.span(self.node)[0]
        left: list[ast.AST] = [self.node]
        while left:
            node = left.pop()
            if not isinstance(node, ast.JoinedStr):
                left += ast.iter_child_nodes(node)
            if hasattr(node, "lineno") or isinstance(node, ast.comprehension):
                span = self.span(node)
                if span[0] >= start and span not in self._docstrings:
                    yield node

    def old(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def change(self, node: ast.AST, text: str, around: ast.AST | None = None) -> Change:
        return Change(*self.span(node), text, self.span(around or node))

    def matches(self, pattern: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
        """Places in which symbols follow each other as in a pattern."""
        symbols = [s for s in _symbols(self.text[start:end], start) if (s.start, s.end) not in self._docstrings]
        texts = [symbol.text for symbol in symbols]
        for first in range(len(texts) - len(pattern) + 1):
            if texts[first : first + len(pattern)] == list(pattern):
                yield symbols[first].start, symbols[first + len(pattern) - 1].end


def _found(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The nodes of a dotted name, from the outermost to the innermost."""
    path: list[ast.stmt] = []
    inside: ast.AST = tree
    for part in name.split("."):
        found = [node for node in _definitions(inside) if part in _defines(node)]
        if len(found) != 1:
            raise CannotApply(f"{name!r} is defined {len(found)} times" if found else f"there is no {name!r}")
        inside = found[0]
        path.append(found[0])
    return path


def _definitions(inside: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(inside):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _definitions(child)


def _defines(node: ast.AST) -> set[str]:
    """The names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return set()


def _docstrings(inside: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(inside):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _unknown_names(tree: ast.Module, name: str) -> set[str]:
    """Undefined names that an edited place reads: with them, a test would fail for the wrong reason."""
    outermost = _found(tree, name)[0]
    known = {*dir(builtins), "__file__"}.union(*map(_defines, _definitions(tree)))
    read = set[str]()
    for node in ast.walk(outermost):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            known.add(node.name)
        else:
            known |= _defines(node)
    return read - known


def _symbols(text: str, start: int = 0) -> list[Symbol]:
    """Names, numbers, strings and signs; without a comma before a closing bracket, which a formatter adds."""
    found = [
        Symbol(_plain(match), start + match.start(), start + match.end())
        for match in _SYMBOL.finditer(text)
        if match.lastgroup != "blank"
    ]
    following = [*(symbol.text for symbol in found), ""][1:]
    return [s for s, after in zip(found, following, strict=True) if s.text != "," or after not in (")", "]", "}")]


def _plain(match: re.Match[str]) -> str:
    """A string by its value, with any quotes."""
    text = match[0]
    if match.lastgroup == "string" and "f" not in text[:2].lower():
        return repr(ast.literal_eval(text))
    return text


def _pattern(text: str) -> list[str]:
    symbols = [symbol.text for symbol in _symbols(text)]
    names = [symbol for symbol in symbols if symbol.isidentifier() and not keyword.iskeyword(symbol)]
    if len(names) > 1:
        raise CannotApply(f"the pattern {text!r} holds {len(names)} identifiers; at most one is allowed")
    if not symbols:
        raise CannotApply("the pattern is empty")
    return symbols


def _one_of(kind: str, known: Iterable[str]) -> str:
    if kind not in known:
        raise CannotApply(f"there is no kind {kind!r} here; known: {', '.join(known)}")
    return kind


def _statements(place: Place, kind: str) -> Iterator[ast.stmt]:
    types = STATEMENTS[_one_of(kind, STATEMENTS)]
    for node in place.nodes():
        if isinstance(node, types) and (kind != "call" or isinstance(node.value, ast.Call)):  # type: ignore[attr-defined]
            yield node


def _drop(place: Place, kind: str) -> Iterator[Change]:
    return (place.change(node, "pass") for node in _statements(place, kind))


def _replace(place: Place, kind: str, code: str) -> Iterator[Change]:
    for node in _statements(place, kind):
        lines = textwrap.dedent(code).strip().splitlines()
        yield place.change(node, _with_old(f"\n{' ' * node.col_offset}".join(lines), place.old(node)))


def _with_old(code: str, old: str) -> str:
    return re.sub(r"\bOLD\b", lambda _: old, code)


def _tests(place: Place, kind: str) -> Iterator[tuple[ast.AST, ast.expr]]:
    for node in place.nodes():
        if isinstance(node, CONDITIONS[kind]):
            for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:  # type: ignore[attr-defined]
                yield node, test


def _negate(place: Place, kind: str) -> Iterator[Change]:
    _one_of(kind, CONDITIONS)
    return (place.change(test, f"(not ({place.old(test)}))", node) for node, test in _tests(place, kind))


def _value(place: Place, kind: str, expression: str) -> Iterator[Change]:
    if _one_of(kind, {**CONDITIONS, **VALUES}) in CONDITIONS:
        found = list(_tests(place, kind))
    else:
        attribute, types = VALUES[kind]
        found = [(node, getattr(node, attribute)) for node in place.nodes() if isinstance(node, types)]
    for node, old in found:
        if old is not None:  # a `return` may have no value
            yield place.change(old, f"({_with_old(expression, f'({place.old(old)})')})", node)


def _operator(place: Place, sign: str, by: str) -> Iterator[Change]:
    _one_of(sign, OPERATORS)
    _one_of(by, OPERATORS)
    for node in place.nodes():
        for operands, signs in _operations(node):
            for number, one in enumerate(signs):
                if one == sign:
                    written = [*signs[:number], by, *signs[number + 1 :]]
                    terms = [f"({place.old(operand)})" for operand in operands]
                    text = " ".join([terms[0], *(f"{s} {term}" for s, term in zip(written, terms[1:], strict=True))])
                    yield place.change(node, f"({text})")
        if isinstance(node, ast.AugAssign) and _SIGNS[type(node.op)] == sign:
            yield place.change(node, f"{place.old(node.target)} {by}= ({place.old(node.value)})")


def _operations(node: ast.AST) -> Iterator[tuple[list[ast.expr], list[str]]]:
    """The operands of an operation, and the signs between them."""
    if isinstance(node, ast.BinOp):
        yield [node.left, node.right], [_SIGNS[type(node.op)]]
    elif isinstance(node, ast.Compare):
        yield [node.left, *node.comparators], [_SIGNS[type(op)] for op in node.ops]
    elif isinstance(node, ast.BoolOp):
        yield node.values, [_SIGNS[type(node.op)]] * (len(node.values) - 1)


def _constant(place: Place, old: str, by: str) -> Iterator[Change]:
    try:
        wanted = ast.literal_eval(old)
    except (SyntaxError, ValueError) as error:
        raise CannotApply(f"{old} is no constant") from error
    for node in place.nodes():
        if isinstance(node, ast.Constant) and type(node.value) is type(wanted) and node.value == wanted:
            yield place.change(node, f"({by})")


def _calls(place: Place, name: str, arguments: int) -> Iterator[ast.Call]:
    for node in place.nodes():
        if isinstance(node, ast.Call) and len(node.args) >= arguments:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called == name:
                yield node


def _swap(place: Place, name: str) -> Iterator[Change]:
    for node in _calls(place, name, 2):
        (begin, end), (start, stop) = (place.span(argument) for argument in node.args[:2])
        text = place.text[start:stop] + place.text[end:start] + place.text[begin:end]
        yield Change(begin, stop, text, place.span(node))


def _unwrap(place: Place, name: str) -> Iterator[Change]:
    return (place.change(node, f"({place.old(node.args[0])})") for node in _calls(place, name, 1))


def _returns(place: Place, expression: str) -> Iterator[Change]:
    if isinstance(place.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        body = place.node.body
        first = body[len(body) > 1 and ast.get_docstring(place.node) is not None]
        start = place.span(first)[0]
        yield Change(start, start, f"return ({expression})\n{' ' * first.col_offset}", (start, start))


def _find(place: Place, pattern: str, by: str) -> Iterator[Change]:
    return (Change(*found, by, found) for found in place.matches(_pattern(pattern), *place.span(place.node)))


_EDITS: dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Change]]]] = {
    "drop": ((), _drop),
    "replace": (("by",), _replace),
    "negate": ((), _negate),
    "value": (("by",), _value),
    "operator": (("by",), _operator),
    "constant": (("by",), _constant),
    "swap": ((), _swap),
    "unwrap": ((), _unwrap),
    "returns": ((), _returns),
    "find": (("by",), _find),
}
