"""Tools that the policy calls in its text, for environments: how calls are answered, and a calculator.

    TOOLS = {"calculator": calculator}
    calls = read_calls("so <call>calculator 12 * 7</call>")  # of winnow.environments.tool_calls
    answer_calls(calls, TOOLS)                               # "84"

Every call of a turn is answered, in order. A call that could not be read, an unknown tool, and an argument that a tool
refuses are answered with a text that begins with "error: ". The policy reads it as any other answer, and may try again.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from winnow.environments.tool_calls import Call, Malformed
from winnow.records import ToolAnswer

Tool = Callable[[str], str]  # argument -> answer; raises ValueError with the reason for which it refuses the argument

LONGEST = 200  # characters of a calculator's expression
BITS = 4096  # of a calculator's numerator and denominator


def answer_calls(calls: Sequence[Call | Malformed], tools: Mapping[str, Tool]) -> str | tuple[ToolAnswer, ...]:
    """The answers to the calls of a turn, in order, for an environment to yield.

    Calls in winnow's own form alone are answered with a text, a line each. Any other calls have `ToolAnswer`s, which
    are messages of the role "tool" where the chat template has a place for it. A call without an id gets one of nine
    characters, which some templates need.
    """
    texts = [_answer(call, tools) for call in calls]
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


def _answer(call: Call | Malformed, tools: Mapping[str, Tool]) -> str:
    if isinstance(call, Malformed):
        return f"error: {call.reason}"
    if call.name not in tools:
        return f"error: there is no tool {call.name[:40]!r}, only {', '.join(sorted(tools))}"
    arguments = list(call.arguments.values())
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        return f"error: the tool {call.name!r} has one argument, a text"
    try:
        return tools[call.name](arguments[0])
    except ValueError as error:
        return f"error: {error}"


def calculator(expression: str) -> str:
    """The value of an expression of numbers with + - * / // % ** and brackets, computed with fractions.

    An integer is written out, any other value with 10 significant digits. Raises ValueError for anything else, for a
    division by zero, and where a number would have more than `BITS` bits.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has more than {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):  # the last two: brackets nested too deeply for the parser
        raise ValueError("the expression cannot be read") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    return str(value.numerator) if value.denominator == 1 else _decimal(value)


_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(_number(value))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub()):
            operand = _value(node.operand)
            return operand if isinstance(node.op, ast.UAdd) else -operand
        case ast.BinOp(op=ast.Pow()):
            return _bounded(_power(_value(node.left), _value(node.right)))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError("the expression may have numbers, + - * / // % ** and brackets")


def _number(value: int | float) -> Fraction:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return Fraction(str(value))  # 0.1 is a tenth, and not the nearest binary number


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


def _decimal(value: Fraction) -> str:
    try:
        return f"{float(value):.10g}"
    except OverflowError:
        raise ValueError("a number is too large") from None
