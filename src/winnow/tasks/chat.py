"""Chat templates: they render a conversation as text, in which every message is.

A tokenizer's chat template comes with a model and is a program: it may loop for ever, or fill the memory. It is
compiled and rendered in a child process, whose CPU time and memory the kernel limits; the trainer never runs it. The
child is a fork, because importing transformers again would take seconds; it uses neither torch nor a device.

Some templates read the content of a message as a text, others as a list of parts, and write nothing for the other
form. So a short conversation is rendered first, in both forms if necessary, and every prompt is searched for its
messages.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import html
import inspect
import itertools
import json
import os
import re
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from winnow.control_groups import limit_resource, mapped_memory
from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import Message
from winnow.tasks.messages import prompt_messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Replaces the clock of a chat template by a fixed date (Llama 3's default), so that a run that is resumed on another
# day has the same prompts. The + keeps the white space that follows.
_CLOCK = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro +%}"

CPU_SECONDS = 30  # limit per prompt; real templates take less than a thousandth
MEMORY = 2**30  # limit in bytes, in addition to the trainer's memory
STILL_SECONDS = 30.0  # without output and CPU time: the child waits for a lock that another thread held at the fork
FORKS = 3

SYSTEM, QUESTION = "winnow system message", "winnow first question"  # the messages of the first conversation

Tools = Sequence[Mapping[str, Any]]  # JSON schemas of the functions that the policy may call
Conversation = Sequence[Mapping[str, str]]  # messages, each with the keys "role" and "content", and those of a tool

# The forms in which templates write a content, besides the text itself: inside quotes in JSON, and escaped for HTML.
ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),  # jinja's filter `escape`
)
_AS_DATA = re.compile(r"""(['"])type\1: (['"])text\2""")  # a list of parts that is itself in a text
_INSTEAD = "set prompt.template to r1_zero, question_only or a file, or correct the template"


def chat_texts(
    questions: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    system: str | None,
    options: Mapping[str, Any],
    earlier: Iterable[Sequence[Message]] = itertools.repeat(()),
    tools: Tools = (),
) -> list[str]:
    """The text of every question, after its `earlier` messages; `options` are variables of the template. The message
    `system`, if given, comes first, in the place of a system message among the earlier ones. A template that has no
    place for the schemas `tools` omits them (`takes_tools`).

    Raises DataError for a tokenizer without a chat template, and for a template that fails, exceeds a limit
    (`CPU_SECONDS`, `MEMORY`), or omits or changes a message of the user or of the system. Raises ConfigError for an
    option that the template does not have.
    """
    conversations = [
        prompt_messages(before, question, system) for question, before in zip(questions, earlier, strict=False)
    ]
    has_system = any(conversation[0]["role"] == "system" for conversation in conversations)
    parts = takes_parts(tokenizer, options, system=has_system)
    texts = conversation_texts(conversations, tokenizer, options, parts=parts, tools=tools)
    for conversation, text in zip(conversations, texts, strict=True):
        for message in conversation:
            role, content = message["role"], message["content"]
            if role == "assistant" or is_written(content, text):  # templates leave out the reasoning of a reply
                continue
            if role == "system":
                raise _no_system("changes it")
            raise _unfit(f"the tokenizer's chat template omits or changes the question {content[:60]!r}", _INSTEAD)
    return texts


def takes_parts(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], *, system: bool) -> bool:
    """Whether the template reads a message's content as a list of parts, `[{"type": "text", "text": ...}]`, and writes
    nothing for a text. With `system`, for a conversation with a system message.

    Raises DataError for a template that writes a message in neither form, and as `conversation_texts`.
    """
    contents = {"system": SYSTEM, "user": QUESTION} if system else {"user": QUESTION}
    conversation = [{"role": role, "content": content} for role, content in contents.items()]
    refusals = list[str | None]()
    for parts in (False, True):
        texts, refusal = _attempt([conversation], tokenizer, options, parts=parts)
        text = texts[0] if refusal is None else ""
        if all(is_written(content, text) for content in contents.values()) and not _AS_DATA.search(text):
            return parts
        refusals.append(refusal)
    if system:
        takes_parts(tokenizer, options, system=False)  # raises where the question is missing too
        raise _no_system(f"refuses it: {refusals[0]}" if refusals[0] else "omits it")
    if refusals[0] is not None:
        raise _refused(refusals[0])
    raise _unfit("the tokenizer's chat template omits the question, as a text and as a list of parts", _INSTEAD)


def takes_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template reads the schemas of tools. Raises DataError for one that cannot be read."""
    templates = tokenizer.chat_template
    return "tool_use" in templates if isinstance(templates, dict) else "tools" in _names(tokenizer)


def is_written(content: str, text: str) -> bool:
    """Whether a rendered text contains a message's content, with any white space, and possibly escaped (`ESCAPES`)."""
    content = content.strip()
    if content in text:
        return True
    squeezed = "".join(text.split())
    return any("".join(form.split()) in squeezed for form in (content, *(escape(content) for escape in ESCAPES)))


def conversation_texts(
    conversations: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    *,
    parts: bool = False,
    tools: Tools = (),
) -> list[str]:
    """The text of every conversation, up to the next message of the assistant.

    `options` and `tools` are as in `chat_texts`.

    With `parts`, every content is given as a list of one part. Raises DataError if the template is missing, fails or
    exceeds a limit, and ConfigError as `chat_texts`.
    """
    texts, refusal = _attempt(conversations, tokenizer, options, parts=parts, tools=tools)
    if refusal is not None:
        *earlier, last = conversations[len(texts)]
        where = f"{refusal} (in the conversation that ends with {last['content'][:60]!r})"
        raise _refused(where, "correct or remove that row, or correct the template" if earlier else _INSTEAD)
    return texts


def _attempt(
    conversations: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    *,
    parts: bool,
    tools: Tools = (),
) -> tuple[list[str], str | None]:
    """The texts, and None; or the texts before a conversation that the template refused, and its message."""
    if not tokenizer.chat_template:
        raise _unfit(
            "prompt.template is 'chat', but the model's tokenizer has no chat template",
            "set it to r1_zero, question_only or a file",
        )
    _check_options(tokenizer, options)
    texts = _rendered(conversations, tokenizer, options, parts, tools)  # lazy: nothing is compiled in this process
    for _ in range(FORKS):
        written, status = _in_child(texts)
        if written is not None:
            break
    else:
        raise _unfit(
            f"the process that renders the tokenizer's chat template stood still for {STILL_SECONDS:.0f} seconds",
            "train in a program without other threads, such as `winnow train`",
        )
    replies = [json.loads(line) for line in written.split(b"\n")[:-1]]
    if replies and isinstance(replies[-1], dict):
        return replies[:-1], str(replies[-1]["error"])
    if len(replies) == len(conversations):
        return replies, None
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise _unfit(
            f"the tokenizer's chat template does not end: prompt {len(replies) + 1} took more than {CPU_SECONDS} "
            f"seconds of CPU time",
            _INSTEAD,
        )
    raise _unfit(f"the process that renders the tokenizer's chat template exited early ({status=})", _INSTEAD)


def _in_child(texts: Iterator[str]) -> tuple[bytes | None, int]:
    """What a fork of this process has written, or None if it stood still; and its wait status."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _child(reading, writing, texts)
    os.close(writing)
    written, computed, still = bytearray(), -1, False
    try:
        with open(reading, "rb", buffering=0) as pipe:
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            while not still:
                if not poll.poll(1000 * STILL_SECONDS):
                    before, computed = computed, _computed(child)
                    still = computed == before
                elif piece := pipe.read(2**16):
                    written += piece
                else:
                    break
    finally:
        status = _end(child)
    return None if still else bytes(written), status


def _computed(child: int) -> int:
    """Ticks of CPU time that a process has used; without /proc a number that is never the same."""
    try:
        fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return time.monotonic_ns()
    return int(fields[11]) + int(fields[12])


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


def _refused(message: str, remedy: str = _INSTEAD) -> DataError:
    return _unfit(f"the tokenizer's chat template refused the messages: {message}", remedy)


def _no_system(what: str) -> DataError:
    return _unfit(
        f"the tokenizer's chat template has no place for a system message: it {what}",
        "remove prompt.system, or the system messages of the problems; prompt.suffix adds a text to the question",
        key="prompt.system",
    )


def _unfit(problem: str, remedy: str, *, key: str = "prompt.template") -> DataError:
    return DataError(problem, remedy=remedy, key=key, code="data.unfit_model")


def _child(reading: int, writing: int, texts: Iterator[str]) -> None:
    """Write a line of JSON per text, and {"error": ...} as the last line after an exception. Never returns."""
    try:
        gc.disable()  # a finalizer of the trainer's garbage may wait for one of its threads, which do not exist here
        os.close(reading)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it
        with open(writing, "wb") as pipe:
            _write_texts(pipe, texts)
    finally:
        os._exit(0)


def _write_texts(pipe: BinaryIO, texts: Iterator[str]) -> None:
    try:
        limit_resource(resource.RLIMIT_CORE, 0)
        limit_resource(resource.RLIMIT_AS, (mapped_memory()[0] or 2**60) + MEMORY)  # without /proc it never applies
        for text in texts:
            pipe.write(json.dumps(text).encode() + b"\n")
            pipe.flush()  # the kernel kills the child at the CPU limit; the message counts the prompts written before
    except BrokenPipeError:
        return
    except MemoryError:
        limit_resource(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        pipe.write(json.dumps({"error": f"it needs more than {MEMORY // 2**20} MiB"}).encode() + b"\n")
    except BaseException as error:  # a template can raise anything
        pipe.write(json.dumps({"error": (str(error) or type(error).__name__)[:1000]}).encode() + b"\n")


def _rendered(
    conversations: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    parts: bool,
    tools: Tools,
) -> Iterator[str]:
    given: Any = [dict(tool) for tool in tools] or None  # an empty list would be described by some templates
    template = tokenizer.get_chat_template(tools=given)
    fixed = _CLOCK + template if "strftime_now" in template else template
    for conversation in conversations:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit_resource(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS)
        messages = [
            {**message, "content": [{"type": "text", "text": message["content"]}] if parts else message["content"]}
            for message in conversation
        ]
        text = tokenizer.apply_chat_template(
            messages, tools=given, chat_template=fixed, tokenize=False, add_generation_prompt=True, **options
        )
        yield str(text)
