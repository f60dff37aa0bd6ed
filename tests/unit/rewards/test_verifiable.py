"""The reward for verifiable instructions: what is obeyed, what is no answer, and how the library is imported."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.installed import is_installed
from winnow.records import Prompt, Rollout
from winnow.rewards.compose import make_reward
from winnow.rewards.contract import JUNK
from winnow.rewards.verifiable import check_rule, is_answer, is_drawn, loose_variants, obeys

# not importorskip: the package imports datasets
pytestmark = pytest.mark.skipif(not is_installed("if_verifiable"), reason="needs the extra winnow-rl[instructions]")

PLAIN = "the river runs slowly past the old stone mill today"  # ten words
NO_COMMA = {"rule": "punctuation:no_comma", "arguments": {}}
LOWER = {"rule": "change_case:english_lowercase", "arguments": {}}
RIVER = {"rule": "keywords:existence", "arguments": {"keywords": ["river", "mill"]}}
LENGTH = {"rule": "length_constraints:number_words", "arguments": {"num_words": 12, "relation": "less than"}}
JSON = {"rule": "detectable_format:json_format", "arguments": {}}


def judged(text, *rules, use="instructions", question="Write.", **options):
    tokens = np.zeros(1, np.int64)
    prompt = Prompt(id="p", tokens=tokens, text=question, answer=None, task="instructions", meta={"rules": list(rules)})
    rollout = Rollout(index=0, tokens=tokens, logprobs=np.zeros(1), text=text, finish="stop", version=0)
    return make_reward({"use": use, "options": options})(prompt, rollout)


@pytest.mark.parametrize(
    ("text", "rules", "share"),
    [
        (PLAIN, [NO_COMMA], 1.0),
        (PLAIN.replace(" past", ", past"), [NO_COMMA], 0.0),
        (PLAIN.replace(" past", ", past"), [NO_COMMA, RIVER], 0.5),
        (PLAIN.capitalize(), [LOWER, RIVER, LENGTH], 2 / 3),
        (f"{PLAIN} and on to the sea", [LENGTH], 0.0),
        (f'```json\n{{"text": "{PLAIN}"}}\n```', [JSON], 1.0),
        (f"<think>a, b</think>{PLAIN}", [NO_COMMA], 1.0),  # reasoning is no part of the answer
    ],
)
def test_the_reward_is_the_share_of_the_rules_that_are_obeyed(text, rules, share):
    outcome = judged(text, *rules)
    assert outcome.reward == pytest.approx(share)
    assert (outcome.correct, outcome.parts["all"]) == (share == 1.0, float(share == 1.0))


@pytest.mark.parametrize("use", ["instructions", "ifbench"])
def test_the_rules_of_a_column_have_the_arguments_of_all_its_rules(use):
    """Those that a rule does not have are null, as in a file of Parquet."""
    every = dict.fromkeys(("keywords", "num_words", "relation"))
    rules = [{**rule, "arguments": {**every, **rule["arguments"]}} for rule in (NO_COMMA, RIVER, LENGTH)]
    assert judged(PLAIN, *rules, use=use).reward == 1.0


@pytest.mark.parametrize("use", ["instructions", "ifbench"])
def test_reasoning_that_was_not_closed_is_no_response(use):
    """The prompt opened it, as some chat templates do."""
    opened = {"use": use, "question": "Write.<think>"}
    assert judged(PLAIN, RIVER, **opened).reward == 0.0
    assert judged(f"hm</think>{PLAIN}", RIVER, **opened).reward == 1.0
    assert judged(f"{PLAIN}</think>hm", RIVER, **opened).reward == 0.0
    assert judged(PLAIN, RIVER, use=use).reward == 1.0


GAMED = [
    "",
    "river mill",
    "the river runs past the old mill",  # seven words
    "mill river " * 8,
    "no " * 40,
    f"{PLAIN} {PLAIN}",
    "{}",
    "* a\n* b",
    "🚀 ? ! … - * #",
]


@pytest.mark.parametrize("text", GAMED)
def test_text_that_is_no_answer_earns_nothing_even_if_it_obeys(text):
    outcome = judged(text, NO_COMMA, RIVER)
    assert (outcome.reward, outcome.kind, outcome.parts) == (
        0.0,
        "unparsable",
        {"answer": 0.0, "rules": 0.0, "all": 0.0},
    )


def test_few_words_and_repeats_are_no_answer():
    assert is_answer(PLAIN)
    assert is_answer("* bread is made of flour\n* bread is baked in an oven\n* bread is eaten warm")
    assert not any(is_answer(text) for text in GAMED)


def test_a_verdict_is_the_same_each_time_for_a_short_text_of_two_languages():
    """The library's detector of languages draws numbers unless it has a seed."""
    text = "le chat is on la table with une small souris today"
    assert len({obeys(text, LOWER) for _ in range(20)}) == 1


@pytest.mark.parametrize("text", JUNK.values(), ids=JUNK)
def test_no_text_makes_the_reward_fail(text):
    every = [NO_COMMA, LOWER, RIVER, LENGTH, JSON]
    outcome = judged(text, *every)
    assert not outcome.failed
    assert outcome.reward < 1.0


BAD = {
    "unknown": {"rule": "punctuation:no_semicolon", "arguments": {}},
    "needs data": {
        "rule": "length_constraints:number_sentences",
        "arguments": {"num_sentences": 3, "relation": "less than"},
    },
    "an argument is absent": {"rule": "length_constraints:number_words", "arguments": {"num_words": 12}},
    "another argument": {"rule": "punctuation:no_comma", "arguments": {"count": 1}},
    "no arguments": {"rule": "punctuation:no_comma"},
    "out of range": {"rule": "detectable_format:number_bullet_lists", "arguments": {"num_bullets": -1}},
}


@pytest.mark.parametrize("case", BAD)
def test_a_rule_that_is_not_checked_as_it_is_stated_is_refused(case):
    with refused(DataError, BAD[case]["rule"], code="data.malformed"):
        check_rule(BAD[case])
    assert (judged(PLAIN, BAD[case]).kind, judged(PLAIN, BAD[case]).cause) == ("failed", "malformed")


def test_a_prompt_without_rules_has_no_verdict():
    assert judged(PLAIN).cause == "malformed"


def test_the_published_checker_draws_an_index_in_place_of_zero():
    span = {"prompt_to_repeat": "a b c d e f g h", "n_start": 0, "n_end": 4}
    assert is_drawn({"rule": "repeat:repeat_span", "arguments": span})
    assert not is_drawn({"rule": "repeat:repeat_span", "arguments": {**span, "n_start": 2}})


def test_the_loose_accuracy_forgives_a_first_line_a_last_line_and_asterisks():
    text = "Sure, here it is:\nthe *river*\nHope this helps, bye!"
    assert sorted(loose_variants(text)) == sorted(
        [
            text,
            "the *river*\nHope this helps, bye!",
            "Sure, here it is:\nthe *river*",
            "the *river*",
            text.replace("*", ""),
            "the river\nHope this helps, bye!",
            "Sure, here it is:\nthe river",
            "the river",
        ]
    )
    outcome = judged(text, NO_COMMA, {"rule": "keywords:existence", "arguments": {"keywords": ["sea"]}}, use="ifbench")
    assert outcome.parts == {"strict": 0.0, "loose": 0.0, "rules_strict": 0.0, "rules_loose": 0.5}
    assert judged(text, NO_COMMA, use="ifbench").correct
    assert not judged(text, NO_COMMA, use="ifbench", loose=False).correct
    assert not judged("", NO_COMMA, use="ifbench").correct


def test_the_checkers_are_imported_without_datasets_and_without_a_download():
    code = """
import sys, socket
def refuse(*_, **__): raise AssertionError("a connection")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from winnow.rewards.verifiable import check_rule
check_rule({"rule": "punctuation:no_comma", "arguments": {}})
check_rule({"rule": "format:no_whitespace", "arguments": {}})
import nltk
print("datasets" in sys.modules, "if_verifiable" in sys.modules, nltk.download.__module__.partition(".")[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "nltk"]
    assert done.stderr == ""


def test_without_the_library_the_remedy_names_its_extra(monkeypatch):
    monkeypatch.setattr("winnow.installed.is_installed", lambda package: False)
    with refused(ConfigError, "winnow-rl[instructions]", code="config.not_installed"):
        make_reward({"use": "instructions"})
