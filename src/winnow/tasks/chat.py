"""Renders questions with a tokenizer's chat template.

A template comes with a model and is a program: it may loop for ever, or fill the memory. It is compiled and rendered in
a child process, whose CPU time and memory the kernel limits; the trainer never runs it. The child is a fork, because
importing transformers again would take seconds; it uses neither torch nor a device.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import itertools
import json
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from winnow.errors import ConfigError, DataError, near_miss

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Replaces the clock of a chat template by a fixed date (Llama 3's default), so that a run that is resumed on another
# day has the same prompts. The + keeps the white space that follows.
_CLOCK = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro +%}"

CPU_SECONDS = 30  # limit per prompt; real templates take less than a thousandth
MEMORY = 2**30  # limit in bytes, in addition to the trainer's memory


def chat_texts(
    questions: Sequence[str], tokenizer: PreTrainedTokenizerBase, system: str | None, options: Mapping[str, Any]
) -> list[str]:
    """The text of every question, with the message `system` before it where one is given; `options` are variables of
    the template.

    Raises DataError for a tokenizer without a chat template, and for a template that fails, exceeds a limit
    (`CPU_SECONDS`, `MEMORY`) or omits `system`. Raises ConfigError for an option that the template does not have.
    """
    if not tokenizer.chat_template:
        raise _unfit(
            "prompt.template is 'chat', but the model's tokenizer has no chat template",
            "set it to r1_zero, question_only or a file",
        )
    _check_options(tokenizer, options)
    texts = _rendered(questions, tokenizer, system, options)  # lazy: nothing is compiled in this process
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
    if len(replies) != len(questions) or not all(isinstance(text, str) for text in replies):
        raise _failure(replies, status, system)
    if system is not None and not all(system.strip() in text for text in replies):
        raise _unfit(
            "the tokenizer's chat template has no place for a system message",
            "remove prompt.system",
            key="prompt.system",
        )
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


def _failure(replies: Sequence[Any], status: int, system: str | None) -> DataError:
    """The error where the child did not render every question."""
    instead = "set prompt.template to r1_zero, question_only or a file, or correct the template"
    if replies and isinstance(replies[-1], dict):
        without = "remove prompt.system if the model supports no system message"
        return _unfit(
            f"the tokenizer's chat template refused the messages: {replies[-1]['error']}",
            instead if system is None else without,
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
    questions: Sequence[str], tokenizer: PreTrainedTokenizerBase, system: str | None, options: Mapping[str, Any]
) -> Iterator[str]:
    template = tokenizer.get_chat_template()
    fixed = _CLOCK + template if "strftime_now" in template else template
    before = [] if system is None else [{"role": "system", "content": system}]
    for question in questions:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS)
        messages = [*before, {"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(
            messages, chat_template=fixed, tokenize=False, add_generation_prompt=True, **options
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
