"""The reward for programs: run the model's program on a problem's tests, in the sandbox, one process per test.

Its output is compared with the expected one outside the sandbox, as untrusted bytes and JSON.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from winnow.bounds import AtLeastOne, BelowOne, Positive
from winnow.errors import ConfigError, DataError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.format import conclusion
from winnow.rewards.outcomes import failure, judged
from winnow.rewards.programs import Test, read_tests, same_output, same_value
from winnow.verify.sandbox import Limits, Program, RunResult, SandboxError, choose
from winnow.verify.sandbox.choice import Preference, Sandbox

LONGEST_PROGRAM = 2**18  # bytes; longer ones are not compiled
# The first line of a fence, possibly that of a list item. Text after backticks contains no backtick, or it is inline
# code. Its language ends at a space, a comma, a colon or a brace: ```python title="x.py", ```{.python}, ```python:x.py.
_OPENING = re.compile(r"(?P<indent>\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)?)(?P<mark>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)")
_LANGUAGE = re.compile(r"[\s{.]*([^\s{},:;]*)")
_PYTHON = re.compile(r"(py|python)(3(\.\d+)?)?|.*\.py")  # or the name of a file
_SHOWN = 200  # characters of the last line of a program's stderr


class _Verdict(NamedTuple):
    kind: str  # pass, wrong, or the ending of a run
    detail: str
    late: bool = False  # stopped by a wall-clock limit


def _check(options: Mapping[str, Any]) -> None:
    """Choose the sandbox, so that a run without a working one is refused before it starts."""
    try:
        _announce(choose(options["sandbox"]))
    except SandboxError as error:
        raise ConfigError(error.problem, remedy=error.remedy, key="sandbox", code=error.code) from error


@register(
    "reward",
    example=lambda program: f"like this:</think>\n```python\n{program}\n```",
    example_options={"program": "fence"},
    solution="solution",
    check_gold=read_tests,
    check=_check,
    own_limit="total_seconds",
)
def code_tests(
    prompt: Prompt,
    rollout: Rollout,
    *,
    credit: Literal["all", "share"] = "all",
    seconds: AtLeastOne = 2,
    total_seconds: Positive = 4.5,
    memory_mb: AtLeastOne = 512,
    tolerance: BelowOne = 1e-6,
    cases_at_once: AtLeastOne = 2,
    program: Literal["fence", "text"] = "fence",
    sandbox: Preference = "auto",
) -> Outcome:
    """1 when the program passes every test of the problem, else 0; with credit = "share" the share it passes.

    The program is the last closed ```python fence after the reasoning, or without one the last fence that names no
    language ("text": all text after the reasoning). The gold is {"tests": [{"stdin", "stdout"}, ...]} or {"function":
    name, "tests": [{"args", "result"}, ...]}, with `results` in place of `result` if any of several is right. A
    function may also be a method of a class Solution. The names that the checkers of APPS and LiveCodeBench import are
    in scope (verify/sandbox/preamble.py).

    The limits of a test are `seconds` of CPU time, 2 * `seconds` + 0.5 of wall-clock time, and `memory_mb`. The limit
    of all tests together is `total_seconds`, which must be below verify.timeout_seconds. A program that exceeds a limit
    is wrong; only a sandbox that failed twice is failed(sandbox). An outcome that depends on a wall-clock limit is
    marked as late. `tolerance` applies to numbers that the gold writes with a decimal point or an exponent.
    """
    text = conclusion(prompt, rollout)
    code = last_fence(text) if program == "fence" else text if text.strip() else None
    if code is None:
        return Outcome(reward=0.0, correct=False, kind="unparsable", detail="no program")
    function, tests = _tests(prompt)
    source = code.encode("utf-8", "surrogatepass")
    if len(source) > LONGEST_PROGRAM:
        return judged(False, answer=code, detail=f"test 1: compile_error: a program of {len(source)} bytes")
    programs = list[Program]()
    for test in tests:
        call = {} if test.arguments is None else {"function": function, "arguments": json.dumps(test.arguments)}
        programs.append(Program(code=source, stdin=test.stdin.encode("utf-8", "surrogatepass"), **call))
    limits = Limits(cpu_seconds=seconds, wall_seconds=2 * seconds + 0.5, memory_mb=memory_mb)
    verdicts: dict[int, _Verdict] = {}
    try:
        box, until = choose(sandbox), time.monotonic() + total_seconds
        for place, run in box.run_all(programs, limits, at_once=cases_at_once, until=until):
            verdicts[place] = _verdict(run, tests[place], tolerance)
            if credit == "all" and _first_failure(verdicts) is not None:
                break
    except SandboxError as error:
        return failure("sandbox", str(error))
    last = _first_failure(verdicts)
    count = len(tests) if credit == "share" or last is None else last + 1
    late = _Verdict("time_limit", f"all tests together took more than {total_seconds:g} seconds", late=True)
    return _outcome(code, [verdicts.get(place, late) for place in range(count)], credit)


def _first_failure(verdicts: Mapping[int, _Verdict]) -> int | None:
    """The place of the first test that failed; None until all tests before it have verdicts, so that the result does
    not depend on their speed.
    """
    for place in range(len(verdicts)):
        if place not in verdicts:
            return None
        if verdicts[place].kind != "pass":
            return place
    return None


def _verdict(run: RunResult, test: Test, tolerance: float) -> _Verdict:
    if run.ending != "finished":
        return _Verdict(run.ending, run.detail.rpartition("\n")[2][-_SHOWN:], run.late)
    if test.arguments is None:
        (gold,) = test.expected
        same = same_output(run.stdout, gold.encode("utf-8", "surrogatepass"), tolerance=tolerance)
    elif run.value is None:
        return _Verdict("wrong", "it exited without returning a value")
    else:
        try:
            value = json.loads(run.value)
        except (ValueError, RecursionError):
            return _Verdict("wrong", "its return value is not JSON")
        same = any(same_value(value, gold, tolerance=tolerance) for gold in test.expected)
    return _Verdict("pass" if same else "wrong", "")


def _outcome(code: str, verdicts: Sequence[_Verdict], credit: str) -> Outcome:
    for verdict in verdicts:
        if verdict.kind == "sandbox_error":
            return failure("sandbox", verdict.detail)
    failed = [(place, verdict) for place, verdict in enumerate(verdicts) if verdict.kind != "pass"]
    detail = ""
    if failed:
        place, first = failed[0]
        detail = f"test {place + 1}: {first.kind}" + (f": {first.detail}" if first.detail else "")
    return judged(
        not failed,
        (len(verdicts) - len(failed)) / len(verdicts) if credit == "share" else None,
        answer=code,
        detail=detail,
        late=any(verdict.late for verdict in verdicts),
    )


def last_fence(text: str) -> str | None:
    """The content of the last closed fence whose language is Python, else of the last without a language; or None.

    A fence is as in Markdown: three or more backticks or tildes, possibly indented, up to a line of at least as many
    of the same character. The content loses the fence's indentation.
    """
    found: dict[bool, str] = {}  # whether the language is named -> the last program
    opened: re.Match[str] | None = None
    lines = text.split("\n")
    for number, line in enumerate(lines):
        mark = line.strip()
        if opened is None:
            opened, start = _OPENING.fullmatch(line.rstrip()), number + 1
        elif mark.startswith(opened["mark"]) and not mark.strip(mark[0]):
            (language,) = _LANGUAGE.findall(opened["info"].lower())[:1]
            if not language or _PYTHON.fullmatch(language):
                found[language != ""] = _content(lines[start:number], len(opened["indent"]))
            opened = None
    return found.get(True, found.get(False))


def _content(lines: Sequence[str], indent: int) -> str:
    """The lines without the indentation of their fence, if the first one has it."""
    first = next((line for line in lines if line.strip()), "")
    shared = min(indent, len(first) - len(first.lstrip()))
    return "\n".join(line[min(shared, len(line) - len(line.lstrip())) :] for line in lines)


def _tests(prompt: Prompt) -> tuple[str, list[Test]]:
    """The gold's function (empty: whole programs) and tests. Raises DataError for a gold in another form."""
    try:
        return read_tests(prompt.answer)
    except ValueError as error:
        raise DataError(
            f"prompt {prompt.id!r}: its answer contains no tests ({error})",
            remedy='write it as {"tests": [{"stdin", "stdout"}]} or {"function", "tests": [{"args", "result"}]}',
            code="data.malformed",
        ) from error


@functools.cache
def _announce(sandbox: Sandbox) -> None:
    """Print the layers once per process, but not in the supervisor, which tests the same ones."""
    if getattr(sys.modules["__main__"].__spec__, "name", "") != "winnow.verify.supervisor":
        note = "" if sandbox.layers.seccomp else " ALONE (unsafe): they have all rights of this user"
        print(f"sandbox: programs run under {sandbox.layers}{note}", file=sys.stderr)
