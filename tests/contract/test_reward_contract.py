"""Every registered reward meets the contract, and so must a user's reward."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from winnow.families import REWARD, RewardTraits
from winnow.installed import is_installed
from winnow.records import Prompt, Rollout
from winnow.registry import Entry, members, register, resolve
from winnow.rewards.contract import JUNK, check_reward
from winnow.rewards.math_equivalence import algebra

# The rewards of verify/ run programs, and their golds are tests: tests/unit/verify/test_code_tests.py checks them.
OWN = [entry for entry in members("reward").values() if entry.function.__module__.startswith("winnow.rewards.")]
SHORT_JUNK = {label: text for label, text in JUNK.items() if len(text) < 1000}


def needs_math_verify(entry: Entry) -> bool:
    return "grader" in entry.options and not algebra.available()


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
@pytest.mark.parametrize("gold", ["42", 42, ["41", "42"]], ids=["text", "number", "list"])
def test_every_registered_reward_meets_the_contract(entry: Entry, gold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if needs_math_verify(entry):
        pytest.skip("math-verify is not installed")
    if entry.name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    if entry.name in ("instructions", "ifbench") and not is_installed("if_verifiable"):
        pytest.skip("needs the extra winnow-rl[instructions]")
    accepted = gold[-1] if isinstance(gold, list) else gold
    if gold != "42":  # how a long text is read does not depend on the kind of the gold
        monkeypatch.setattr("winnow.rewards.contract.JUNK", SHORT_JUNK)
    check_reward(entry, gold=gold, phrase=accepted)


def test_the_rewards_of_the_design_are_registered() -> None:
    assert {entry.name for entry in OWN} >= {
        "boxed", "format", "gsm8k", "length", "numeric", "question_only", "r1_zero", "reasoning_gym", "tag_count",
        "tagged",
    }  # fmt: skip


USER_FILE = '''
from winnow.registry import register

@register("reward", "contract_test_shout", example=lambda gold: str(gold).upper())
def shout(prompt, rollout):
    """1 for the gold in capitals."""
    return rollout.text == str(prompt.answer).upper()
'''


def test_a_user_s_reward_is_checked_by_the_same_contract(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_FILE, encoding="utf-8")
    check_reward(resolve("reward", "mine.py:shout", base=tmp_path), gold="north")


def half(prompt: Prompt, rollout: Rollout) -> float:
    return 0.5


def short_only(prompt: Prompt, rollout: Rollout) -> float:
    if len(rollout.text) > 100:
        raise ValueError("too long")
    return float(rollout.text == "42")


def moody(prompt: Prompt, rollout: Rollout) -> float:
    return 1.0 if rollout.text == "42" else random.random()


def fond_of_junk(prompt: Prompt, rollout: Rollout) -> float:
    return 1.0 if rollout.text == "42" else 2.0


@pytest.mark.parametrize(
    ("function", "word"),
    [(half, "wrong"), (short_only, "raised"), (moody, "verdicts"), (fond_of_junk, "returns 2 for junk")],
)
def test_the_contract_fails_for_a_reward_that_breaks_it(function: Any, word: str) -> None:
    entry = Entry(REWARD, function.__name__, function, RewardTraits(example=str))
    with pytest.raises(AssertionError, match=word):
        check_reward(entry)


@pytest.mark.parametrize(("asks", "named"), [([("<a>",)], "'42'"), ([("4",)], "'4'")])
def test_a_reward_needs_the_marks_that_it_declares(asks: Any, named: str) -> None:
    def last_digit(prompt: Prompt, rollout: Rollout) -> float:
        return float(rollout.text.endswith("2"))

    entry = Entry(REWARD, "last_digit", last_digit, RewardTraits(example=str, asks=asks))
    with pytest.raises(AssertionError, match=named):
        check_reward(entry)


def test_a_reward_without_an_example_fails_the_contract() -> None:
    with pytest.raises(AssertionError, match="example="):
        check_reward(Entry(REWARD, "half", half, RewardTraits()))


def test_rewards_import_neither_torch_nor_computer_algebra() -> None:
    code = "import sys, winnow.rewards.compose; print({'torch', 'sympy', 'math_verify'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def shorter_is_better(prompt: Prompt, rollout: Rollout) -> Any:
    right = rollout.text == f"<{prompt.answer}>"
    return {"right": float(right), "short": 0.1 * right, "tidy": 0.2 * right}


def of_meta(prompt: Prompt, rollout: Rollout) -> float:
    return float(rollout.text == f"<{prompt.meta['gold']}>")


def weak(prompt: Prompt, rollout: Rollout) -> float:
    return 0.5 * (rollout.text == f"<{prompt.answer}>")


def marked(prompt: Prompt, rollout: Rollout, *, mark: str = "=") -> float:
    return float(rollout.text == f"{mark}{prompt.answer}")


@pytest.mark.parametrize(
    ("function", "named", "cured"),
    [
        (shorter_is_better, "best=1.3", {"best": 1.3}),  # 1 + 0.1 + 0.2, whatever the rounding
        (of_meta, "example_meta", {"example_meta": lambda gold: {"gold": gold}}),
        (weak, "correct_at", {"correct_at": 0.5, "best": 0.5}),
        (marked, "example_options", {"example_options": {"mark": "<"}, "example": lambda gold: f"<{gold}"}),
    ],
)
def test_a_failure_names_the_trait_to_declare(function: Any, named: str, cured: dict[str, Any]) -> None:
    traits = {"example": lambda gold: f"<{gold}>"}

    def entry(**declared: Any) -> Entry:
        return Entry(REWARD, function.__name__, function, RewardTraits(**{**traits, **declared}))

    with pytest.raises(AssertionError, match=named):
        check_reward(entry())
    register("reward", f"contract_test_{function.__name__}", **{**traits, **cured})(function)
    check_reward(resolve("reward", f"contract_test_{function.__name__}"))
