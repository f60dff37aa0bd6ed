"""Tools that the policy calls in its text, for environments: how a call is read, and how it is answered.

    TOOLS = {"calculator": calculator}
    call = read_call("so <call>calculator 12 * 7</call>")  # Call(tool="calculator", argument="12 * 7")
    answer_call(call, TOOLS)                               # "84"

A call is `<call>TOOL ARGUMENT</call>`. The form in which the chat templates of Qwen2.5, Qwen3 and Hermes describe calls
is read too: `<tool_call>{"name": "calculator", "arguments": {"expression": "12 * 7"}}</tool_call>`, with one argument.
Its answer is inside `<tool_response>`, as those templates write it. The last call of a turn counts.

A call that cannot be read, an unknown tool, and an argument that a tool refuses are answered with a text that begins
with "error: ". The policy reads it as any other answer, and may try again.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

Tool = Callable[[str], str]  # argument -> answer; raises ValueError with the reason for which it refuses the argument

_CALL = re.compile(r"<call>(?P<plain>.*?)</call>|<tool_call>(?P<json>.*?)</tool_call>", re.DOTALL)
_OPENING = re.compile(r"<(?:tool_)?call>")
LONGEST = 200  # characters of a calculator's expression
BITS = 4096  # of a calculator's numerator and denominator


@dataclass(frozen=True)
class Call:
    """A call that was read from the policy's text."""

    tool: str
    argument: str
    template: bool = False  # whether it has the form of chat templates, in JSON


@dataclass(frozen=True)
class Malformed:
    """A call that could not be read, with the reason."""

    reason: str
    template: bool = False


def read_call(text: str) -> Call | Malformed | None:
    """The last call in a turn of the policy; None where it makes none."""
    calls = list(_CALL.finditer(text))
    if not calls:
        return Malformed("the call has no end tag") if _OPENING.search(text) else None
    plain = calls[-1]["plain"]
    return _from_json(calls[-1]["json"]) if plain is None else _from_words(plain)


def _from_words(text: str) -> Call | Malformed:
    tool, _, argument = text.strip().partition(" ")
    return Call(tool, argument.strip()) if tool else Malformed("the call is empty")


def _from_json(text: str) -> Call | Malformed:
    try:
        call = json.loads(text)
        (argument,) = call["arguments"].values()
        tool = call["name"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Malformed('the call is not {"name": ..., "arguments": {one argument}} in JSON', template=True)
    if not (isinstance(tool, str) and isinstance(argument, str)):
        return Malformed("the name and the argument of a call are texts", template=True)
    return Call(tool, argument, template=True)


def answer_call(call: Call | Malformed, tools: Mapping[str, Tool]) -> str:
    """The tool's answer, or a text that begins with "error: "."""
    text = _answer(call, tools)
    return f"<tool_response>\n{text}\n</tool_response>" if call.template else text


def _answer(call: Call | Malformed, tools: Mapping[str, Tool]) -> str:
    if isinstance(call, Malformed):
        return f"error: {call.reason}"
    if call.tool not in tools:
        return f"error: there is no tool {call.tool[:40]!r}, only {', '.join(sorted(tools))}"
    try:
        return tools[call.tool](call.argument)
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
