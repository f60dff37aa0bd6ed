"""Prompts with verifiable instructions, from a grammar of topics and rules: no download, and a checker for every rule.

A prompt requests a short text about a topic and states one or two rules, such as "Do not use commas." The rules are
those of IFEval (Zhou et al., 2023, arXiv 2311.07911), written here in several words each. Some topics and some rules
occur in no train problem, so held-out problems measure whether rules are obeyed that were never rewarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from winnow.errors import near_miss
from winnow.records import Problem
from winnow.registry import register
from winnow.seeds import generator
from winnow.tasks.problems import check_split, problem, refused

MOST_DRAWS = 2_000  # per problem

FORMS = ("Write a few sentences about {}.", "Describe {}.", "Explain {} to a child.", "Tell me something about {}.")
TOPICS = (
    *("the sea", "a bicycle", "bread", "the moon", "a library", "winter", "honey bees", "trains", "a garden", "rain"),
    *("the piano", "mountains", "coffee", "dogs", "a lighthouse", "chess", "rivers", "the desert", "apples", "clocks"),
    *("football", "the sun", "paper", "whales", "a village", "glass", "sleep", "maps", "the human heart", "salt"),
    *("a market", "bridges", "spiders", "music", "the wind", "shoes", "a school", "volcanoes", "milk", "letters"),
)
HELD_OUT_TOPICS = ("kites", "a hospital", "snow", "cats", "islands", "painting", "the brain", "tea", "robots", "owls")
WORDS = (
    *("small", "water", "every", "morning", "light", "strong", "often", "quiet", "people", "green", "travel", "story"),
    *("simple", "warm", "learn", "city", "family", "nature", "always", "together"),
)
ENDINGS = ("That is all.", "Thank you for reading.", "Is there anything else?", "Now you know.", "See you soon.")

Group = Literal["case", "layout", "words", "absent", "length", "first", "last", "comma"]
Stated = tuple[str, Mapping[str, Any]]  # the sentence in the prompt, and the arguments of the checker
EVALUATION: Mapping[str, Any] = MappingProxyType(
    {"prompt": {"template": "chat"}, "rollout": {"max_new_tokens": 256}, "reward": {"use": "instructions"}}
)


@dataclass(frozen=True)
class Instruction:
    """A rule: its id in IFEval, and a function that draws its sentence and its arguments."""

    rule: str
    group: Group  # two rules of one group are never in one prompt
    draw: Callable[[np.random.Generator], Stated]
    excludes: tuple[Group, ...] = ()  # groups whose rules contradict it
    held_out: bool = False


def _one_of(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _fixed(*sentences: str) -> Callable[[np.random.Generator], Stated]:
    return lambda rng: (_one_of(rng, sentences), {})


def _keywords(rng: np.random.Generator) -> Stated:
    words = sorted(str(word) for word in rng.choice(WORDS, size=int(rng.integers(1, 3)), replace=False))
    listed = " and ".join(f'"{word}"' for word in words)
    return f"Use the word{'s' * (len(words) > 1)} {listed}.", {"keywords": words}


def _forbidden(rng: np.random.Generator) -> Stated:
    words = sorted(str(word) for word in rng.choice(("the", "is", "and", "of", "it", "a"), size=2, replace=False))
    return f'Do not use the words "{words[0]}" and "{words[1]}".', {"forbidden_words": words}


def _bullets(rng: np.random.Generator) -> Stated:
    count = int(rng.integers(2, 5))
    return f'Answer with exactly {count} bullet points that begin with "* ".', {"num_bullets": count}


def _length(rng: np.random.Generator) -> Stated:
    if rng.integers(2):
        most = 5 * int(rng.integers(3, 6))
        return f"Use less than {most} words.", {"num_words": most, "relation": "less than"}
    least = 5 * int(rng.integers(4, 7))
    return f"Use at least {least} words.", {"num_words": least, "relation": "at least"}


def _first_word(rng: np.random.Generator) -> Stated:
    word = _one_of(rng, ("today", "imagine", "people", "once", "many", "everyone"))
    sentence = f'Write one paragraph whose first word is "{word.capitalize()}".'
    return sentence, {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": word}


def _ending(rng: np.random.Generator) -> Stated:
    phrase = _one_of(rng, ENDINGS)
    return f'End with exactly this phrase: "{phrase}"', {"end_phrase": phrase}


def _frequency(rng: np.random.Generator) -> Stated:
    word, count = _one_of(rng, WORDS), int(rng.integers(2, 4))
    arguments = {"keyword": word, "frequency": count, "relation": "at least"}
    return f'Use the word "{word}" at least {count} times.', arguments


def _letters(rng: np.random.Generator) -> Stated:
    letter, count = _one_of(rng, "bfgmpw"), int(rng.integers(5, 9))
    arguments = {"letter": letter, "let_frequency": count, "let_relation": "at least"}
    return f'Use the letter "{letter}" at least {count} times.', arguments


def _paragraphs(rng: np.random.Generator) -> Stated:
    count = int(rng.integers(2, 4))
    return f"Write {count} paragraphs, with the line *** between two of them.", {"num_paragraphs": count}


def _sign_off(rng: np.random.Generator) -> Stated:
    return 'Add a postscript that begins with "P.S."', {"postscript_marker": "P.S."}


RULES: Mapping[str, Instruction] = MappingProxyType(
    {
        "no_comma": Instruction("punctuation:no_comma", "comma", _fixed("Do not use commas.", "Use no comma at all.")),
        "lower_case": Instruction(
            "change_case:english_lowercase",
            "case",
            _fixed("Write in lower case only.", "Do not use capital letters."),
            excludes=("layout",),
        ),
        "keywords": Instruction("keywords:existence", "words", _keywords),
        "forbidden_words": Instruction("keywords:forbidden_words", "absent", _forbidden),
        "bullets": Instruction(
            "detectable_format:number_bullet_lists", "layout", _bullets, excludes=("first", "last", "length")
        ),
        "length": Instruction("length_constraints:number_words", "length", _length),
        "first_word": Instruction(
            "length_constraints:nth_paragraph_first_word", "first", _first_word, excludes=("layout",)
        ),
        "end_phrase": Instruction("startend:end_checker", "last", _ending, excludes=("layout", "absent")),
        "json": Instruction(
            "detectable_format:json_format",
            "layout",
            _fixed("The whole answer has to be JSON.", "Answer only in JSON."),
            excludes=("case", "length", "first", "last", "comma"),
        ),
        "upper_case": Instruction(
            "change_case:english_capital",
            "case",
            _fixed("Write in capital letters only.", "Use only upper case."),
            excludes=("layout", "last"),
            held_out=True,
        ),
        "frequency": Instruction("keywords:frequency", "words", _frequency, held_out=True),
        "letters": Instruction("keywords:letter_frequency", "absent", _letters, held_out=True),
        "quotation": Instruction(
            "startend:quotation",
            "first",
            _fixed("Wrap the whole answer in double quotation marks.", 'Begin and end the answer with ".'),
            excludes=("last",),
            held_out=True,
        ),
        "paragraphs": Instruction(
            "length_constraints:number_paragraphs", "layout", _paragraphs, excludes=("first",), held_out=True
        ),
        "postscript": Instruction(
            "detectable_content:postscript", "last", _sign_off, excludes=("first",), held_out=True
        ),
    }
)


@register("task", evaluation=EVALUATION)
def instructions(
    split: str, *, size: int = 512, most_rules: int = 2, rules: Sequence[str] | None = None, seed: int = 0
) -> list[Problem]:
    """`size` prompts of each split with verifiable instructions, for the reward `instructions`.

    Each has a topic and 1 to `most_rules` (at most 3) rules that do not contradict each other. The train split has 40
    topics and 9 rules, the validation split 10 other topics and the same rules, and the test split the 10 topics and 6
    rules that no train problem has. `rules` limits the rules by their names in `RULES`. Every prompt occurs once in a
    split, and a shorter list is the beginning of a longer one. `meta` has the topic, the names of the rules, and
    `rules` as the reward reads them; there is no gold.

    Raises ConfigError for an unknown split or rule, for a size or a number of rules out of range, and if `rules`
    leaves none for the split or too few prompts.
    """
    check_split(split)
    allowed = _allowed(split, rules)
    for name, value, most in (("size", size, None), ("most_rules", most_rules, 3)):
        if value < 1 or (most is not None and value > most):
            raise refused(name, f"task.{name} is {value}", f"set it to 1 or more{f', at most {most}' if most else ''}")
    topics = TOPICS if split == "train" else HELD_OUT_TOPICS
    problems: dict[str, Problem] = {}  # by question
    for item in range(size):
        drawn = _draws(generator("instructions", seed, split, item), topics, allowed, most_rules)
        new = next((one for one in drawn if one.question not in problems), None)
        if new is None:
            raise refused(
                "size",
                f"task.size is {size}: these rules and topics have about {item} {split} prompts",
                "lower task.size, or allow more rules",
            )
        problems[new.question] = new
    return list(problems.values())


def _draws(
    rng: np.random.Generator, topics: Sequence[str], allowed: Sequence[str], most_rules: int
) -> Iterator[Problem]:
    """Prompts. Of the rules of a prompt, the later ones are those that fit the earlier ones."""
    for _ in range(MOST_DRAWS):
        topic, form = _one_of(rng, topics), _one_of(rng, FORMS)
        names: list[str] = []
        for _ in range(int(rng.integers(1, most_rules + 1))):
            fitting = [name for name in allowed if all(_fit(RULES[name], RULES[other]) for other in names)]
            names += [_one_of(rng, fitting)] if fitting else []
        stated = [RULES[name].draw(rng) for name in names]
        question = " ".join((form.format(topic), *(sentence for sentence, _ in stated)))
        checked = [
            {"rule": RULES[name].rule, "arguments": dict(arguments)}
            for name, (_, arguments) in zip(names, stated, strict=True)
        ]
        yield problem("instructions", question, None, {"topic": topic, "names": names, "rules": checked})


def _fit(one: Instruction, other: Instruction) -> bool:
    """Whether a text can obey two rules at once."""
    return one.group != other.group and one.group not in other.excludes and other.group not in one.excludes


def _allowed(split: str, rules: Sequence[str] | None) -> list[str]:
    for name in rules or ():
        if name not in RULES:
            raise refused("rules", f"task.rules: there is no rule {name!r}", near_miss(name, RULES))
    of_split = [name for name, form in RULES.items() if form.held_out == (split == "test")]
    allowed = [name for name in of_split if rules is None or name in rules]
    if not allowed:
        raise refused(
            "rules", f"task.rules has no rule of the {split} split", f"add at least one of {', '.join(of_split)}"
        )
    return allowed
