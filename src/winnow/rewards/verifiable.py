"""Rewards for verifiable instructions: rules about the form of a text, each checked by a program.

A problem has its rules in `meta`, each with its id in IFEval or IFBench and with all arguments of its checker:

    {"rules": [{"rule": "punctuation:no_comma", "arguments": {}},
               {"rule": "keywords:existence", "arguments": {"keywords": ["river"]}}]}

The checkers are from the library if-verifiable (extra `instructions`): IFEval (Zhou et al., 2023, arXiv
2311.07911) and IFBench (Pyatkin et al., 2025, arXiv 2507.02833). Reinforcement learning with them is from Tulu 3
(Lambert et al., 2024, arXiv 2411.15124). Only its modules with checkers are imported: the package itself imports
`datasets`, and a module of IFBench downloads data.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from winnow.errors import DataError, near_miss
from winnow.installed import require_extra
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.format import conclusion
from winnow.rewards.graders import unparsable
from winnow.rewards.outcomes import failure, judged
from winnow.user_code import LOCK

PACKAGE = "if_verifiable"
# Their checkers read data that is not in the library: corpora and models of nltk.
NEED_DATA = frozenset(
    {
        "length_constraints:number_sentences",
        "change_case:capital_word_frequency",
        "ratio:stop_words",
        "words:start_verb",
        "words:keywords_specific_position",
        "words:words_position",
        "format:title_case",
    }
)
FEWEST_WORDS = 8
MOST_REPEATED = 1 / 3  # of the text's sequences of three words
_WORD = re.compile(r"\w+")

Rule = Mapping[str, Any]  # {"rule": id, "arguments": {...}}


def require() -> None:
    """Raise ConfigError unless the checkers are installed."""
    require_extra(PACKAGE, "rules of IFEval and IFBench are checked by another library", "instructions")


def without_nulls(rule: Rule) -> Rule:
    """A rule without the arguments that are null: in a column of Parquet, each has the arguments of all rules."""
    given = rule.get("arguments")
    if not isinstance(given, Mapping):
        return rule
    return {**rule, "arguments": {name: value for name, value in given.items() if value is not None}}


def check_rule(rule: Rule) -> None:
    """Raise DataError for a rule without a checker in winnow, and for arguments that are not exactly the
    checker's: it would draw those that are absent.
    """
    name, arguments = str(rule.get("rule")), rule.get("arguments")
    if name in NEED_DATA:
        raise _bad_rule(f"the checker of the rule {name!r} needs data that would be downloaded", "use another rule")
    checker = _checker(name)
    parameters = inspect.signature(checker.build_description).parameters.values()
    wanted = {one.name for one in parameters if one.name != "self" and one.kind is not one.VAR_KEYWORD}
    if not isinstance(arguments, Mapping) or set(arguments) != wanted:
        given = sorted(arguments) if isinstance(arguments, Mapping) else arguments
        raise _bad_rule(f"the rule {name!r} has the arguments {given}", f"give it exactly {sorted(wanted)}")
    if is_drawn(rule):
        raise _bad_rule(
            f"the checker of the rule {name!r} replaces the arguments {dict(arguments)} by random ones",
            "give it arguments within their range",
        )


def is_drawn(rule: Rule) -> bool:
    """Whether a checker draws an argument at random, because it is absent or out of range. Two verdicts of such a rule
    can differ.
    """
    before = random.getstate()
    try:
        _built(rule)
        return random.getstate() != before
    finally:
        random.setstate(before)


def obeys(text: str, rule: Rule) -> bool:
    """Whether a text obeys a rule; an empty text obeys none. The checkers raise exceptions on some texts, such as JSON
    that is nested too deeply: these do not obey it.
    """
    checker = _built(rule)
    try:
        return bool(text.strip()) and bool(checker.check_following(text))
    except Exception:
        return False


def is_answer(text: str) -> bool:
    """Whether a text has at least 8 words, and at most a third of its sequences of three words occurred before.

    Many rules are obeyed by a few words, or by one word again and again.
    """
    words = [word.lower() for word in _WORD.findall(text)]
    triples = Counter(zip(words, words[1:], words[2:], strict=False))
    count = sum(triples.values())
    return len(words) >= FEWEST_WORDS and count - len(triples) <= MOST_REPEATED * count


def loose_variants(text: str) -> list[str]:
    """The eight forms of a text that the loose accuracy of IFEval accepts: without its first line, its last line or
    both, which may be a greeting, each also without asterisks.
    """
    lines = text.split("\n")
    forms = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*forms, *(form.replace("*", "") for form in forms)]


def _warm(options: Mapping[str, Any]) -> None:
    _registry("ifeval")


_TRAITS: Mapping[str, Any] = {
    "example": lambda gold: f"so</think> The answer that you have been looking for is {gold}.",
    "example_meta": lambda gold: {"rules": [{"rule": "keywords:existence", "arguments": {"keywords": [str(gold)]}}]},
    "check": lambda options: require(),
    "warm": _warm,
}


@register("reward", **_TRAITS)
def instructions(prompt: Prompt, rollout: Rollout) -> Outcome:
    """The share of the prompt's rules that the response obeys; 0 for text that is no answer, which is unparsable.

    No answer is a text of fewer than 8 words, one of which more than a third repeats, and reasoning that was not
    closed. Correct means that all rules are obeyed. Parts: rules (the share), all.
    """
    text = conclusion(prompt, rollout)
    try:
        rules = _rules(prompt)
    except DataError as error:
        return failure("malformed", str(error))
    if not is_answer(text):
        return unparsable(rules=0.0, all=0.0)
    share = sum(obeys(text, rule) for rule in rules) / len(rules)
    return judged(share == 1.0, share, parts={"rules": share, "all": float(share == 1.0)})


@register("reward", **_TRAITS)
def ifbench(prompt: Prompt, rollout: Rollout, *, loose: bool = True) -> Outcome:
    """1 if the response obeys all rules of the prompt, else 0, as IFEval and IFBench define their accuracies.

    `loose`: each rule may be obeyed by any of eight forms of the response, as in the accuracy that the paper of IFBench
    reports. Parts: the accuracies of the prompt (strict, loose), and the shares of its rules that are obeyed
    (rules_strict, rules_loose). Reasoning is removed first.
    """
    text, rules = conclusion(prompt, rollout).strip(), [without_nulls(rule) for rule in prompt.meta["rules"]]
    forms = loose_variants(text)
    strict = [obeys(text, rule) for rule in rules]
    easier = [any(obeys(form, rule) for form in forms) for rule in rules]
    parts = {
        "strict": float(all(strict)),
        "loose": float(all(easier)),
        "rules_strict": sum(strict) / len(rules),
        "rules_loose": sum(easier) / len(rules),
    }
    return judged(all(easier if loose else strict), parts=parts)


def _rules(prompt: Prompt) -> Sequence[Rule]:
    """The rules of a prompt. Raises DataError if there is none, or a bad one."""
    rules = [without_nulls(rule) for rule in prompt.meta.get("rules") or ()]
    if not rules:
        raise _bad_rule("the problem has no rules in meta['rules']", "use the task 'instructions', or add them")
    for rule in rules:
        check_rule(rule)
    return rules


def _bad_rule(problem: str, remedy: str) -> DataError:
    return DataError(problem, remedy=remedy, code="data.malformed")


def _built(rule: Rule) -> Any:
    """A checker with the arguments of a rule."""
    checker = _checker(rule["rule"])(rule["rule"])
    try:
        checker.build_description(**rule["arguments"])
    except Exception as error:  # of a checker, for arguments that it refuses
        problem = f"the checker of the rule {rule['rule']!r} refuses its arguments: {error}"
        raise _bad_rule(problem, "correct them") from error
    return checker


def _checker(name: str) -> Any:
    for benchmark in ("ifeval", "ifbench"):
        if name in _registry(benchmark):
            return _registry(benchmark)[name]
    known = [*_registry("ifeval"), *_registry("ifbench")]
    raise _bad_rule(f"there is no rule {name!r}", near_miss(name, known))


@functools.cache
def _registry(benchmark: str) -> Mapping[str, Any]:
    """id -> the checker's class, of one benchmark. Raises ConfigError without the library."""
    require()
    with LOCK, _checkers_alone():
        import langdetect

        langdetect.DetectorFactory.seed = 0  # else the language of a short text is drawn
        found: Mapping[str, Any] = importlib.import_module(
            f"{PACKAGE}.{benchmark}.instructions_registry"
        ).INSTRUCTION_DICT
        return found


@contextmanager
def _checkers_alone() -> Iterator[None]:
    """A block in which the library's modules are imported without the package's own code, and nltk downloads nothing.

    Afterwards the package can be imported as usual.
    """
    import nltk

    download, earlier = nltk.download, sys.modules.get(PACKAGE)
    nltk.download = lambda *arguments, **options: False
    if earlier is None:
        spec = importlib.util.find_spec(PACKAGE)
        bare = ModuleType(PACKAGE)
        bare.__path__ = list(spec.submodule_search_locations or ()) if spec else []
        sys.modules[PACKAGE] = bare
    try:
        yield
    finally:
        nltk.download = download
        if earlier is None:
            for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
                del sys.modules[name]
