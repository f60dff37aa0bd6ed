"""reasoning-gym's scorers behind a grammar: nine of them execute their input."""

from __future__ import annotations

import functools
import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversarial import PAYLOADS

from refusals import refused
from winnow.errors import ConfigError
from winnow.installed import is_installed
from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.gym import admits, foreign_field, reasoning_gym, refuse_constants
from winnow.verify.verifiers import Verifiers

# not importorskip: it takes seconds to import, in every process that collects tests
pytestmark = pytest.mark.skipif(not is_installed("reasoning_gym"), reason="needs the extra winnow-rl[gym]")

EXECUTING = (
    "binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "countdown", "puzzle24",
    "polynomial_multiplication", "simple_integration", "intermediate_integration",
)  # fmt: skip
OTHERS = (
    "chain_sum", "complex_arithmetic", "game_of_life_halting", "coin_flip", "word_sorting", "caesar_cipher",
    "leg_counting", "basic_arithmetic", "spell_backward", "rubiks_cube", "graph_color", "propositional_logic",
    "decimal_arithmetic", "number_sorting", "time_intervals", "calendar_arithmetic", "syllogism", "knights_knaves",
    "maze", "word_ladder",
)  # fmt: skip


def factory() -> Any:
    return importlib.import_module("reasoning_gym.factory")


def entries(dataset: str, count: int = 8) -> list[dict[str, Any]]:
    made = data_set(dataset)
    return [json.loads(json.dumps(made[i])) for i in range(count)]


@functools.cache
def data_set(name: str) -> Any:
    """Its entries are generated when they are read; for all tests, as some take a while."""
    return factory().create_dataset(name, seed=1, size=20)


def score(dataset: str, entry: dict[str, Any], answer: str, text: str = "<answer>{}</answer>") -> Outcome:
    meta = {"dataset": dataset, "options": {}, "entry": entry}
    prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q", answer=entry["answer"], task="t", meta=meta)
    empty = np.zeros(0)
    completion = text.replace("{}", answer)
    return reasoning_gym(
        prompt,
        Rollout(index=0, tokens=empty.astype(np.int64), logprobs=empty, text=completion, finish="stop", version=0),
    )


def test_every_gold_is_admitted_and_scores_one() -> None:
    """Of the first entries of each data set; a scorer of integrals takes a while for each."""
    judged = 0
    for dataset in (*EXECUTING, *OTHERS):
        for entry in entries(dataset, 4 if "integration" in dataset else 8):
            gold = entry["answer"] or entry["metadata"].get("example_answer")
            if gold is None or dataset == "graph_color" or "Integral(" in gold:
                continue  # no single gold; or one that was never integrated
            assert admits(dataset, entry, gold), (dataset, entry["question"], gold)
            assert score(dataset, entry, gold).kind == "correct", (dataset, gold)
            judged += 1
    assert judged > 200


@pytest.mark.parametrize("dataset", EXECUTING)
def test_no_payload_reaches_a_scorer_that_executes(dataset: str, tmp_path: Path) -> None:
    (entry,) = entries(dataset, 1)
    for number, payload in enumerate(PAYLOADS):
        mark = tmp_path / f"mark{number}"
        outcome = score(dataset, entry, payload.replace("MARK", str(mark)))
        assert outcome.kind == "unparsable"
        assert not mark.exists()


JUNK = ("9**9**9**9", "nan", "inf", "1_000", "x.__class__", "\0", "eval(1)", "9" * 5000, "")
WORDS = {(dataset, word) for dataset in ("word_sorting", "caesar_cipher") for word in ("nan", "inf")}  # like any other


def test_junk_is_never_right() -> None:
    first = {dataset: entries(dataset, 1)[0] for dataset in (*EXECUTING, *OTHERS)}
    judged = {(dataset, junk): score(dataset, entry, junk).reward for dataset, entry in first.items() for junk in JUNK}
    assert {case: reward for case, reward in judged.items() if case not in WORDS and not reward < 0.5} == {}


EXECUTED = [
    ("bitwise_arithmetic", "0x10", ("metadata", "problem")),
    ("number_sorting", '["1", "2"]', ("answer",)),
    ("polynomial_multiplication", "2*x", ("answer",)),
    *((name, "x + C", ("metadata", field)) for name in ("simple_integration", "intermediate_integration")
      for field in ("integrand", "variable")),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "answer", "field"), EXECUTED)
def test_no_scorer_executes_a_field_of_an_item_that_came_from_a_file(
    dataset: str, answer: str, field: tuple[str, ...], tmp_path: Path
) -> None:
    made = {"question": "", "answer": "x", "metadata": {"variable": "x", "integrand": "1", "direction": "ascending"}}
    for number, payload in enumerate(PAYLOADS):
        mark = tmp_path / f"mark{number}"
        entry = json.loads(json.dumps(made))
        (entry["metadata"] if len(field) == 2 else entry)[field[-1]] = payload.replace("MARK", str(mark))
        outcome = score(dataset, entry, answer)
        assert (outcome.kind, outcome.cause) == ("failed", "malformed"), payload
        assert ".".join(field) in outcome.detail
        assert not mark.exists()


@pytest.mark.parametrize(
    ("dataset", "field", "text"),
    [
        ("bitwise_arithmetic", "problem", "0x1 << 0xfffffff"),
        ("bitwise_arithmetic", "problem", "0xff**0xffff"),
        ("bitwise_arithmetic", "problem", "0x1 + " * 20_000 + "0x1"),
        ("bitwise_arithmetic", "problem", None),
        ("intermediate_integration", "integrand", "x**(9**9)"),
        ("composite", "source_dataset", "countdown"),
    ],
)
def test_an_item_that_no_generator_makes_is_malformed(dataset: str, field: str, text: str | None) -> None:
    entry = {"question": "", "answer": "0x1", "metadata": {"variable": "x", "integrand": "x", field: text}}
    assert score(dataset, entry, "0x1").cause == "malformed"


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        ("bitwise_arithmetic", {"difficulty": 10}),
        ("number_sorting", {"max_value": 10**18, "max_numbers": 30}),
        ("polynomial_multiplication", {"max_value": 1000, "max_polynomials": 6, "max_terms": 8}),
        ("simple_integration", {"max_terms": 9}),
    ],
)
def test_what_the_generators_make_is_admitted(dataset: str, options: dict[str, Any]) -> None:
    made = factory().create_dataset(dataset, seed=1, size=30, **options)
    assert {foreign_field(dataset, made[i]) for i in range(30)} == {None}


def test_the_files_of_the_library_that_execute_text_are_the_known_ones() -> None:
    """A version with another one needs a grammar of the text that its scorer executes."""
    calls = re.compile(r"(?<![\w.])(?:eval|exec)\(|parse_expr\(|sympify\(|literal_eval\(|pickle|subprocess|os\.system")
    library = Path(factory().__file__).parent
    executing = {path.stem for path in library.rglob("*.py") if calls.search(path.read_text(encoding="utf-8"))}
    generating = {"basic_arithmetic", "codeio", "generators_00_49", "generators_50_99"}  # only the library's own text
    of_answers = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "countdown", "puzzle24"}
    own_parser = {"propositional_logic"}
    assert executing == generating | of_answers | own_parser | {dataset for dataset, _, _ in EXECUTED}


def test_an_integral_is_not_answered_by_itself() -> None:
    entry = {"question": "", "answer": "x", "metadata": {"variable": "x", "integrand": "x**3*cos(3*x)"}}
    assert not admits("intermediate_integration", entry, "Integral(x**3*cos(3*x), x)")


@pytest.mark.parametrize("answer", ["E**x", "E**(2*x) + C", "-x**3*cos(3*x)/3 + C", "2*(2 - 8*x)**(3/2)/3 + C"])
def test_spellings_that_the_questions_require_are_admitted(answer: str) -> None:
    assert admits("intermediate_integration", {"question": "", "answer": "x"}, answer)


@pytest.mark.parametrize(
    "answer", ["E**(E**(9**9))", "9**9**9", "x**(9**9)", "x**999", "(9**9)**9**9", "exit()", "a.b", "f'x'"]
)
def test_bombs_and_code_are_not(answer: str) -> None:
    assert not admits("intermediate_integration", {"question": "", "answer": "x"}, answer)


def test_reading_a_long_answer_tries_no_number_twice() -> None:
    entry = {"question": "", "answer": "x"}
    assert not admits("intermediate_integration", entry, "1.123456+" * 40 + "$")  # 6**40 ways of cutting it
    assert admits("intermediate_integration", entry, "0.12345678*x + 12345678901234*x**2")


def test_the_answer_is_the_last_tag_after_the_reasoning() -> None:
    (entry,) = entries("chain_sum", 1)
    gold = entry["answer"]
    assert score("chain_sum", entry, gold, "so it is \\boxed{{}}").correct
    assert score("chain_sum", entry, gold, "<answer>1</answer> no, <answer>{}</answer>").correct
    assert score("chain_sum", entry, gold, "<think><answer>{}</answer>").kind == "unparsable"
    assert score("chain_sum", entry, gold, "{}").kind == "unparsable"


def test_a_score_is_clamped_and_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    from winnow.rewards import gym

    (entry,) = entries("chain_sum", 1)
    for value, kind, reward in ((7.0, "correct", 1.0), (-3.0, "wrong", 0.0)):
        monkeypatch.setattr(gym, "_scorer", lambda *_, value=value: lambda answer, entry: value)
        assert (score("chain_sum", entry, "5").kind, score("chain_sum", entry, "5").reward) == (kind, reward)
    monkeypatch.setattr(gym, "_scorer", lambda *_: lambda answer, entry: float("nan"))
    outcome = score("chain_sum", entry, "5")
    assert (outcome.kind, outcome.cause) == ("failed", "malformed")
    assert {"chain_sum", "nan"} <= set(outcome.detail.split())


@pytest.mark.parametrize("dataset", ["chain_sum", "word_sorting", "polynomial_multiplication"])
def test_honest_data_sets_pass_the_audit(dataset: str) -> None:
    refuse_constants(dataset, {}, entries(dataset, 20))


# The items of puzzle24 take a second; those of coin_flip are refused by the same rule.
@pytest.mark.parametrize("dataset", ["coin_flip", pytest.param("puzzle24", marks=pytest.mark.slow)])
def test_data_sets_that_reward_a_constant_are_refused(dataset: str) -> None:
    with refused(ConfigError, dataset, "task.audit", key="task.dataset", code="config.value"):
        refuse_constants(dataset, {}, entries(dataset, 20))


def test_what_beats_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"question": "", "answer": gold} for gold in ("1", "2")]
    monkeypatch.setattr("winnow.rewards.gym._scorer", lambda *_: lambda answer, entry: 0.55)
    refuse_constants("chain_sum", {}, items)
    monkeypatch.setattr("winnow.rewards.gym._scorer", lambda *_: lambda answer, entry: 0.56)
    with refused(ConfigError, "chain_sum", code="config.value"):
        refuse_constants("chain_sum", {}, items)


def test_it_runs_in_a_worker() -> None:
    (entry,) = entries("countdown", 1)
    meta = {"dataset": "countdown", "options": {}, "entry": entry}
    prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q", answer=entry["answer"], task="t", meta=meta)
    empty = np.zeros(0)
    texts = [f"<answer>{entry['answer']}</answer>", "<answer>1+1</answer>", "<answer>9**9**9**9</answer>"]
    rollouts = [
        Rollout(index=i, tokens=empty.astype(np.int64), logprobs=empty, text=text, finish="stop", version=0)
        for i, text in enumerate(texts)
    ]
    limits = {"timeout_seconds": 120.0, "memory_mb": 1024, "max_failure_share": 1.0}
    with Verifiers({"use": "reasoning_gym"}, workers=1, **limits) as verifiers:
        kinds = [outcome.kind for outcome in verifiers.stream((prompt, rollout) for rollout in rollouts)]
    assert kinds == ["correct", "wrong", "unparsable"]
