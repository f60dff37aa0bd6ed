from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from golden_files import assert_golden
from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import ConfigError
from winnow.families import REWARD, RewardTraits
from winnow.records import Problem
from winnow.registry import Entry, resolve
from winnow.rewards.outcomes import failure
from winnow.tasks.jsonl import jsonl
from winnow.verify.golds import MOST_LATE, phrasing
from winnow.verify.verifiers import Verifiers
from winnow_lab.audit import (
    audit_task,
    constants,
    contradictions,
    describe,
    duplicates,
    failing_golds,
    overlap,
)

GSM8K = resolve("reward", "gsm8k")


def problem(name: str, question: str, answer: object) -> Problem:
    return Problem(id=name, question=question, answer=answer, task="t")


def inline(use: object = "gsm8k") -> Verifiers:
    return Verifiers({"use": use}, workers=0, timeout_seconds=5.0, memory_mb=2048, max_failure_share=1.0)


def generous(prompt, rollout):
    """Pays anything that ends in a digit."""
    return float(rollout.text[-1:].isdigit())


def test_a_gold_that_its_reward_cannot_read_is_a_finding() -> None:
    problems = [problem("a", "?", "42"), problem("b", "?", "forty-two"), problem("c", "?", ["1", "x"])]
    findings, reward = failing_golds(problems, phrasing(GSM8K), inline())
    assert reward == 1.0
    assert [(finding.problem, finding.gold) for finding in findings] == [("b", "forty-two"), ("c", "x")]
    assert all(finding.reason for finding in findings)


def test_tests_that_the_reward_cannot_read_are_a_finding() -> None:
    code = resolve("reward", "code_tests")
    golds = [{"tests": ["assert f(1) == 1"]}, '{"tests": [{"stdin": "", "stdout": "1"}]}', {"tests": []}]
    problems = [problem(str(place), "?", gold) for place, gold in enumerate(golds)]
    findings, _ = failing_golds(problems, phrasing(code), inline("code_tests"), code.traits)
    assert [finding.problem for finding in findings] == ["0", "1", "2"]
    assert "test 1" in findings[0].reason


def test_a_gold_that_is_not_paid_is_named_with_its_type_where_it_is_no_text() -> None:
    problems = [problem("a", "?", 20), problem("b", "?", ["x"]), problem("c", "?", "text"), problem("d", "?", "wrong")]
    findings, _ = failing_golds(problems, str, inline(text_only))
    named = [(finding.problem, re.findall(r"\b(?:int|list|str)\b", finding.reason)) for finding in findings]
    assert named == [("a", ["int"]), ("b", ["list"]), ("d", [])]


def text_only(prompt, rollout):
    """Pays a gold only if it is text, and never "wrong"."""
    return float(rollout.text == prompt.answer != "wrong")


def test_constants_that_are_the_gold_are_no_finding() -> None:
    problems = [problem("a", "?", "0"), problem("b", "?", "1.0"), problem("c", "?", "7"), problem("d", "?", "7")]
    found = constants(problems, phrasing(GSM8K), inline())
    assert found.paid == []
    assert found.best == ("0", 0.25)
    assert found.wrong[1] == 0.0


def test_constants_that_are_the_option_of_a_gold_are_no_finding() -> None:
    golds = ["(A)", "(1)", r"\textbf{(B)}\ 10"]
    problems = [problem(str(place), "?", gold) for place, gold in enumerate(golds)]
    found = constants(problems, phrasing(resolve("reward", "boxed")), inline("boxed"))
    assert found.paid == []
    assert found.best[1] == pytest.approx(1 / 3)


def test_accepted_constants_other_than_the_gold_are_findings() -> None:
    result = constants([problem("a", "?", "1234")], str, inline(generous))
    assert len(result.paid) == 5
    for constant in ("0", "1", "-1", "2", "10"):
        assert any(repr(constant) in finding.reason for finding in result.paid)
    assert result.best == ("0", 1.0)


def shaped(prompt, rollout):
    """A right answer earns 1, and any answer of one letter 0.3 for its brevity."""
    right = rollout.text == prompt.answer
    return {"right": float(right), "brief": 0.3 * (len(rollout.text) == 1)}


def test_the_rewards_of_a_wrong_constant_and_of_golds_are_measured() -> None:
    entry = Entry(REWARD, "shaped", shaped, RewardTraits(example=str))
    result = audit_task(
        lambda split: [problem("a", "?", "7"), problem("b", "!", "1234")], entry, inline(shaped), splits=["train"]
    )
    assert result.gold_reward == pytest.approx((1.3 + 1.0) / 2)
    assert result.constants.wrong[1] == pytest.approx(0.3)
    assert result.clean


JUDGED: list[tuple[str, str]] = []


def hanging(prompt, rollout):
    """Gets no verdict in time for golds of three digits, and for the constant answer "{"."""
    JUDGED.append((prompt.answer, rollout.text))
    if len(prompt.answer) == 3 or rollout.text == "{":
        return failure("timeout", "no verdict")
    return float(rollout.text == prompt.answer)


HANGING = Entry(REWARD, "hanging", hanging, RewardTraits(example=str))


def test_a_problem_whose_gold_gets_no_verdict_in_time_is_tried_once() -> None:
    JUDGED.clear()
    problems = [problem("a", "?", "101"), problem("b", "!", "17")]
    result = audit_task(lambda split: problems, HANGING, inline(hanging), splits=["train"])
    assert [(finding.problem, finding.late) for finding in result.golds] == [("a", True)]
    assert [text for gold, text in JUDGED if gold == "101"] == ["101"]
    assert [(finding.problem, finding.gold) for finding in result.constants.late] == [("b", "{")]
    assert result.faults
    assert not result.stopped


@pytest.mark.parametrize("first", [101, 17])  # golds without a verdict in time; a constant without one
def test_an_audit_stops_after_too_many_verdicts_that_are_late(first: int) -> None:
    problems = [problem(f"p{i}", f"question {i}", str(first + i)) for i in range(MOST_LATE + 5)]
    JUDGED.clear()
    result = audit_task(lambda split: problems, HANGING, inline(hanging), splits=["train"])
    late = [finding for finding in (*result.golds, *result.constants.late) if finding.late]
    assert len(late) == sum(len(gold) == 3 or text == "{" for gold, text in JUDGED) == MOST_LATE
    assert result.stopped
    assert result.faults


def test_a_reward_without_example_leaves_sizes_and_overlap() -> None:
    result = audit_task(load, Entry(REWARD, "generous", generous, RewardTraits()), inline(generous))
    assert result.problems == {"train": 3, "test": 3}
    assert result.overlap == [("train0", "test0")]
    assert not result.clean
    assert result.faults
    assert "example=" in result.untried
    disjoint = audit_task(load, Entry(REWARD, "generous", generous, RewardTraits()), inline(generous), splits=["train"])
    assert not disjoint.clean
    assert not disjoint.faults
    assert list(describe(disjoint))[-1] == "incomplete"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2.5 + 1?", "What is 25 + 1?"),
        ("What is 5!?", "What is 5?"),
        ("Simplify 3:4.", "Simplify 34."),
        ("Sort 1 2 and 3.", "Sort 12 and 3."),
        ("What is f'(2)?", "What is f(2)?"),
    ],
)
def test_questions_of_different_numbers_are_not_the_same(one: str, other: str) -> None:
    first, second = problem("a", one, "1"), problem("b", other, "2")
    assert duplicates([first, second]) == []
    assert overlap({"train": [first], "test": [second]}) == []


def test_questions_are_compared_without_case_layout_and_punctuation() -> None:
    first, second, third = (
        problem("a", 'First, what is "2+2"?', "4"),
        problem("b", "first what is  2 + 2", "4"),
        problem("c", "2-2", "0"),
    )
    assert duplicates([first, second, third]) == [("a", "b")]
    assert overlap({"train": [first], "validation": [third], "test": [second]}) == [("a", "b")]
    assert overlap({"test": [first, second]}) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("What is 2 + 2?", "4"), ("what is 2 +  2", "4.0")),  # a harmless repetition
        (("What is 2 + 2?", "4"), ("What is 2 + 2?", ["5", "4"])),
        (("What is 2.5 + 1?", "3.5"), ("What is 25 + 1?", "26")),
        (("What is 2 + 2?", "4"), ("What is 2 + 2?", None)),
        (("Sort.", {"tests": [1]}), ("Sort.", {"tests": [1]})),
    ],
)
def test_golds_that_do_not_contradict_each_other(one: tuple[str, object], other: tuple[str, object]) -> None:
    assert contradictions([problem("a", *one), problem("b", *other)]) == []


def test_a_question_with_two_golds_is_a_fault_with_the_ids_and_both() -> None:
    problems = [problem("a", "What is 2 + 2?", "104"), problem("b", "what is 2 +  2?", 105), problem("c", "?", "106")]
    result = audit_task(lambda split: problems, GSM8K, inline(), splits=["train"])
    assert [(one.id, two.id) for one, two in result.contradictions] == [("a", "b")]
    assert result.duplicates == [("a", "b")]
    assert result.faults
    shown = [line for line in describe(result) if "104" in line]
    assert len(shown) == 1
    assert "105" in shown[0]

    agreeing = audit_task(lambda split: [problems[0], problems[0]], GSM8K, inline(), splits=["train"])
    assert agreeing.clean


def test_two_golds_that_the_reward_both_accepts_are_no_fault() -> None:
    problems = [problem("a", "Name an even number.", "104"), problem("b", "Name an even number.", "106")]
    entry = Entry(REWARD, "even", even, RewardTraits(example=str))
    result = audit_task(lambda split: problems, entry, inline(even), splits=["train"])
    assert result.contradictions == []
    assert len(contradictions(problems)) == 1


def even(prompt, rollout):
    """Pays each even number of three digits."""
    return float(len(rollout.text) == 3 and rollout.text.isdigit() and int(rollout.text) % 2 == 0)


def load(split: str) -> list[Problem]:
    if split == "validation":
        raise ConfigError("there is no validation split")
    return [problem(f"{split}{i}", f"{split if i else 'shared'} {i}", str(i + 100)) for i in range(3)]


def test_the_audit_lists_what_it_finds() -> None:
    result = audit_task(load, GSM8K, inline())
    assert result.problems == {"train": 3, "test": 3}
    assert result.absent == {"validation": "there is no validation split"}
    assert result.overlap == [("train0", "test0")]
    assert result.golds == []
    assert not result.clean
    assert_golden("audit", "\n".join(describe(result)))


def test_problems_of_two_splits_may_have_one_id() -> None:
    def numbered(split: str) -> list[Problem]:
        return [problem(str(i), f"{split} {i}?", "forty-two") for i in range(2)]

    lines = describe(audit_task(numbered, GSM8K, inline(), splits=["train", "test"]))
    assert next(line for line in lines if "rejects" in line).endswith(": 4 (100.0%)")

    def of_file(split: str) -> list[Problem]:
        return [Problem(id="a", question=split, answer="forty-two", task="t", where=f"{split}.jsonl:1")]

    lines = describe(audit_task(of_file, GSM8K, inline(), splits=["train", "test"]))
    assert next(line for line in lines if "rejects" in line).endswith(": 2 (100.0%)")


def test_a_task_without_any_split_is_refused_with_the_reason() -> None:
    with refused(ConfigError, "there is no validation split", key="task", code="data.missing"):
        audit_task(load, GSM8K, inline(), splits=["validation"])


def test_a_reason_that_is_the_same_for_every_split_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "nowhere.jsonl"
    with refused(ConfigError, file, key="task", code="data.missing") as caught:
        audit_task(lambda split: jsonl(split, path=str(file)), GSM8K, inline())
    assert str(caught.value).count(str(file)) == 1


def test_golds_cannot_be_tried_without_the_rewards_example() -> None:
    with refused(ConfigError, "'generous'", "example", key="reward", code="config.registration"):
        phrasing(Entry(REWARD, "generous", generous, RewardTraits()))


def test_the_order_of_files_does_not_matter(test_data: Path) -> None:
    from winnow.tasks.mathematics import gsm8k

    result = audit_task(lambda split: gsm8k(split, path=str(test_data)), GSM8K, inline(), splits=["test", "train"])
    assert result.clean
    assert result.constants.best[1] < 0.05


def test_a_split_with_a_malformed_row_is_a_fault_and_one_that_does_not_exist_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "?", "answer": "101"}\n{"question": "!", "answer": NaN}\n')
    (tmp_path / "test.jsonl").write_text('{"question": "x", "answer": "102"}\n')
    files = {"train": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl")}
    result = audit_task(lambda split: jsonl(split, **files), GSM8K, inline())
    assert list(result.broken) == ["train"]
    assert list(result.absent) == ["validation"]
    assert result.faults
    assert any(f"{files['train']}:2" in line for line in describe(result))
    apart = audit_task(lambda split: jsonl(split, test=files["test"]), GSM8K, inline())
    assert apart.clean


def test_questions_of_several_messages_are_compared_whole(tmp_path: Path) -> None:
    def row(first: str, answer: str) -> str:
        roles = zip(("user", "assistant", "user"), (first, "Yes.", "Why?"), strict=True)
        return json.dumps({"question": [{"role": r, "content": t} for r, t in roles], "answer": answer})

    file = tmp_path / "train.jsonl"
    file.write_text(f"{row('A?', '101')}\n{row('B?', '102')}\n{row('a', '103')}\n")
    problems = jsonl("train", train=str(file))
    assert [len(ids) for ids in duplicates(problems)] == [2]
    assert contradictions(problems[:2]) == []


def test_the_answer_of_a_worked_solution_is_the_gold_that_constants_may_be() -> None:
    golds = ["0 * 3 = 0\n#### 0", "3 * 9 = 27\n#### 27"]
    problems = [problem("a", "0 * 3?", golds[0]), problem("b", "3 * 9?", golds[1])]
    assert audit_task(lambda split: problems, GSM8K, inline(), splits=["train"]).clean
    boxed = resolve("reward", "boxed")
    raw = audit_task(lambda split: problems[1:], boxed, inline("boxed"), splits=["train"])
    assert [finding.kind for finding in raw.golds] == ["marked"]


@pytest.mark.parametrize(
    ("rows", "reward"),
    [
        ([{"question": f"{i}?", "answer": f"so\n#### {i}"} for i in range(101, 110)], "boxed"),
        ([{"question": f"{i}?", "answer": {"style": "r", "ground_truth": str(i)}} for i in range(101, 110)], "boxed"),
        ([{"question": f"{i}?", "answer": {"target": i, "of": "x"}} for i in range(101, 110)], "numeric"),
    ],
)
def test_following_the_remedy_of_an_audit_leads_to_a_clean_one(tmp_path: Path, rows: list[object], reward: str) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ["audit", "jsonl", "--set", f"task.train={tmp_path}/rows.jsonl", "--reward", reward]
    if reward == "boxed":  # each of whose workers imports sympy
        command += ["--set", "verify.workers=0"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    (remedy,) = [line for line in done.stdout.splitlines() if "remedy:" in line]
    (setting,) = re.findall(r"set (task\.\w+=[\w.]+)", remedy)
    done = CliRunner().invoke(app, [*command, "--set", setting])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "clean")


TASKS = """
def empty(split):
    return []

def nothing(split):
    return None

def rows(split):
    return [{"question": "1 + 1", "answer": "2"}]
"""


@pytest.mark.parametrize("name", ["empty", "nothing", "rows"])
def test_a_task_without_problems_is_refused_by_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("tasks.py").write_text(TASKS)
    result = CliRunner().invoke(app, ["audit", f"tasks.py:{name}"])
    check_printed_error(result, name, code="data.missing")
