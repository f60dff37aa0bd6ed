"""The report of an evaluation, and the numbers behind it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from golden_files import assert_golden
from synthetic_run import FAILED, NASTY, RIGHT, UNREAD, WRONG, group
from winnow.algos.intervals import over_problems
from winnow.config_file import validate
from winnow.evaluation.comparison import compare_tasks
from winnow.evaluation.evaluate import EvaluatedTasks, answers
from winnow.evaluation.folder import rows_of
from winnow.evaluation.result import EvaluationResult, averages
from winnow.evaluation.text import format_comparison, format_headline, format_report, format_table

SAMPLED = (group("a", (RIGHT, WRONG, WRONG, UNREAD)), group("b", (RIGHT, RIGHT, FAILED, WRONG), texts=[NASTY] * 4))
SETTINGS = {
    "model": "some/model",
    "task": {"use": "jsonl", "path": "x"},
    "prompt": {"template": "chat", "system": "Think."},
    "reward": {"parts": [{"use": "math"}, {"use": "format", "weight": 0.5}]},
    "rollout": {"engine": "hf", "max_new_tokens": 99, "temperature": 0.7},
    "evaluate": {"split": "test", "rollouts_per_prompt": 4, "top_p": 0.9},
    "seed": 3,
}


def measured(sampled=SAMPLED, greedy=(), dropped=0, name="jsonl", **settings):
    rows = (*rows_of("sampled", sampled), *rows_of("greedy", greedy))
    return EvaluationResult(name=name, config=validate({**SETTINGS, **settings}), rows=rows, dropped=dropped)


def compare_results(results, others):
    return compare_tasks(answers(results), answers(others))


def test_the_report_matches_its_golden_file():
    result = measured(greedy=[group("a", (RIGHT,)), group("b", (WRONG,))], dropped=1200)
    base = measured([group("a", (WRONG,) * 4), group("b", (RIGHT, RIGHT, RIGHT, WRONG))], model="the/base")
    comparisons, _ = compare_results([result], [base])
    assert_golden("evaluation_report", format_report([result], comparisons))


def test_pass_and_majority_rates_use_the_problems_with_enough_verdicts():
    result = measured(greedy=[group("a", (RIGHT,)), group("b", (WRONG,))])
    # a: 1 of 4 correct; b: 2 of 3 verdicts
    assert result.metrics["eval/accuracy_sampled"] == pytest.approx((1 / 4 + 2 / 3) / 2)
    assert result.intervals["accuracy_sampled"] == pytest.approx(over_problems(np.array([1 / 4, 2 / 3])))
    # @2: (1 - 3/6 + 1 - 0/3) / 2; @4: a alone
    assert result.pass_at == pytest.approx({1: 11 / 24, 2: 0.75, 4: 1.0})
    # a: one vote for the right answer, two for 6, so of six pairs one is won and two are tied; b: one of three, two
    assert result.maj_at == pytest.approx({1: 11 / 24, 2: 0.5, 4: 0.0})
    assert np.isnan(result.values["pass_at_4"]).tolist() == [False, True]
    assert result.intervals["pass_at_4"] == pytest.approx(over_problems(np.array([1.0])))
    assert result.categories == {
        "sampled": {"correct": 3, "wrong answer": 3, "wrong format": 1, "failed": 1},
        "greedy": {"correct": 1, "wrong answer": 1},
    }


@pytest.mark.parametrize(("rollouts", "sizes"), [(1, [1]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_the_last_size_is_the_one_of_the_interval(rollouts, sizes):
    """A pass rate is followed by its own interval, also if the rollouts are no power of two."""
    problems = [group("a", (RIGHT, *[WRONG] * (rollouts - 1))), group("b", (WRONG,) * rollouts)]
    result = measured(problems, evaluate={"rollouts_per_prompt": rollouts})
    assert list(result.pass_at) == list(result.maj_at) == sizes
    assert result.pass_at[rollouts] == 0.5  # a is solved by one of all, b by none
    assert f"@{rollouts} 50.0% (" in format_headline(result)


def test_a_majority_that_a_reward_does_not_give_takes_no_line():
    """A reward that returns a bare number has no answers of wrong rollouts to count."""
    bare = replace(WRONG, answer=None)
    result = measured([group("a", (RIGHT, bare, bare, RIGHT)), group("b", (RIGHT, RIGHT, RIGHT, bare))])
    assert (bool(result.pass_at), result.maj_at) == (True, {})
    assert "majority" not in format_headline(result)
    assert "majority" in format_headline(measured())


def test_ties_are_counted_and_shown():
    six = replace(WRONG, answer="5")
    wrong = group("c", (WRONG, six, UNREAD, UNREAD))  # two wrong answers tie: nothing is won or lost by it
    result = measured([group("a", (RIGHT, RIGHT, WRONG, WRONG)), group("b", (RIGHT, WRONG, UNREAD, UNREAD)), wrong])
    assert result.ties == 2
    assert re.search(r"(?m)^ties +\D*\b2\b", format_headline(result))


def test_examples_are_of_different_problems_first_and_at_most_five():
    text = format_report([measured([group(f"p{i}", (RIGHT, RIGHT)) for i in range(7)])])
    assert [line for line in text.splitlines() if line.endswith(" #0")] == [f"p{i} #0" for i in range(5)]
    assert " #1\n" not in text
    assert [line for line in text.splitlines() if line.startswith("--")] == ["-- correct --"]


def test_a_report_contains_no_control_characters():
    text = format_report([measured([group("p-\ud800", (RIGHT, WRONG)), *SAMPLED])])
    assert "\x1b" not in text
    assert r"p-\ud800 #0" in text
    text.encode()


def test_the_table_of_several_tasks_has_the_published_averages():
    right, wrong = [group("a", (RIGHT,) * 4), group("b", (RIGHT,) * 4)], [group("c", (WRONG,) * 4)]
    tasks = [
        measured(right, name="math500", task="math500"),
        measured(wrong, name="minerva_math", task="minerva_math"),
        measured(right + wrong, name="olympiad_bench", task="olympiad_bench"),
    ]
    assert averages(tasks[:2]) == {}
    means = averages(tasks)
    assert list(means) == ["3 average"]
    assert means["3 average"]["accuracy_sampled"].mean == pytest.approx((1 + 0 + 2 / 3) / 3)
    lines = format_table(tasks).splitlines()
    assert lines[0].split() == ["task", "problems", "avg@4", "pass@4", "maj@4"]
    assert [line.split()[0] for line in lines[1:]] == ["math500", "minerva_math", "olympiad_bench", "3"]
    assert lines[4].split()[2] == "55.6%"


def test_two_models_are_compared_on_the_problems_that_both_have():
    one = measured(
        [group("a", (RIGHT, RIGHT)), group("b", (RIGHT, WRONG)), group("c", (WRONG, WRONG)), group("d", (FAILED,) * 2)]
    )
    other = measured(
        [group("b", (WRONG, WRONG)), group("a", (RIGHT, RIGHT)), group("c", (RIGHT, WRONG)), group("e", (RIGHT,) * 2)]
    )
    (found,), (note,) = compare_results([one], [other])
    assert re.search(r"jsonl\b.*\b2\b", note)  # d and e are problems of one model each
    assert (found.problems, found.model, found.other) == (3, 0.5, 0.5)
    assert ([(c.id, c.other, c.model) for c in found.won], [c.id for c in found.lost]) == ([("b", 0.0, 0.5)], ["c"])
    assert found.test.p_value == 1.0


def test_a_comparison_has_categories_and_changed_problems():
    """Base: a right, b unread, c and d wrong. Trained: a and b right, c unread, d right."""
    texts = {name: [f"{name} is seventeen,\nor not"] for name in "abcd"}
    base = [group(name, (one,), texts=["base " + texts[name][0]], question=f"Frame\nWhat is {name}?\nEnd")
            for name, one in zip("abcd", (RIGHT, UNREAD, WRONG, WRONG), strict=True)]  # fmt: skip
    trained = [group(name, (one,), texts=["own " + texts[name][0]], question=f"Frame\nWhat is {name}?\nEnd")
               for name, one in zip("abcd", (RIGHT, RIGHT, UNREAD, RIGHT), strict=True)]  # fmt: skip
    (found,), _ = compare_results([measured(trained)], [measured(base, model="the/base")])
    assert [(c.category, c.other, c.model, c.change) for c in found.categories] == [
        ("correct", 1, 3, 0.5),
        ("wrong answer", 2, 0, -0.5),
        ("wrong format", 1, 1, 0.0),
    ]
    assert found.models == ("the/base", "some/model")
    first = found.won[0]
    assert (first.id, first.question, first.gold) == ("b", "What is b?", "132")
    assert (first.other_answer, first.model_answer) == ("base b is seventeen,\nor not", "own b is seventeen,\nor not")
    text = format_comparison(found)
    cells = {tuple(re.split(r"\s{2,}", line.strip())) for line in text.splitlines()}
    assert {("base", "trained", "change"), ("correct", "1 (25.0%)", "3 (75.0%)", "+50.0 points")} <= cells
    assert [line for line in text.splitlines() if line.strip().startswith("| ")] == [
        f"    | {line}"
        for name in "bd"
        for line in (
            f"What is {name}?",
            "132",
            f"base {name} is seventeen,",
            "or not",
            f"own {name} is seventeen,",
            "or not",
        )
    ]
    numbers = EvaluatedTasks([measured(trained)], [found], []).metrics()["comparisons"][0]
    assert numbers["won"] == [{"id": name, "other": 0.0, "model": 1.0} for name in "bd"]
    assert numbers["categories"][0] == {
        "category": "correct", "other": 1, "model": 3, "other_share": 0.25, "model_share": 0.75
    }  # fmt: skip


def test_the_shown_answers_are_ones_whose_verdicts_differ():
    texts = ["one", "two", "three"]
    one = measured([group("a", (WRONG, RIGHT, RIGHT), texts=[f"own {text}" for text in texts])])
    other = measured([group("a", (RIGHT, WRONG, FAILED), texts=[f"base {text}" for text in texts])])
    (found,), _ = compare_results([one], [other])
    assert [(c.other_answer, c.model_answer) for c in found.won] == [("base two", "own two")]
    (back,), _ = compare_results([other], [one])
    assert [(c.other_answer, c.model_answer) for c in back.lost] == [("own two", "base two")]
    assert [(c.category, c.other, c.model) for c in back.categories][-1] == ("failed", 0, 1)


def test_changed_problems_are_limited_in_number_and_escaped():
    ids = [f"p{i}" for i in range(5)]
    base = measured([group(id, (WRONG,), texts=[NASTY]) for id in ids])
    (found,), _ = compare_results([measured([group(id, (RIGHT,), texts=[NASTY]) for id in ids])], [base])
    shown = [format_comparison(found, most=most) for most in (2, 5)]
    assert [text.count("132") for text in shown] == [2, 5]
    assert not re.search(r"[\x1b\u202e\ud800]", "".join(shown))


def test_metrics_are_json_with_the_settings():
    one = measured(greedy=[group("a", (RIGHT,)), group("b", (FAILED,))])
    found = EvaluatedTasks([one], compare_results([one], [one])[0], []).metrics()
    task = found["tasks"]["jsonl"]
    settings = {
        "model": "some/model",
        "task": "jsonl",
        "split": "test",
        "problems": 2,
        "dropped": 0,
        "temperature": 0.7,
    }
    assert settings.items() <= task.items()
    assert (task["reward"], task["template"], task["max_new_tokens"]) == ("math + 0.5 format", "chat", 99)
    assert task["metrics"]["eval/accuracy_sampled"] == pytest.approx(11 / 24)
    assert task["pass_at"] == pytest.approx({"1": 11 / 24, "2": 0.75, "4": 1.0})
    assert task["categories"]["greedy"] == {"correct": 1, "failed": 1}
    assert task["intervals"]["accuracy_sampled"] == pytest.approx(over_problems(np.array([1 / 4, 2 / 3]))._asdict())
    assert validate(task["config"]) == one.config
    assert [one["metric"] for one in found["comparisons"]] == ["accuracy_sampled", "accuracy_greedy"]


def test_a_task_with_only_failed_verdicts_has_no_accuracy():
    found = measured([group("a", (FAILED, FAILED))])
    assert not re.search(r"(?m)^accuracy.*%", format_headline(found))
    assert EvaluatedTasks([found], [], []).metrics()["tasks"]["jsonl"]["intervals"] == {}


def test_another_reward_than_the_benchmark_s_has_a_warning():
    declared, free = measured(task="gsm8k", reward={"use": "r1_zero"}), measured(reward={"use": "r1_zero"})
    assert re.search(r"(?m)^warning.*gsm8k.*'numeric \+ 0\.1 format'", format_headline(declared))
    assert "warning" not in format_headline(free)


def test_a_model_compared_with_itself_has_a_p_value_of_1():
    (same,), _ = compare_results([measured()], [measured()])
    assert same.test.p_value == 1.0


def test_notes_name_the_tasks_that_cannot_be_compared():
    failed = measured([group("a", (FAILED,) * 4)])
    comparisons, notes = compare_results([failed], [measured()])
    assert comparisons == []
    assert [re.findall(r"jsonl|accuracy_sampled|\b1\b", note) for note in notes] == [
        ["jsonl", "accuracy_sampled"],  # a has no verdict of one of the models
        ["jsonl", "1"],  # b is a problem of the other model alone
    ]
    comparisons, (note,) = compare_results([measured(name="x")], [measured()])
    assert comparisons == []
    assert note.startswith("x ")
