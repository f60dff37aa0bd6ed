"""The reward for programs: right and wrong ones, forged verdicts, and failures of the sandbox."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked import fork_supervisors
from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.registry import resolve
from winnow.rewards.compose import make_reward
from winnow.rewards.contract import check_reward
from winnow.tasks.code import programs
from winnow.verify import code_tests
from winnow.verify.code_tests import last_fence
from winnow.verify.sandbox import SandboxError, choose
from winnow.verify.verifiers import Verifiers

DOUBLE = {"tests": [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "21\n", "stdout": "42\n"}]}
ADD = {"function": "add", "tests": [{"args": [1, 2], "result": 3}, {"args": [0.5, 0.25], "result": 0.75}]}
RIGHT = "print(2 * int(input()))"
HALF = "x = int(input())\nprint(2 if x == 1 else 0)"
BOUNDED = {"seconds": 5, "total_seconds": 120.0}  # above the time of a busy machine; a test of a limit sets a lower one


@pytest.fixture(autouse=True)
def there_is_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process without a user of its own for each run, as in sandbox/test_launch.py; in workers with one."""
    try:
        sandbox = choose("auto")
    except SandboxError as error:
        pytest.skip(str(error))
    if sandbox.layers.bubblewrap is None:
        monkeypatch.setattr(sandbox, "layers", dataclasses.replace(sandbox.layers, own_user=False))
    fork_supervisors(monkeypatch)


def fence(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\n"


def prompt(gold: Any, text: str = "?") -> Prompt:
    return Prompt(id="p", tokens=np.zeros(1, np.int64), text=text, answer=gold, task="code")


def rollout(text: str, index: int = 0) -> Rollout:
    return Rollout(index=index, tokens=np.zeros(1, np.int64), logprobs=np.zeros(1), text=text, finish="stop", version=0)


def judge(text: str, gold: Any = DOUBLE, **options: Any) -> Outcome:
    score = make_reward({"use": "code_tests", "options": {**BOUNDED, **options}})
    return score(prompt(gold), rollout(text))


def test_a_program_may_have_more_memory_than_its_worker():
    spec = {"use": "code_tests", "options": {**BOUNDED, "memory_mb": 4096}}
    text = fence(f"import mmap\nx = mmap.mmap(-1, 3 * 2**30)\n{RIGHT}")  # pages that are never touched
    group = Group(prompt=prompt(DOUBLE), rollouts=(rollout(text),))
    with Verifiers(
        spec, workers=1, base=Path(), timeout_seconds=200.0, memory_mb=256, max_failure_share=1.0
    ) as verifiers:
        (judged,) = verifiers.collect([group])
    assert judged.correct.tolist() == [True]


def test_a_program_that_passes_every_test_is_correct():
    outcome = judge(fence(RIGHT))
    assert (outcome.kind, outcome.reward, outcome.answer, outcome.detail) == ("correct", 1.0, RIGHT, "")
    assert not outcome.late


def test_one_that_fails_a_test_is_wrong_with_the_number_of_the_test():
    outcome = judge(fence(HALF))
    assert (outcome.kind, outcome.reward, outcome.detail) == ("wrong", 0.0, "test 2: wrong")


def test_credit_may_be_shared():
    outcome = judge(fence(HALF), credit="share")
    assert (outcome.kind, outcome.reward, outcome.detail) == ("wrong", 0.5, "test 2: wrong")
    assert judge(fence(RIGHT), credit="share").reward == 1.0


def test_functions_and_methods():
    assert judge(fence("def add(a, b): return a + b"), ADD).kind == "correct"
    assert judge(fence("class Solution:\n    def add(self, a, b): return a + b"), ADD).kind == "correct"
    assert judge(fence("def add(a, b): return a - b"), ADD).detail == "test 1: wrong"


def test_any_of_several_results_is_right():
    either = {"function": "f", "tests": [{"args": [], "results": [5, [5]]}]}
    returned = {"5": "correct", "[5]": "correct", "(5,)": "correct", "[[5]]": "wrong", "[5, 5]": "wrong", "[]": "wrong"}
    assert {value: judge(fence(f"def f(): return {value}"), either).kind for value in returned} == returned
    assert judge(fence("def f(): return [3]"), {"function": "f", "tests": [{"args": [], "result": 3}]}).kind == "wrong"


def test_starter_code_of_livecodebench_is_completed():
    program = "class Solution:\n    def add(self, a: float, b: Optional[float]) -> List[float]:\n        return a + b"
    assert judge(fence(program), ADD).kind == "correct"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("print(", "test 1: compile_error"),
        ("1 / 0", "test 1: runtime_error: ZeroDivisionError"),
        ("x = bytearray(2**30)", "test 1: memory_limit"),
        ("while True: print('x' * 9999)", "test 1: output_limit"),
        ("#" * 300_000, "test 1: compile_error"),
    ],
)
def test_a_program_over_its_own_limits_is_wrong(code: str, detail: str):
    outcome = judge(fence(code))
    assert outcome.kind == "wrong"
    assert outcome.detail.startswith(detail)


def test_cpu_time_is_limited():
    outcome = judge(fence("while True: pass"), {"tests": DOUBLE["tests"][:1]}, seconds=1)
    assert (outcome.kind, outcome.detail) == ("wrong", "test 1: time_limit")


def test_all_tests_together_have_a_limit():
    sleeper = "import time\nif int(input()) > 1: time.sleep(60)\nprint(2)"
    outcome = judge(fence(sleeper), seconds=60, total_seconds=5.0)
    assert (outcome.kind, outcome.detail, outcome.late) == ("wrong", "test 2: time_limit", True)


def test_the_first_failure_is_reported_however_fast_the_others_are():
    slow = "import time\nx = int(input())\ntime.sleep(0.3 * (x == 1))\nprint(0)"
    assert judge(fence(slow), cases_at_once=2).detail == "test 1: wrong"


# the place of the program


@pytest.mark.parametrize("text", ["", "no program", "```python\nprint(1)", "```cpp\nint main;\n```", "x" * 1_000_000])
def test_without_a_program_there_is_nothing_to_judge(text: str):
    assert judge(text).kind == "unparsable"


def test_the_last_python_fence_after_the_reasoning_counts():
    assert last_fence(fence("first") + fence("second") + "```text\nnoise\n```") == "second"
    assert last_fence("```\nplain\n```") == "plain"
    assert last_fence(fence("kept") + "```python\nnever closed") == "kept"
    assert judge(fence(RIGHT) + "</think>" + fence(HALF)).kind == "wrong"


FENCES = {
    "a title": '```python title="x.py"\nA\n```',
    "a title in braces": '```{.python title="x.py" linenums="1"}\nA\n```',
    "a file after a colon": "```python:src/x.py\nA\n```",
    "the name of a file": "```solution.py\nA\n```",
    "a version": "```python3.11\nA\n```",
    "capitals and a space": "``` Python \nA\n```",
    "a comma": "```py,ignore\nA\n```",
    "four backticks": "````python\nA\n````",
    "four backticks around three": "````python\nA\n```\nB\n````",
    "closed by more": "```python\nA\n`````",
    "tildes": "~~~python\nA\n~~~",
    "tildes around backticks": "~~~python\nA\n```\nB\n~~~",
    "backticks around tildes": "```python\nA\n~~~\nB\n```",
    "an indented fence": "1. Text\n\n   ```python\n   A\n     B\n   ```\n",
    "an indented fence with an empty line": "    ```python\n\n    A\n\n    B\n    ```",
    "an item of a list": "- ```python\n  A\n    B\n  ```",
    "a numbered item": "10. ```python\n    A\n    ```",
    "a tab": "\t```python\n\tA\n\t\tB\n\t```",
    "an indented fence around none": "   ```python\nA\n    B\n   ```",
    "carriage returns": "```python\r\nA\r\n```\r\n",
}
CONTENT = {
    **dict.fromkeys(("four backticks around three", "tildes around backticks"), "A\n```\nB"),
    "backticks around tildes": "A\n~~~\nB",
    "an indented fence with an empty line": "\nA\n\nB",
    **dict.fromkeys(("an indented fence", "an item of a list"), "A\n  B"),
    "a tab": "A\n\tB",
    "an indented fence around none": "A\n    B",
    "carriage returns": "A\r",
}


@pytest.mark.parametrize("name", FENCES)
def test_fences_are_read_as_in_markdown(name: str):
    assert last_fence(f"Text.\n{FENCES[name]}\nText.") == CONTENT.get(name, "A")


@pytest.mark.parametrize(
    "text",
    [
        "```python\nA\n~~~",  # closed by another character
        "````python\nA\n```",  # closed by fewer
        "```python A```",  # inline code
        "```pycon\n>>> A\n```",
        "```python2\nA\n```",
        "```{.cpp}\nA\n```",
        "``python\nA\n``",
        "~~~text\nA\n~~~",
    ],
)
def test_what_is_no_fence_of_a_program(text: str):
    assert last_fence(text) is None


def test_a_fence_without_a_language_is_the_program_only_if_no_other_names_python():
    bare = "```\n42\n```\n"
    assert last_fence(fence("A") + "It prints:\n" + bare) == "A"
    assert last_fence(bare + fence("A") + bare) == "A"
    assert last_fence(bare + "~~~\n43\n~~~\n") == "43"
    assert last_fence(fence("A") + fence("B") + bare + "```text\nnoise\n```") == "B"
    assert judge(fence(RIGHT) + "For 21 it prints\n```\n42\n```").kind == "correct"


def test_a_long_completion_is_read_in_linear_time():
    """Each of these lines is 200,000 characters long: with quadratic time the test takes minutes."""
    many = 200_000
    for line in (" " * many + "x", "- " + " " * many + "x", "`" * many + "x`"):
        assert last_fence(f"{line}\n{fence('A')}") == "A"
    for line in ("~" * many, "```x" + "{" * many):  # these open a fence
        assert last_fence(f"{line}\n{fence('A')}") is None


def test_a_program_inside_reasoning_that_never_ended_does_not_count():
    score = make_reward({"use": "code_tests"})
    opened = prompt(DOUBLE, "How?<think>")
    assert score(opened, rollout(fence(RIGHT))).kind == "unparsable"
    assert score(opened, rollout("so</think>" + fence(RIGHT))).kind == "correct"


def test_the_whole_text_may_be_the_program():
    assert judge(RIGHT, program="text").kind == "correct"
    assert judge(" \n", program="text").kind == "unparsable"


# forging: programs that earn a reward in harnesses with program, tests and verdict in one process

FORGED_PROGRAMS = {
    "prints a pass": "print('ALL TESTS PASSED')\nimport os; os._exit(0)",
    "leaves early": "import sys; sys.exit(0)",
    "claims a broken sandbox": "import os\nfor h in range(3, 64):\n  try: os.write(h, b'sandbox_error\\n')\n"
    "  except OSError: pass\nos._exit(1)",
    "plays dead": "import sys; sys.exit(137)",
    "closes everything": "import os; os.closerange(0, 64)",
    "looks for the answers": "import gc, sys\nf = sys._getframe()\nwhile f:\n  for v in f.f_locals.values():\n"
    "    if isinstance(v, (str, bytes)) and '42' in str(v) and len(v) < 99: print(v)\n  f = f.f_back",
    "NUL and bad UTF-8": "import sys; sys.stdout.buffer.write(b'2\\0\\xff\\n')",
    "one huge line": "print('2' * 900_000)",
    "everything": "print(2); print(42)",
    "patches print": "import builtins; builtins.print = lambda *a: True; print(1)",
    "writes at the end": "import atexit; atexit.register(print, 7); print(2 * int(input()))",
    "a line separator": "print('2\\u2028')",
}
FORGED_FUNCTIONS = {
    "equals everything": "class E:\n  __eq__ = lambda s, o: True\n  __hash__ = None\ndef add(a, b): return E()",
    "a number that equals everything": "class E(int):\n  __eq__ = lambda s, o: True\n  __hash__ = int.__hash__\n"
    "def add(a, b): return E(7)",
    "leaves": "import os\ndef add(a, b): os._exit(0)",
    "exits": "import sys\ndef add(a, b): sys.exit(0)",
    "patches json": "import json; json.dumps = lambda v, **k: '3'\ndef add(a, b): return object()",
    "finds the nonce": "import os, sys\ndef add(a, b):\n  n = sys._getframe(1).f_locals['nonce']\n"
    "  for h in range(3, 64):\n    try: os.write(h, n + b' value null\\n')\n    except OSError: pass\n  os._exit(0)",
    "not a number": "def add(a, b): return float('nan')",
    "infinity": "def add(a, b): return float('inf')",
    "true is not one": "def add(a, b): return True",
    "deep": "def add(a, b):\n  x = []\n  for _ in range(900): x = [x]\n  return x",
    "huge": "def add(a, b): return 10 ** 4000",
    "huge for the second test": "def add(a, b): return 3 if a == 1 else 10 ** 4000",
}


@pytest.mark.parametrize("name", FORGED_PROGRAMS)
def test_a_verdict_on_a_program_cannot_be_forged(name: str):
    outcome = judge(fence(FORGED_PROGRAMS[name]))
    assert outcome.kind == "wrong", outcome


@pytest.mark.parametrize("name", FORGED_FUNCTIONS)
def test_a_verdict_on_a_function_cannot_be_forged(name: str):
    outcome = judge(fence(FORGED_FUNCTIONS[name]), ADD)
    assert outcome.kind == "wrong", outcome


# the reward as a member


def test_it_keeps_the_contract_of_rewards():
    check_reward(resolve("reward", "code_tests"), gold=DOUBLE, phrase=RIGHT)


@pytest.mark.parametrize(
    "gold", [None, "42", {"tests": []}, {"tests": [{"stdin": "1"}]}, {"tests": [{"stdin": 1, "stdout": 2}]}]
)
def test_a_gold_without_tests_fails_and_names_the_prompt(gold: Any):
    outcome = judge(fence(RIGHT), gold)
    assert (outcome.kind, outcome.cause) == ("failed", "raised")
    assert "'p'" in outcome.detail


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seconds", 0),
        ("total_seconds", 0),
        ("total_seconds", float("nan")),
        ("memory_mb", -1),
        ("cases_at_once", 0),
        ("tolerance", 1),
        ("tolerance", -0.1),
        ("sandbox", "docker"),
    ],
)
def test_options_are_checked_before_anything_runs(option: str, value: Any):
    with refused(ConfigError, option, value, key=f"reward.{option}", code="config.value"):
        make_reward({"use": "code_tests", "options": {option: value}})


def test_a_sandbox_that_does_not_start_is_a_failure_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch):
    sandbox = choose("unsafe")
    nowhere = dataclasses.replace(sandbox.layers.interpreter, executable="/nowhere/python")
    layers = dataclasses.replace(sandbox.layers, interpreter=nowhere)
    monkeypatch.setattr(sandbox, "layers", layers)
    score = resolve("reward", "code_tests").function
    outcome = score(prompt(DOUBLE), rollout(fence(RIGHT)), sandbox="unsafe")
    assert (outcome.kind, outcome.cause, outcome.correct) == ("failed", "sandbox", None)


def test_the_choice_is_printed_once(capfd: pytest.CaptureFixture[str]):
    code_tests._announce.cache_clear()
    make_reward({"use": "code_tests", "options": {"sandbox": "unsafe"}})
    make_reward({"use": "code_tests", "options": {"sandbox": "unsafe"}})
    assert capfd.readouterr().err.count("unsafe") == 1


def test_workers_judge_programs_side_by_side():
    problems = programs("train", size=2)
    groups = [
        Group(
            prompt=dataclasses.replace(prompt(problem.answer), id=problem.id),
            rollouts=tuple(
                rollout(fence(text), i) for i, text in enumerate([problem.meta["solution"], "print(0)", "x ="])
            ),
        )
        for problem in problems
    ]
    spec = {"use": "code_tests", "options": BOUNDED}
    limits: dict[str, Any] = {"timeout_seconds": 200.0, "memory_mb": 1024, "max_failure_share": 0.05}
    with Verifiers(spec, workers=2, base=Path(), **limits) as verifiers:
        assert verifiers.notices == ()
        judged = verifiers.collect(groups)
    assert [group.correct.tolist() for group in judged] == [[True, False, False]] * 2
    assert judged[0].valid.all()
