from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.families import RewardTraits
from winnow.records import Problem
from winnow.registry import Entry, resolve
from winnow.rewards.outcomes import failure, judged
from winnow.tasks.code import programs
from winnow.verify.golds import MOST_AS_TEXT, MOST_LATE, phrasing, remedy, try_golds
from winnow.verify.verifiers import Verifiers
from winnow_lab.audit import failing_golds

RAW = "It is 6*7=<<6*7=42>>42.\n#### 42"


def problem(name: str, answer: Any, **fields: Any) -> Problem:
    return Problem(id=name, question="?", answer=answer, task="t", where=f"rows:{name}", **fields)


def inline(use: object, **options: Any) -> Verifiers:
    spec = {"use": use, "options": options}
    return Verifiers(spec, workers=0, timeout_seconds=5.0, memory_mb=2048, max_failure_share=1.0)


def found(reward: str, *golds: Any, **options: Any) -> list[str]:
    """The kinds of the findings for these golds, "" for a gold that is accepted."""
    entry = resolve("reward", reward)
    tried = try_golds(
        [problem(str(i), g) for i, g in enumerate(golds)], phrasing(entry), inline(reward, **options), entry.traits
    )
    return ["" if one.finding is None else one.finding.kind for one in tried]


@pytest.mark.parametrize(
    ("reward", "gold", "kind"),
    [
        ("boxed", RAW, "marked"),
        ("r1_zero", RAW, "marked"),
        ("tagged", RAW, "marked"),
        ("numeric", RAW, "marked"),
        ("question_only", RAW, "marked"),
        ("gsm8k", RAW, ""),
        ("gsm8k", "#### 1,234.50", ""),
        ("boxed", "#### 5", "marked"),
        ("boxed", "#### Title\nA text", ""),  # a heading
        ("boxed", "Item #### 5", ""),  # not on a line of its own
        ("boxed", r"\boxed{42}", ""),
        ("boxed", r"So \boxed{\frac{1}{2}}.", ""),
        ("boxed", 42, ""),
        ("boxed", 0.5, ""),
        ("boxed", [1, 2], ""),
        ("boxed", float("nan"), "missing"),
        ("gsm8k", float("inf"), "missing"),
        ("boxed", "NaN", "missing"),
        ("boxed", " \n", "missing"),
        ("boxed", "", "missing"),
        ("boxed", None, "missing"),
        ("r1_zero", None, "missing"),
        ("boxed", [], "missing"),
        ("boxed", {"style": "rule", "ground_truth": "1"}, "object"),
        ("tagged", {"a": 1}, "object"),
        ("numeric", "forty-two", "refused"),
    ],
)
def test_a_gold_is_given_back_to_its_reward(reward: str, gold: Any, kind: str) -> None:
    assert found(reward, *(gold if gold == [1, 2] else [gold])) == [kind] * (2 if gold == [1, 2] else 1)


def test_every_gold_of_a_list_is_tried() -> None:
    entry = resolve("reward", "gsm8k")
    tried = list(try_golds([problem("a", ["1", "x", 2])], phrasing(entry), inline("gsm8k")))
    assert [(one.gold, one.finding is None) for one in tried] == [("1", True), ("x", False), (2, True)]


def test_findings_stay_in_the_order_of_the_golds() -> None:
    assert found("boxed", "1", None, "2", RAW, float("nan"), {"a": 1}, "3") == [
        "", "missing", "", "marked", "missing", "object", "",
    ]  # fmt: skip


def field_of_object(gold: Any) -> str:
    return f"<{gold['value']}>"


def equals_field(prompt: Any, rollout: Any) -> float:
    """For golds that are objects, which this reward reads."""
    return float(rollout.text == f"<{prompt.answer['value']}>")


def test_a_users_reward_may_read_objects_and_marks() -> None:
    verifiers = inline(equals_field)
    golds = [problem("a", {"value": 3}), problem("b", {"other": 3})]
    findings, reward = failing_golds(golds, field_of_object, verifiers)
    assert [(finding.problem, finding.kind) for finding in findings] == [("b", "example")]
    assert reward == 1.0
    assert "KeyError" in findings[0].reason


def test_where_the_golds_of_a_reward_are() -> None:
    """Tests are no answer, and an item in `meta` may have none."""
    code = resolve("reward", "code_tests")
    tests = {"tests": [{"stdin": "", "stdout": "1"}]}
    solved, unsolved = problem("a", tests, meta={"solution": "print(1)"}), problem("b", tests)
    assert failing_golds([unsolved], phrasing(code), inline("code_tests"), code.traits)[0] == []
    solution = RewardTraits(example=str, solution="solution")
    assert [f.problem for f in failing_golds([solved, unsolved], str, inline(never), solution)[0]] == ["a"]
    in_meta = RewardTraits(example=str, example_meta=lambda gold: {})
    assert failing_golds([problem("a", None)], str, inline(never), in_meta)[0] == []
    assert len(failing_golds([problem("a", "1")], str, inline(never), in_meta)[0]) == 1


def test_solutions_are_given_back_to_code_tests() -> None:
    entry = resolve("reward", "code_tests")
    made = programs("train", size=2)
    wrong = Problem(
        **{**{n: getattr(made[1], n) for n in ("id", "question", "answer", "task")}, "meta": {"solution": "1"}}
    )
    findings, reward = failing_golds([made[0], wrong], phrasing(entry), inline("code_tests"), entry.traits)
    assert [finding.problem for finding in findings] == [made[1].id]
    assert "test 1" in findings[0].reason
    assert "dict" not in findings[0].reason
    assert reward == 1.0


def never(prompt: Any, rollout: Any) -> float:
    return 0.0


def late(prompt: Any, rollout: Any) -> Any:
    return failure("timeout", "no verdict")


def test_too_many_late_verdicts_end_the_trial() -> None:
    tried = list(try_golds([problem(str(i), str(i)) for i in range(40)], str, inline(late)))
    assert len(tried) == MOST_LATE
    assert all(one.finding is not None and one.finding.late for one in tried)


def test_nothing_is_sent_once_the_trial_is_to_stop() -> None:
    judged: list[str] = []

    def counting(prompt: Any, rollout: Any) -> float:
        judged.append(prompt.id)
        return 1.0

    tried = try_golds(
        [problem(str(i), str(i)) for i in range(40)], str, inline(counting), ahead=2, stop=lambda: len(judged) >= 5
    )
    assert 5 <= len(list(tried)) == len(judged) <= 7


def test_an_example_for_other_options_cannot_phrase_a_gold() -> None:
    entry = resolve("reward", "pattern")
    own = entry.traits.example_options
    assert phrasing(entry, {**own, "whole": False})("7") == "Answer: 7."
    with refused(ConfigError, "'pattern'", key="reward", code="config.registration"):
        phrasing(entry, {"pattern": "[0-9]+"})
    with refused(ConfigError, "example", key="reward", code="config.registration"):
        phrasing(Entry(entry.family, "mine", never, RewardTraits()))


@pytest.mark.parametrize(
    ("gold", "task", "options", "cure"),
    [
        (RAW, "jsonl", {}, "task.extract=hashes"),
        (RAW, "arithmetic", {}, "the reward gsm8k"),
        (
            {"style": "rule", "ground_truth": "1"},
            "jsonl",
            {"answer": "reward_model"},
            "task.answer=reward_model.ground_truth",
        ),
        ({"x": 1}, "jsonl", {}, "texts"),
        ({"target": 1}, "arithmetic", {}, "texts"),
        (None, "jsonl", {}, "task.answer"),
        ("x y", "jsonl", {}, ""),
    ],
)
def test_the_remedy_names_the_key_that_corrects_the_golds(
    gold: Any, task: str, options: dict[str, Any], cure: str
) -> None:
    entry = resolve("reward", "numeric")
    findings, _ = failing_golds([problem("a", gold)], phrasing(entry), inline("numeric"))
    text = remedy(findings, resolve("task", task), options)
    assert (cure in text) if cure else text == ""


def test_the_mean_reward_is_of_accepted_golds() -> None:
    half: Callable[..., Any] = lambda prompt, rollout: {"right": 1.0, "long": 0.5}  # noqa: E731
    assert failing_golds([problem("a", "1"), problem("b", None)], lambda gold: "x", inline(half))[1] == 1.5
    assert math.isnan(failing_golds([], str, inline(half))[1])


def equal_text(prompt: Any, rollout: Any) -> float:
    """For golds that are one text, as a first reward of one's own is written."""
    return float(rollout.text == prompt.answer)


def contained(prompt: Any, rollout: Any) -> float:
    """Raises TypeError for a gold that is a number."""
    return float(prompt.answer in rollout.text)


def one_of(prompt: Any, rollout: Any) -> float:
    return float(rollout.text in prompt.answer)


def joined(gold: Any) -> str:
    """An example that is for texts alone."""
    return "".join([gold])


@pytest.mark.parametrize(
    ("reward", "example", "gold", "cured"),
    [
        (equal_text, str, 4, "4"),
        (equal_text, str, 2.5, "2.5"),
        (equal_text, str, True, "True"),
        (equal_text, joined, 4, "4"),
        (equal_text, str, ["4"], "4"),
        (equal_text, str, [4], "4"),
        (contained, str, 4, "4"),
        (one_of, str, [4, 5], ["4", "5"]),
    ],
)
@pytest.mark.parametrize("task", ["jsonl", "arithmetic"])
def test_a_gold_that_is_accepted_as_text_has_that_remedy(
    reward: Any, example: Any, gold: Any, cured: Any, task: str
) -> None:
    findings, _ = failing_golds([problem("a", gold), problem("b", gold)], example, inline(reward))
    assert {finding.kind for finding in findings} == {"no text"}
    assert "None" not in findings[0].reason
    text = remedy(findings, resolve("task", task), {"answer": "solution"})
    assert ("'solution'" in text) == (task == "jsonl")
    (written,) = re.findall(r"as (?:one )?texts? \((.*?)\)", text)
    assert json.loads(written) == cured
    assert failing_golds([problem("a", json.loads(written))], example, inline(reward))[0] == []


def test_the_other_half_of_the_remedy_is_followed() -> None:
    def compared_as_text(prompt: Any, rollout: Any) -> float:
        return float(rollout.text == str(prompt.answer))

    assert failing_golds([problem("a", 4), problem("b", 2.5)], str, inline(compared_as_text))[0] == []


@pytest.mark.parametrize("gold", ["4", 4, [4, 5], ["4"], {"a": 4}, None])
def test_a_gold_that_is_refused_as_text_too_has_no_such_remedy(gold: Any) -> None:
    findings, _ = failing_golds([problem(str(i), gold) for i in range(20)], str, inline(never))
    assert findings
    assert "no text" not in {finding.kind for finding in findings}
    assert not any("None" in finding.reason for finding in findings)


def test_golds_are_given_back_as_text_a_few_times_alone() -> None:
    seen: list[Any] = []

    def counting(prompt: Any, rollout: Any) -> float:
        seen.append(prompt.answer)
        return float(prompt.answer == "2")  # the first two are refused as text, too

    findings, _ = failing_golds([problem(str(i), i) for i in range(20)], str, inline(counting))
    assert [finding.kind for finding in findings] == ["refused"] * 2 + ["no text"] * 18
    assert [answer for answer in seen if isinstance(answer, str)] == ["0", "1", "2"]
    seen.clear()
    failing_golds([problem(str(i), i) for i in range(100, 120)], str, inline(counting))
    assert len(seen) == 20 + MOST_AS_TEXT


def test_a_reward_s_own_reason_is_kept() -> None:
    def explained(prompt: Any, rollout: Any) -> Any:
        return judged(False, detail="off by one")

    findings, _ = failing_golds([problem("a", "1")], str, inline(explained))
    assert findings[0].reason == "wrong: off by one"
