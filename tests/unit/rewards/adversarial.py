r"""Answers that are written to hang, crash or fool a verifier, and payloads that would write a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.verify.verifiers import Verifiers

GOLD = r"\ln 5"  # no exact rule decides on it, so computer algebra is used
LIMIT_SECONDS, MARGIN_SECONDS, MEMORY_MB = 0.2, 0.05, 2048
GROUND_TYPES = {"with gmpy2": {}, "without gmpy2": {"SYMPY_GROUND_TYPES": "python", "MPMATH_NOGMPY": "1"}}


def _boxed(answer: str) -> str:
    return rf"so \boxed{{{answer}}}"


def _sum_of_letters(count: int) -> str:
    return "+".join(f"x_{{{i}}}" for i in range(count))


_MATRIX_12 = r" \\ ".join(" & ".join(f"a_{{{i}{j}}}" for j in range(12)) for i in range(12))

_BOXED: dict[str, str] = {
    # towers and powers
    "tower": "9^{9^{9^{9}}}", "tower without braces": "9^9^9^9", "tower in parentheses": "((9^9)^9)^{(9^9)^9}",
    "tower of e": "e^{e^{e^{e^{10}}}}", "tower of letters": "x^{y^{z^{x^{y^{z}}}}}", "negative tower": "2^{-9^{9^9}}",
    "tower with stars": "9**9**9**9", "power of ten": "10^{10000000}", "power without braces": "7^1234567",
    "split power": r"10^{2000}^{2000}", "product of powers": "*".join(["9^{9999}"] * 60),
    "power of a sum": "(x+y+z+w+1)^{60}", "power of a sum, expanded": "(a+b+c+d+e+f)^{400}-1",
    "power of a product": "(7^{999})^{999}", "root of a power": r"\sqrt[999]{7^{99999}}",
    "modulus": r"3^{10^{18}} \mod 7",
    "exp of exp": r"\exp(\exp(\exp(\exp(9))))", "tiny exponent": "0.5^{99999999}", "scientific": "1e999999999",
    # factorials and binomials
    "factorial": "1000000000!", "factorials of factorials": "9!!!!!!!!!!", "factorial of a sum": "(99999+99999)!",
    "factorial quotient": r"\frac{99999!}{99998!}", "gamma": r"\Gamma(99999999)", "nested factorial": "((5!)!)!",
    "binomial": r"\binom{10000000}{5000000}", "nested binomial": r"\binom{\binom{999}{400}}{300}",
    # operators
    "sum": r"\sum_{n=1}^{1000000000} n", "product": r"\prod_{k=1}^{10^8} k",
    "integral": r"\int_0^1 \frac{\sin x}{x^x} dx",
    "limit": r"\lim_{x \to 0} \frac{\sin(\sin(\sin x))}{x}", "derivative": r"\frac{d}{dx} x^{x^{x^{x}}}",
    "logarithm": r"\log_{2}(\log_{3}(\log_{5}(10^{9999})))", "sines": r"\sin(" * 30 + "1" + ")" * 30,
    "sine of a large number": r"\sin(10^{9999})", "inverse sines": r"\arcsin(" * 20 + "x" + ")" * 20,
    # nesting
    "braces": "{" * 2000 + "1" + "}" * 2000, "parentheses": "(" * 1000 + "1" + ")" * 1000, "open": "(" * 3000,
    "roots": r"\sqrt{" * 39 + "2" + "}" * 39, "fractions": r"\frac{1}{1+" * 39 + "x" + "}" * 39,
    "absolute values": "|" * 60 + "x" + "|" * 60, "minus signs": "-" * 3000 + "1", "left": r"\left(" * 300 + "1",
    "brackets to the bound": "(" * 39 + "x+1" + ")^{2}" * 39, "open fractions": r"\frac{" * 900,
    # long
    "digits": "9" * 1_000_000, "digits to the bound": "9" * 400 + "." + "9" * 400, "letters": "a" * 1_000_000,
    "spaces": "1" + " " * 1_000_000 + "1", "sum of letters": _sum_of_letters(3000),
    "sum to the bound": _sum_of_letters(440), "set": r"\{" + ",".join(map(str, range(3000))) + r"\}",
    "spread list": ",".join(map(str, range(1000))), "list to the bound": ",".join(rf"\ln {i}" for i in range(50)),
    "tuple of lists": "(" + ",".join(["(1,2)"] * 500) + ")",
    "matrix": rf"\begin{{pmatrix}} {_MATRIX_12} \end{{pmatrix}}",
    "pairs of signs": r"\pm 1" * 40, "union": r"\cup".join(f"[{i},{i + 1}]" for i in range(400)),
    "decimals": "0." + "3" * 390, "quotients": "1" + "/2" * 500, "backslashes": "\\" * 100_000,
    "dollars": "$" * 100_000,
    # characters
    "nul": "\0", "nul inside": "ln\0 5", "lone surrogates": "\ud800\udfff", "surrogate inside": "\\ln \udcff5",
    "line separators": "5\u2028\u2029\x85", "right to left": "\u202e5 nl\\", "combining": "e" + "\u0301" * 3000,
    "full-width digits": "９" * 3000, "arabic digits": "\u0665" * 500, "emoji": "\U0001f600" * 900,
    "bells": "\x07\x1b[2J" * 99,
    # not a number
    "nan": "nan", "infinity": "inf", "zoo": "zoo", "zero division": r"\frac{1}{0}", "zero to zero": "0^0",
    "true": r"\text{True}", "relation": "1=1", "empty set": r"\emptyset", "everything": r"\mathbb{R}",
    "units": "m" * 900,
}  # fmt: skip

COMPLETIONS: dict[str, str] = {
    **{name: _boxed(answer) for name, answer in _BOXED.items()},
    "many boxes": r"\boxed{1}" * 100_000,
    "spray of boxes": "".join(_boxed(str(i)) for i in range(1000)),
    "boxes in boxes": r"\boxed{" * 2000 + "1" + "}" * 2000,
    "boxes that never close": r"\boxed{" * 100_000,
    "box after box in reasoning": "<think>" + r"\boxed{\ln 5}" * 10,
    "megabyte before the box": "x" * 1_000_000 + _boxed("1"),
    "closing braces": "}" * 1_000_000,
    "escaped braces": r"\boxed{" + r"\{" * 100_000 + "}",
}

_WRITE = "__import__('pathlib').Path('MARK').write_text('x')"
PAYLOADS: tuple[str, ...] = (
    _WRITE,
    f"eval({_WRITE!r})",
    f"exec({_WRITE!r})",
    "__import__('os').system('touch MARK')",
    "().__class__.__base__.__subclasses__()[-1].__init__.__globals__['__builtins__']['open']('MARK','w')",
    "(lambda: open('MARK', 'w'))()",
    r"\text{" + _WRITE + "}",
    f"sympify({_WRITE!r})",
    f"[{_WRITE} for _ in [1]]",
    r"\input|touch MARK| \write18{touch MARK} x if " + _WRITE + " else y",
)


def room(workers: int = 1, *, limit_seconds: float = LIMIT_SECONDS) -> Verifiers:
    reward = {"use": "boxed", "options": {"grader": "math"}}
    limits = {"timeout_seconds": limit_seconds, "memory_mb": MEMORY_MB, "max_failure_share": 1.0}
    return Verifiers(reward, workers=workers, **limits)


def group(completion: str, gold: str = GOLD) -> Group:
    prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q<think>", answer=gold, task="adversarial")
    harmless = _rollout(0, _boxed("1"))  # if every verdict failed, the run would stop
    return Group(prompt=prompt, rollouts=(harmless, _rollout(1, f"reasoning</think> {completion}")))


def _rollout(index: int, text: str) -> Rollout:
    tokens = np.zeros(1, np.int64)
    return Rollout(index=index, tokens=tokens, logprobs=np.zeros(1), text=text, finish="stop", version=0)


def timed(verifiers: Verifiers, completion: str, gold: str = GOLD) -> tuple[Outcome, float]:
    """The verdict, and the seconds until the caller had it."""
    started = time.perf_counter()
    (done,) = verifiers.collect([group(completion, gold)])
    assert done.outcomes is not None
    return done.outcomes[1], time.perf_counter() - started


def alive(verifiers: Verifiers) -> bool:
    """Return whether verdicts are correct, with and without computer algebra."""
    verdicts = [_verdict(verifiers, answer) for answer in (GOLD, r"\ln(5)", r"\ln 6")]
    return verdicts == ["correct", "correct", "wrong"]


def _verdict(verifiers: Verifiers, answer: str) -> str:
    """The verdict of a normal answer. On a busy machine it may exceed the short limit, so it is repeated."""
    kinds = (timed(verifiers, _boxed(answer))[0].kind for _ in range(100))
    return next((kind for kind in kinds if kind != "failed"), "failed")


def injected(verifiers: Verifiers, folder: Path) -> list[str]:
    """The payloads that were executed: each would have written a file."""
    ran = []
    for number, payload in enumerate(PAYLOADS):
        mark = folder / f"mark{number}"
        timed(verifiers, _boxed(payload.replace("MARK", str(mark))))
        ran += [payload] if mark.exists() else []
    return ran


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
