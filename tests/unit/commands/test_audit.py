from __future__ import annotations

from pathlib import Path

import pytest

from winnow.commands.audit import audit, constants, describe, duplicates, failing_golds, overlap, phrasing
from winnow.errors import ConfigError
from winnow.families import REWARD, RewardTraits
from winnow.records import Problem
from winnow.registry import Entry, resolve
from winnow.verify import Verifiers

GSM8K = resolve("reward", "gsm8k")


def problem(name: str, question: str, answer: object) -> Problem:
    return Problem(id=name, question=question, answer=answer, task="t")


def inline(use: object = "gsm8k") -> Verifiers:
    return Verifiers({"use": use}, workers=0, timeout_seconds=5.0, memory_mb=2048, max_failure_share=1.0)


def generous(prompt, rollout):
    """Pays anything that ends in a digit."""
    return float(rollout.text[-1:].isdigit())


def test_a_gold_that_its_reward_cannot_read_is_found() -> None:
    problems = [problem("a", "?", "42"), problem("b", "?", "forty-two"), problem("c", "?", ["1", "x"])]
    found, reward = failing_golds(problems, phrasing(GSM8K), inline())
    assert reward == 1.0
    assert [(f.problem, f.gold, f.reason) for f in found] == [
        ("b", "forty-two", "no answer could be read"),
        ("c", "x", "no answer could be read"),
    ]


def test_constants_that_are_the_gold_are_no_finding() -> None:
    problems = [problem("a", "?", "0"), problem("b", "?", "1.0"), problem("c", "?", "7"), problem("d", "?", "7")]
    found = constants(problems, phrasing(GSM8K), inline())
    assert found.paid == []
    assert found.best == ("0", 0.25)
    assert found.wrong[1] == 0.0


def test_constants_that_are_paid_for_nothing_are_found() -> None:
    found = constants([problem("a", "?", "1234")], str, inline(generous))
    assert {f.reason for f in found.paid} == {
        f"the constant answer {constant!r} is paid" for constant in ("0", "1", "-1", "2", "10")
    }
    assert found.best == ("0", 1.0)


def shaped(prompt, rollout):
    """A right answer earns 1, and any answer of one letter 0.3 for its brevity."""
    right = rollout.text == prompt.answer
    return {"right": float(right), "brief": 0.3 * (len(rollout.text) == 1)}


def test_what_a_wrong_constant_earns_is_beside_what_a_gold_earns() -> None:
    entry = Entry(REWARD, "shaped", shaped, RewardTraits(example=str))
    found = audit(
        lambda split: [problem("a", "?", "7"), problem("b", "!", "1234")], entry, inline(shaped), splits=["train"]
    )
    assert found.gold_reward == pytest.approx((1.3 + 1.0) / 2)
    assert found.wrong_constant[1] == pytest.approx(0.3)
    assert found.clean
    report = "\n".join(describe(found))
    assert "1.150" in report
    assert "0.300" in report


def test_sizes_and_overlap_are_found_of_a_reward_without_an_example() -> None:
    found = audit(load, Entry(REWARD, "generous", generous, RewardTraits()), inline(generous))
    assert found.problems == {"train": 3, "test": 3}
    assert found.overlap == [("train0", "test0")]
    assert not found.clean
    assert found.faults
    assert "example=" in found.untried
    disjoint = audit(load, Entry(REWARD, "generous", generous, RewardTraits()), inline(generous), splits=["train"])
    assert not disjoint.clean
    assert not disjoint.faults
    assert list(describe(disjoint))[-1] == "incomplete"


def test_questions_are_compared_without_case_layout_and_punctuation() -> None:
    first, second, third = (
        problem("a", "What is 2+2?", "4"),
        problem("b", "what is  2 + 2", "4"),
        problem("c", "2-2", "0"),
    )
    assert duplicates([first, second, third]) == [("a", "b")]
    assert overlap({"train": [first], "validation": [third], "test": [second]}) == [("a", "b")]
    assert overlap({"test": [first, second]}) == []


def load(split: str) -> list[Problem]:
    if split == "validation":
        raise ConfigError("there is no validation split")
    return [problem(f"{split}{i}", f"{split if i else 'shared'} {i}", str(i + 100)) for i in range(3)]


def test_the_whole_audit_names_what_it_finds() -> None:
    found = audit(load, GSM8K, inline())
    assert found.problems == {"train": 3, "test": 3}
    assert found.absent == {"validation": "there is no validation split"}
    assert found.overlap == [("train0", "test0")]
    assert not found.clean
    report = "\n".join(describe(found))
    assert "train0 = test0" in report
    assert "golds that do not verify against themselves: 0 (0.0%)" in report


def test_a_task_without_any_split_says_why() -> None:
    with pytest.raises(ConfigError, match="no split of this task can be read: there is no validation split"):
        audit(load, GSM8K, inline(), splits=["validation"])


def test_a_reward_must_say_how_an_answer_is_phrased() -> None:
    with pytest.raises(ConfigError, match="register it with example="):
        phrasing(Entry(REWARD, "generous", generous, RewardTraits()))


def test_the_order_of_files_does_not_matter(test_data: Path) -> None:
    from winnow.tasks.gsm8k import gsm8k

    found = audit(lambda split: gsm8k(split, path=str(test_data)), GSM8K, inline(), splits=["test", "train"])
    assert found.clean
    assert found.best_constant[1] < 0.05
