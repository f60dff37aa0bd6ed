"""Templates: they render a problem's question as the text and the tokens of a prompt.

A tokenizer's chat template comes with a model and is a program: it may loop for ever, or fill the memory. It is
compiled and rendered in a child process, whose CPU time and memory the kernel limits; the trainer never runs it. The
child is a fork, because importing transformers again would take seconds; it uses neither torch nor a device.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import itertools
import json
import os
import re
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import Message, Problem, Prompt
from winnow.tasks.messages import prompt_messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# Replaces the clock of a chat template by a fixed date (Llama 3's default), so that a run that is resumed on another
# day has the same prompts. The + keeps the white space that follows.
_CLOCK = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro +%}"

CPU_SECONDS = 30  # limit per prompt; real templates take less than a thousandth
MEMORY = 2**30  # limit in bytes, in addition to the trainer's memory


def chat_texts(
    questions: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    system: str | None,
    options: Mapping[str, Any],
    earlier: Iterable[Sequence[Message]] = itertools.repeat(()),
) -> list[str]:
    """The text of every question, after its `earlier` messages; `options` are variables of the template. The message
    `system`, where one is given, comes first, in the place of a system message among the earlier ones.

    Raises DataError for a tokenizer without a chat template, and for a template that fails, exceeds a limit
    (`CPU_SECONDS`, `MEMORY`) or omits a system message. Raises ConfigError for an option that the template does not
    have.
    """
    conversations = [
        prompt_messages(before, question, system) for question, before in zip(questions, earlier, strict=False)
    ]
    texts = conversation_texts(conversations, tokenizer, options)
    for (first, *_), text in zip(conversations, texts, strict=True):
        if first["role"] == "system" and first["content"].strip() not in text:
            raise _unfit(
                "the tokenizer's chat template has no place for a system message",
                "remove prompt.system" if system else "remove the system messages of the problems",
                key="prompt.system",
            )
    return texts


Conversation = Sequence[Mapping[str, str]]  # messages, each with the keys "role" and "content"


def conversation_texts(
    conversations: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]
) -> list[str]:
    """The text of every conversation, up to the next message of the assistant; `options` as in `chat_texts`.

    Raises DataError and ConfigError as `chat_texts`.
    """
    if not tokenizer.chat_template:
        raise _unfit(
            "prompt.template is 'chat', but the model's tokenizer has no chat template",
            "set it to r1_zero, question_only or a file",
        )
    _check_options(tokenizer, options)
    texts = _rendered(conversations, tokenizer, options)  # lazy: nothing is compiled in this process
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _child(reading, writing, texts)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            replies = [json.loads(line) for line in pipe if line.endswith(b"\n")]
    finally:
        status = _end(child)
    if len(replies) != len(conversations) or not all(isinstance(text, str) for text in replies):
        raise _failure(replies, status, has_system=any(each[0]["role"] == "system" for each in conversations))
    return replies


def _check_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a variable that the template does not have, or that winnow sets."""
    names = _names(tokenizer) if options else set()
    names -= {"messages", *inspect.signature(tokenizer.apply_chat_template).parameters}
    for option in options:
        if option not in names:
            raise ConfigError(
                f"prompt.template_options: the tokenizer's chat template has no variable {option!r} to set",
                remedy=near_miss(option, difflib.get_close_matches(option, names, n=1)) or "remove it",
                key=f"prompt.template_options.{option}",
                code="config.unknown_key",
            )


def _names(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The names in a template's code that can be variables. The code is not compiled, as that may take for ever."""
    from jinja2 import Environment, TemplateSyntaxError

    try:
        lexed = list(Environment().lex(tokenizer.get_chat_template()))
    except (ValueError, TemplateSyntaxError) as error:  # ValueError: several templates without a default
        raise _unfit(f"the tokenizer's chat template cannot be read: {error}", "correct it") from error
    tokens = itertools.pairwise((kind, text) for _, kind, text in lexed if kind != "whitespace")
    return {text for (_, before), (kind, text) in tokens if kind == "name" and before not in (".", "|")}


def _end(child: int) -> int:
    """Kill the child, in case reading was interrupted, and return its wait status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # a program that ignores SIGCHLD has no statuses
        return os.waitpid(child, 0)[1]
    return 0


def _failure(replies: Sequence[Any], status: int, *, has_system: bool) -> DataError:
    """The error where the child did not render every conversation."""
    instead = "set prompt.template to r1_zero, question_only or a file, or correct the template"
    if replies and isinstance(replies[-1], dict):
        without = "remove prompt.system if the model supports no system message"
        return _unfit(
            f"the tokenizer's chat template refused the messages: {replies[-1]['error']}",
            without if has_system else instead,
        )
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return _unfit(
            f"the tokenizer's chat template does not end: prompt {len(replies) + 1} took more than {CPU_SECONDS} "
            f"seconds of CPU time",
            instead,
        )
    return _unfit(f"the process that renders the tokenizer's chat template exited early ({status=})", instead)


def _unfit(problem: str, remedy: str, *, key: str = "prompt.template") -> DataError:
    return DataError(problem, remedy=remedy, key=key, code="data.unfit_model")


def _child(reading: int, writing: int, texts: Iterator[str]) -> None:
    """Write a line of JSON per text, and {"error": ...} as the last line after an exception. Never returns."""
    try:
        os.close(reading)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it
        with open(writing, "wb") as pipe:
            _write_texts(pipe, texts)
    finally:
        os._exit(0)


def _write_texts(pipe: BinaryIO, texts: Iterator[str]) -> None:
    try:
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_AS, _address_space() + MEMORY)
        for text in texts:
            pipe.write(json.dumps(text).encode() + b"\n")
            pipe.flush()  # the kernel kills the child at the CPU limit; the message counts the prompts written before
    except BrokenPipeError:
        return
    except MemoryError:
        _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        pipe.write(json.dumps({"error": f"it needs more than {MEMORY // 2**20} MiB"}).encode() + b"\n")
    except BaseException as error:  # a template can raise anything
        pipe.write(json.dumps({"error": f"{error or type(error).__name__}"[:1000]}).encode() + b"\n")


def _rendered(
    conversations: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]
) -> Iterator[str]:
    template = tokenizer.get_chat_template()
    fixed = _CLOCK + template if "strftime_now" in template else template
    for conversation in conversations:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS)
        text = tokenizer.apply_chat_template(
            list(conversation), chat_template=fixed, tokenize=False, add_generation_prompt=True, **options
        )
        yield str(text)


def _limit(what: int, most: int) -> None:
    """Set the soft limit, as far as the hard one allows."""
    _, hard = resource.getrlimit(what)
    soft = hard if most == resource.RLIM_INFINITY or (hard != resource.RLIM_INFINITY and most > hard) else most
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(what, (soft, hard))


def _address_space() -> int:
    """Bytes that this process has mapped; without /proc a number so large that the limit never applies."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 2**60


Write = Callable[[str], str]

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
) -> list[Rendered]:
    """Lists of problems as prompts; those longer than `max_prompt_tokens` are dropped and counted.

    `template` is `chat`, `r1_zero`, `question_only`, or a UTF-8 text file, relative to `base`, with one `{question}`;
    the line break at the end of the file is removed. `chat` is the tokenizer's template with the variables
    `template_options`: the message `system` where one is given, then the question and `suffix` as the user's message.
    A problem's earlier messages come before its question, and `system` takes the place of their system message. A chat
    template writes its special tokens itself, and gets a fixed date. Prompts of the other templates start with
    BOS where the tokenizer adds one.

    Raises ConfigError for a template that cannot be used, and for options that it would ignore. Raises DataError for a
    chat template that is missing or does not end, for a special token in a question, and where every prompt of a list
    is too long.
    """
    every = [problem for problems in lists for problem in problems]
    _refuse_special_tokens(every, tokenizer)
    questions = [problem.question for problem in every]
    if template == "chat":
        messages = [f"{question}{suffix or ''}" for question in questions]
        texts = chat_texts(messages, tokenizer, system, template_options, [problem.earlier for problem in every])
    else:
        _refuse_ignored(template, system=system, suffix=suffix, template_options=template_options or None)
        _refuse_earlier(template, every)
        texts = list(map(_plain(template, tokenizer, base), questions))
    # Not verbose: transformers would print a warning about a prompt that is longer than the model's context.
    tokens = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    prompts = (_prompt(*each) for each in zip(every, texts, tokens, strict=True))
    return [_fitting(list(islice(prompts, len(problems))), max_prompt_tokens) for problems in lists]


def check_context(*, max_prompt_tokens: int, max_new_tokens: int, context_tokens: int) -> None:
    """Raise ConfigError where the longest prompt and the longest rollout together exceed the model's context."""
    needed = max_prompt_tokens + max_new_tokens
    if needed > context_tokens:
        raise ConfigError(
            f"prompt.max_prompt_tokens ({max_prompt_tokens}) + rollout.max_new_tokens ({max_new_tokens}) = {needed}, "
            f"but the model's context holds {context_tokens} tokens",
            remedy="lower one of them",
            key="rollout.max_new_tokens",
            code="config.combination",
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


def _prompt(problem: Problem, text: str, tokens: Sequence[int]) -> Prompt:
    return Prompt(
        id=problem.id,
        tokens=np.array(tokens, dtype=np.int64),
        text=text,
        answer=problem.answer,
        task=problem.task,
        meta=problem.meta,
    )


def _refuse_ignored(template: str, **given: object) -> None:
    """Raise ConfigError for a key that only a chat template uses."""
    for key, value in given.items():
        if value is not None:
            raise ConfigError(
                f"prompt.{key} is set, and prompt.template = {template!r} does not use it",
                remedy=f"set prompt.template to 'chat', or remove prompt.{key}",
                key=f"prompt.{key}",
                code="config.combination",
            )


def _refuse_earlier(template: str, problems: Iterable[Problem]) -> None:
    """Raise ConfigError for messages before a question, which only a chat template renders."""
    for problem in problems:
        if problem.earlier:
            raise ConfigError(
                f"prompt.template = {template!r} has no place for the {problem.earlier[0][0]} message before the "
                f"question of {problem.where or problem.id}",
                remedy="set prompt.template to 'chat'",
                key="prompt.template",
                code="config.combination",
            )


def _plain(template: str, tokenizer: PreTrainedTokenizerBase, base: Path | None) -> Write:
    before, _, after = _text(template, base).partition("{question}")
    bos = tokenizer.bos_token if _adds_bos(tokenizer) else ""
    return lambda question: f"{bos}{before}{question}{after}"


def _text(template: str, base: Path | None) -> str:
    if template in PLAIN:
        return PLAIN[template]
    file = (base or Path()) / template
    if not file.is_file():
        raise ConfigError(
            f"prompt.template: {template!r} is no template, and there is no file {file}",
            remedy=near_miss(template, [*PLAIN, "chat"]),
            key="prompt.template",
            code="config.value",
        )
    text = file.read_text(encoding="utf-8").removesuffix("\n")
    if text.count("{question}") != 1:
        raise ConfigError(
            f"prompt.template: {file} contains {{question}} {text.count('{question}')} times",
            remedy="write it exactly once",
            key="prompt.template",
            code="config.value",
        )
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
                f"the question of {problem.id} contains {match[0]!r}, a special token of this tokenizer",
                remedy="remove it from the question",
                code="data.malformed",
            )
