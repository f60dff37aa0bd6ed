"""Prompts with verifiable instructions: the splits share no topic and no rule, and every rule can be checked."""

from __future__ import annotations

import itertools

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.installed import is_installed
from winnow.rewards.verifiable import check_rule, obeys
from winnow.tasks.instructions import HELD_OUT_TOPICS, RULES, TOPICS, instructions

needs_checkers = pytest.mark.skipif(not is_installed("if_verifiable"), reason="needs the extra winnow-rl[instructions]")
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def problems():
    return {split: instructions(split, size=300) for split in SPLITS}


def test_held_out_topics_and_rules_are_in_no_train_problem(problems):
    topics = {split: {one.meta["topic"] for one in problems[split]} for split in SPLITS}
    names = {split: {name for one in problems[split] for name in one.meta["names"]} for split in SPLITS}
    assert topics == {"train": set(TOPICS), "validation": set(HELD_OUT_TOPICS), "test": set(HELD_OUT_TOPICS)}
    assert names["train"] == names["validation"] == {name for name, form in RULES.items() if not form.held_out}
    assert names["test"] == {name for name, form in RULES.items() if form.held_out}
    assert len(names["train"]) == 9
    assert len(names["test"]) == 6
    rules = {split: {rule["rule"] for one in problems[split] for rule in one.meta["rules"]} for split in SPLITS}
    assert not rules["train"] & rules["test"]


def test_every_prompt_occurs_once_and_a_shorter_list_is_a_beginning(problems):
    for split in SPLITS:
        assert len({one.question for one in problems[split]}) == len({one.id for one in problems[split]}) == 300
        assert instructions(split, size=20) == problems[split][:20]
    assert instructions("train", size=20, seed=1) != problems["train"][:20]


def test_a_prompt_states_its_arguments_and_no_two_rules_of_a_group(problems):
    for one in itertools.chain(*problems.values()):
        assert one.question.startswith(
            tuple(f.partition("{")[0] for f in ("Write a", "Describe", "Explain", "Tell me"))
        )
        groups = [RULES[name].group for name in one.meta["names"]]
        assert 1 <= len(groups) == len(set(groups)) <= 2
        for rule in one.meta["rules"]:
            for value in rule["arguments"].values():
                stated = value if isinstance(value, list) else [value]
                hidden = rule["rule"] == "length_constraints:nth_paragraph_first_word"
                assert hidden or all(str(part) in one.question for part in stated), one.question


@needs_checkers
def test_every_rule_has_a_checker_with_all_its_arguments(problems):
    for one in itertools.chain(*problems.values()):
        for rule in one.meta["rules"]:
            check_rule(rule)


WORDS = "small water every morning light strong often quiet people green travel story simple warm learn city family"
OBEDIENT = {
    "no_comma": f"we like {WORDS}",
    "lower_case": f"we like {WORDS}",
    "keywords": f"We like {WORDS} nature always together.",
    "forbidden_words": f"We like {WORDS}.",
    "bullets": "* bread\n" * 3,
    "length": "One two three.",
    "first_word": "Today",
    "end_phrase": "Here.",
    "json": '{"a": 1}',
    "upper_case": f"WE LIKE {WORDS.upper()} AND THIS IS AN ENGLISH SENTENCE.",
    "frequency": f"{WORDS} nature always together " * 3,
    "letters": "bfgmpw" * 9,
    "quotation": '"Here."',
    "paragraphs": "One.\n***\nTwo.",
    "postscript": "Here.\n\nP.S. There.",
}


@needs_checkers
@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_obeyed_by_a_text_and_not_by_another(name):
    """The checker of the id is that of the sentence."""
    split = "test" if RULES[name].held_out else "train"
    one = instructions(split, size=4, rules=[name], most_rules=1)[0]
    (rule,) = one.meta["rules"]
    arguments, text = rule["arguments"], OBEDIENT[name]
    if name == "bullets":
        text = "* bread\n" * arguments["num_bullets"]
    elif name == "length":
        text = "word " * (arguments["num_words"] + (0 if arguments["relation"] == "at least" else -1))
    elif name == "first_word":
        text = f"{arguments['first_word'].capitalize()} it rains."
    elif name == "end_phrase":
        text = f"It rains. {arguments['end_phrase']}"
    elif name == "paragraphs":
        text = "\n***\n".join(["One."] * arguments["num_paragraphs"])
    other = {
        "length": "word " * 10 if arguments.get("relation") == "at least" else "word " * 100,
        "forbidden_words": "The sea is one of a kind, and it is.",
    }
    assert obeys(text, rule)
    assert not obeys(other.get(name, "It Rains, here."), rule)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("task.size", {"size": 0}),
        ("task.size", {"size": 2000, "rules": ["no_comma"], "most_rules": 1}),
        ("task.most_rules", {"most_rules": 0}),
        ("task.most_rules", {"most_rules": 4}),
        ("task.rules", {"rules": ["no_commas"]}),
        ("task.rules", {"rules": ["letters"]}),  # held out
    ],
)
def test_options_out_of_range_are_refused(key, options):
    with refused(ConfigError, key=key, code="config.value"):
        instructions("train", **options)


def test_an_unknown_split_is_refused():
    with refused(ConfigError, "dev", code="config.value"):
        instructions("dev")
