"""Templates: they render a problem's question as the text and the tokens of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.errors import DataError, bad_value, conflict, near_miss
from winnow.records import Problem, Prompt
from winnow.tasks.chat import Tools, chat_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Write = Callable[[str], str]
Schemas = Callable[[Problem], Tools]

R1_ZERO = (
    "A User asks, an Assistant replies. Every reply has two parts: first the Assistant thinks the question through, "
    "then it states its answer to the User. The thinking goes between <think> and </think>, the answer between "
    "<answer> and </answer>, written like this: <think> thinking </think> <answer> answer </answer>.\n"
    "User: {question}\n"
    "Assistant: <think>"
)
PLAIN = MappingProxyType({"r1_zero": R1_ZERO, "question_only": "{question}"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Prompts in the order of their problems, and the number of problems that were too long."""

    prompts: list[Prompt]
    dropped: int
    first_dropped: str = ""  # the id of the first problem that was too long


def render(problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, **prompt: Any) -> Rendered:
    """`render_each` for one list."""
    return render_each([problems], tokenizer, **prompt)[0]


def render_each(
    lists: Sequence[Sequence[Problem]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    template: str,
    system: str | None = None,
    suffix: str | None = None,
    template_options: Mapping[str, Any] = MappingProxyType({}),
    max_prompt_tokens: int,
    base: Path | None = None,
    schemas: Schemas = lambda problem: (),
) -> list[Rendered]:
    """Lists of problems as prompts; those longer than `max_prompt_tokens` are dropped and counted.

    `template` is `chat`, `r1_zero`, `question_only`, or a UTF-8 text file, relative to `base`, with one `{question}`;
    the line break at the end of the file is removed. `chat` is the tokenizer's template with the variables
    `template_options`: the message `system` if one is given, then the question and `suffix` as the user's message.
    A problem's earlier messages come before its question, and `system` takes the place of their system message. A chat
    template writes its special tokens itself, and gets a fixed date and the schemas of the problem's tools (`schemas`).
    Prompts of the other templates start with BOS if the tokenizer adds one.

    Raises ConfigError for a template that cannot be used, and for options that it would ignore. Raises DataError for a
    chat template that is missing or does not end, for a special token in a question, and if every prompt of a list
    is too long.
    """
    every = [problem for problems in lists for problem in problems]
    _refuse_special_tokens(every, tokenizer)
    if template == "chat":
        texts = _chat_texts(every, tokenizer, system, suffix or "", template_options, schemas)
    else:
        _refuse_ignored(template, system=system, suffix=suffix, template_options=template_options or None)
        _refuse_earlier(template, every)
        write = _plain(template, tokenizer, base)
        texts = [write(problem.question) for problem in every]
    # Not verbose: transformers would print a warning about a prompt that is longer than the model's context.
    tokens = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    rendered = zip(every, texts, tokens, strict=True)
    prompts = (Prompt.of(problem, text, np.array(ids, dtype=np.int64)) for problem, text, ids in rendered)
    return [_fitting(list(islice(prompts, len(problems))), max_prompt_tokens) for problems in lists]


def _chat_texts(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    system: str | None,
    suffix: str,
    options: Mapping[str, Any],
    schemas: Schemas,
) -> list[str]:
    """The text of every problem. Those with the same tools are rendered together."""
    texts, alike = [""] * len(problems), dict[str, list[int]]()
    for place, problem in enumerate(problems):
        alike.setdefault(json.dumps(schemas(problem)), []).append(place)
    for tools, places in alike.items():
        questions = [f"{problems[place].question}{suffix}" for place in places]
        earlier = [problems[place].earlier for place in places]
        of_these = chat_texts(questions, tokenizer, system, options, earlier, json.loads(tools))
        for place, text in zip(places, of_these, strict=True):
            texts[place] = text
    return texts


def check_context(*, max_prompt_tokens: int, max_new_tokens: int, context_tokens: int) -> None:
    """Raise ConfigError if the longest prompt and the longest rollout together exceed the model's context."""
    needed = max_prompt_tokens + max_new_tokens
    if needed > context_tokens:
        raise conflict(
            f"prompt.max_prompt_tokens ({max_prompt_tokens}) + rollout.max_new_tokens ({max_new_tokens}) = {needed}, "
            f"but the model's context holds {context_tokens} tokens",
            remedy="lower one of them",
            key="rollout.max_new_tokens",
        )


def _fitting(prompts: Sequence[Prompt], most: int) -> Rendered:
    fitting = [prompt for prompt in prompts if len(prompt.tokens) <= most]
    if not fitting:
        shortest = min((len(prompt.tokens) for prompt in prompts), default=0)
        raise DataError(
            f"all {len(prompts)} prompts are longer than prompt.max_prompt_tokens = {most}",
            remedy=f"raise it: the shortest has {shortest} tokens",
            key="prompt.max_prompt_tokens",
            code="data.empty",
        )
    first_dropped = next((prompt.id for prompt in prompts if len(prompt.tokens) > most), "")
    return Rendered(prompts=fitting, dropped=len(prompts) - len(fitting), first_dropped=first_dropped)


def _refuse_ignored(template: str, **given: object) -> None:
    """Raise ConfigError for a key that only a chat template uses."""
    for key, value in given.items():
        if value is not None:
            raise conflict(
                f"prompt.{key} is set, and prompt.template = {template!r} does not use it",
                remedy=f"set prompt.template to 'chat', or remove prompt.{key}",
                key=f"prompt.{key}",
            )


def _refuse_earlier(template: str, problems: Iterable[Problem]) -> None:
    """Raise ConfigError for messages before a question, which only a chat template renders."""
    for problem in problems:
        if problem.earlier:
            raise conflict(
                f"prompt.template = {template!r} has no place for the {problem.earlier[0][0]} message before the "
                f"question of {problem.where or problem.id}",
                remedy="set prompt.template to 'chat'",
                key="prompt.template",
            )


def _plain(template: str, tokenizer: PreTrainedTokenizerBase, base: Path | None) -> Write:
    before, _, after = _text(template, base).partition("{question}")
    bos = tokenizer.bos_token if _adds_bos(tokenizer) and not before.startswith(tokenizer.bos_token) else ""
    return lambda question: f"{bos}{before}{question}{after}"


def _text(template: str, base: Path | None) -> str:
    if template in PLAIN:
        return PLAIN[template]
    file = (base or Path()) / template  # of a recipe, `base` is a folder in the package: a path in --set is absolute
    if not file.is_file():
        raise bad_value(
            f"prompt.template: no template is called {template!r}, and there is no file {file.absolute()}",
            f"{near_miss(template, [*PLAIN, 'chat'])}; or write the path of your file, which starts from the folder of "
            f"the configuration, and on the command line (--set) from the working directory",
            key="prompt.template",
        )
    try:
        text = file.read_text(encoding="utf-8-sig").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"prompt.template: {file} cannot be read as UTF-8 text: {error}"
        raise bad_value(problem, "save it as UTF-8", key="prompt.template") from error
    if text.count("{question}") != 1:
        problem = f"prompt.template: {file} contains {{question}} {text.count('{question}')} times"
        raise bad_value(problem, "write it exactly once", key="prompt.template")
    return text


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    return tokenizer.bos_token_id is not None and tokenizer("x")["input_ids"][0] == tokenizer.bos_token_id


def _refuse_special_tokens(problems: Iterable[Problem], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise DataError for a question that contains a special token: it would become a control token, such as the end of
    a turn or a second BOS.
    """
    special = [re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
    pattern = re.compile("|".join(special) or r"(?!)")
    for problem in problems:
        texts = (*(text for _, text in problem.earlier), problem.question)
        match = next(filter(None, map(pattern.search, texts)), None)
        if match:
            raise DataError(
                f"{problem.where or problem.id}: the question contains {match[0]!r}, a special token of this tokenizer",
                remedy="remove it from the question",
                code="data.malformed",
            )
