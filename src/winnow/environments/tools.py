"""Tools that the policy calls in its text, for environments: how calls are answered, and a calculator.

    TOOLS = {"calculator": calculator}
    calls = read_calls("so <call>calculator 12 * 7</call>")  # of winnow.environments.tool_calls
    answer_calls(calls, TOOLS)                               # "84"

Every call of a turn is answered, in order. A call that could not be read, an unknown tool, and an argument that a tool
refuses are answered with a text that begins with "error: ". The policy reads it as any other answer, and may try again.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from winnow.environments.tool_calls import Call, Malformed
from winnow.records import ToolAnswer

# Arguments -> answer, of which the text is read. Raises ValueError with the reason for which it refuses its arguments.
Tool = Callable[..., Any]

LONGEST = 200  # characters of a calculator's expression
BITS = 4096  # of a calculator's numerator and denominator
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


def answer_calls(
    calls: Sequence[Call | Malformed], tools: Mapping[str, Tool], *, refusal: type[Exception] = ValueError
) -> str | tuple[ToolAnswer, ...]:
    """The answers to the calls of a turn, in order, for an environment to yield.

    Calls in winnow's own form alone are answered with a text, a line each. Any other calls have `ToolAnswer`s, which
    are messages of the role "tool" if the chat template has a place for it. A call without an id gets one of nine
    characters, which some templates need. An exception of the type `refusal` is answered with its text.
    """
    texts = [_answer(call, tools, refusal) for call in calls]
    if all(call.own for call in calls):
        return "\n".join(texts)
    return tuple(
        ToolAnswer(
            text=text,
            name=call.name[:100] if isinstance(call, Call) else "error",
            call_id=(call.id if isinstance(call, Call) else "") or f"call{place:05d}",
        )
        for place, (call, text) in enumerate(zip(calls, texts, strict=True))
    )


def _answer(call: Call | Malformed, tools: Mapping[str, Tool], refusal: type[Exception]) -> str:
    if isinstance(call, Malformed):
        return f"error: {call.reason}"
    if call.name not in tools:
        return f"error: there is no tool {call.name[:40]!r}, only {', '.join(sorted(tools))}"
    try:
        return str(tools[call.name](**_arguments(call, tools[call.name])))
    except MemoryError:
        raise
    except (refusal, _Unfit) as error:
        return f"error: {error}"


class _Unfit(Exception):
    """Arguments that do not fit a tool, with the reason."""


def _arguments(call: Call, tool: Tool) -> dict[str, Any]:
    """The arguments of a call by the tool's parameters, each in the type of its annotation.

    The only argument of a tool with one parameter may have any name. A text in winnow's own form is the argument of
    such a tool. For any other tool it is split at white space, and the last parameter gets the rest.
    """
    expected = _parameters(tool)
    names, given = list(expected), dict(call.arguments)
    if call.own and len(names) != 1:
        texts = str(given.get("text", "")).split(maxsplit=max(0, len(names) - 1))
        given = dict(zip(names or ["text"], texts, strict=False))
    elif len(names) == len(given) == 1:
        given = {names[0]: next(iter(given.values()))}
    unknown, missing = given.keys() - expected.keys(), [n for n in names if n not in given and expected[n].required]
    if unknown or missing:
        listed = ", ".join(name if parameter.required else f"[{name}]" for name, parameter in expected.items())
        raise _Unfit(f"the tool {call.name!r} has the arguments {listed[:LONGEST] or 'none'}")
    for name, value in given.items():
        try:
            given[name] = expected[name].type.validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input ")
            raise _Unfit(f"the argument {name!r} of the tool {call.name!r} {reason}"[:LONGEST]) from None
    return given


class _Parameter(NamedTuple):
    """A parameter of a tool."""

    type: TypeAdapter[Any]
    required: bool


def _parameters(tool: Tool) -> Mapping[str, _Parameter]:
    """The parameters of a tool by name. One without a usable annotation accepts a text."""
    bound = isinstance(tool, types.MethodType)
    parameters = _all_parameters(tool.__func__ if isinstance(tool, types.MethodType) else tool)
    return dict(list(parameters.items())[1:]) if bound else parameters


@functools.lru_cache(maxsize=512)  # of functions: methods would keep their objects alive
def _all_parameters(function: Callable[..., Any]) -> Mapping[str, _Parameter]:
    try:
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError):  # a name that exists only for type checkers, or an object without annotations
        hints = {}
    return {
        name: _Parameter(_adapter(hints.get(name, str)), parameter.default is parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except PydanticUserError:  # a class that pydantic cannot read from JSON
        return TypeAdapter(str)


def calculator(expression: str) -> str:
    """The value of an expression of numbers with + - * / // % ** and brackets, computed with fractions.

    An integer is written out, any other value with 10 significant digits. Raises ValueError for anything else, for a
    division by zero, and if a number would have more than `BITS` bits.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has more than {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):  # the last two: brackets nested too deeply for the parser
        raise ValueError("the expression cannot be read") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.10g}"
    except OverflowError:
        raise ValueError("a number is too large") from None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if value == float("inf"):
                raise ValueError("a number is too large")
            return _bounded(Fraction(str(value)))  # 0.1 is a tenth, and not the nearest binary number
        case ast.UnaryOp(op=ast.UAdd() | ast.USub()):
            operand = _value(node.operand)
            return operand if isinstance(node.op, ast.UAdd) else -operand
        case ast.BinOp(op=ast.Pow()):
            return _bounded(_power(_value(node.left), _value(node.right)))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError("the expression may have numbers, + - * / // % ** and brackets")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent has to be an integer")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length(), 1)
    if abs(exponent) * bits > BITS:
        raise ValueError("a number is too large")
    return base**exponent.numerator


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > BITS:
        raise ValueError("a number is too large")
    return value
