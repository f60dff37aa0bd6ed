"""The tokens between two turns of the policy: an environment's text, or its answers to tool calls, in the form of the
tokenizer's chat template.

A template is rendered once, with marks in the places of the texts. What it writes after the mark of the assistant, up
to the next generation prompt, separates two turns. Tokens that the policy sampled are never rendered or tokenized
again, because a template may change earlier turns: several remove the reasoning of all turns but the last.

Answers to tool calls are messages of the role "tool", one for each call. Their form is found by rendering two of them,
and is used if it also gives what the template renders for one and for three. Otherwise the template has no such role,
and the answers are a message of the user.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.errors import DataError
from winnow.records import IntArray, Reply, ToolAnswer
from winnow.tasks.chat import ESCAPES, QUESTION, SYSTEM, Tools, conversation_texts, takes_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POLICY, ENVIRONMENT = "winnow policy turn", "winnow environment turn"  # marks
TOOL = "winnow_tool"  # mark
_TOOL = {
    "type": "function",
    "function": {"name": TOOL, "description": "-", "parameters": {"type": "object", "properties": {}, "required": []}},
}
_FIELD = re.compile(r"winnow(text|name|id)(\d)")  # marks of an answer; some templates need ids of nine characters
_BLANK = '\n winnow "blank" é\n'  # a text that shows what a template does to white space, quotes and accents

Write = Callable[[str], str]  # how a template writes a content
Piece = IntArray | str  # tokens of the template, or a text to be tokenized
WRITINGS: tuple[Write, ...] = (lambda text: text, lambda text: text.strip(), *ESCAPES)


@dataclass(frozen=True)
class AnswerForm:
    """How a template writes the answers to tool calls: `before`, the answers with `between` in each gap, `after`.

    An answer alternates between the names of fields, "text", "name" and "id", and strings of the template.
    """

    before: str
    answer: tuple[str, ...]  # beginning and ending with a field
    between: str
    after: str
    write: Write  # the field `text`

    @classmethod
    def of(cls, rendered: str, write: Write) -> AnswerForm | None:
        """The form of two rendered answers; None if they are not written alike, one after the other."""
        pieces = _FIELD.split(rendered)  # text, (field, number, text), ...
        literals, fields, numbers = pieces[::3], pieces[1::3], pieces[2::3]
        half = len(fields) // 2
        if numbers != ["1"] * half + ["2"] * half or fields[:half].count("text") != 1:
            return None
        first, second = (
            tuple(part for at in range(start, start + half) for part in (fields[at], literals[at + 1]))[:-1]
            for start in (0, half)
        )
        return cls(literals[0], first, literals[half], literals[-1], write) if first == second else None

    def pieces(self, answers: Sequence[ToolAnswer]) -> list[tuple[bool, str]]:
        """(whether it is the template's, text) of every piece of a turn."""
        turn = [(True, self.before)]
        for place, answer in enumerate(answers):
            values = {"text": self.write(answer.text), "name": answer.name, "id": answer.call_id}
            turn += [(True, self.between)] * bool(place)
            turn += [(bool(odd % 2), part if odd % 2 else values[part]) for odd, part in enumerate(self.answer)]
        return [*turn, (True, self.after)]

    def text(self, answers: Sequence[ToolAnswer]) -> str:
        """What the template renders for these answers."""
        return "".join(text for _, text in self.pieces(answers))


@dataclass(frozen=True)
class Dialogue:
    """Makes the tokens of an environment's turn: `before`, the text, and `after`, up to the policy's next token."""

    tokenizer: PreTrainedTokenizerBase
    before: IntArray  # the end of the policy's turn, and the start of the environment's
    after: IntArray  # the end of the environment's turn, and the start of the policy's next
    write: Write = WRITINGS[0]  # the environment's text
    answers: AnswerForm | None = None  # of tool calls; None for a template without the role "tool"
    common: int | None = None  # tokens of `before` that answers to tool calls begin with too; None: all
    ends: Collection[int] = ()  # tokens that end a turn of the policy

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        tools: bool = False,
        ends: Collection[int] = (),
    ) -> Dialogue:
        """The dialogue of a tokenizer's chat template, with its variables `options`; `tools`: prompts describe tools;
        `ends`: all tokens that end a turn of the policy.

        Raises DataError for a template that is missing, fails, or does not contain the texts of all turns in order.
        """
        rendering = _Rendering.of(tokenizer, system, options or {}, tools=tools)
        texts = rendering.after_policy([[{"role": "user", "content": text}] for text in (ENVIRONMENT, _BLANK)])
        before, mark, after = texts[0].partition(ENVIRONMENT)
        if not mark:
            raise DataError(
                "the tokenizer's chat template does not render a question, an answer and a second message in order",
                remedy="use a model whose template does, or a reward instead of an environment",
                key="environment",
                code="data.unfit_model",
            )
        write = next((w for w in WRITINGS if texts[1] == f"{before}{w(_BLANK)}{after}"), WRITINGS[0])
        start, end = (np.array(tokens, dtype=np.int64) for tokens in _encode(tokenizer, [before, after]))
        answers = _answer_form(rendering)
        if answers is None:
            return cls(tokenizer, start, end, write, ends=ends)
        (other,) = _encode(tokenizer, [answers.before])
        same = [mine == theirs for mine, theirs in zip(start.tolist(), other, strict=False)]
        return cls(tokenizer, start, end, write, answers, [*same, False].index(False), ends)

    def opening(self, last: int) -> IntArray:
        """The tokens with which every turn of the environment begins, after the policy's token `last`.

        If `last` has ended the policy's turn, the template's token that ends one does not follow it.
        """
        return self._after(self.before[: self.common], last)

    def tokens(self, turn: str | Reply, *, last: int) -> IntArray:
        """The tokens of an environment's turn after the policy's token `last`."""
        return self.all_tokens([turn], last=[last])[0]

    def all_tokens(self, turns: Sequence[str | Reply], *, last: Sequence[int]) -> list[IntArray]:
        """`tokens` of several turns, which takes less time than one by one.

        The names of special tokens in a text are split like any other text, so that an environment cannot write a
        control token.
        """
        pieces = [self._pieces(turn) for turn in turns]
        texts = [piece for turn in pieces for piece in turn if isinstance(piece, str)]
        if not texts:
            return []
        encoded = iter(_encode(self.tokenizer, texts, split_special_tokens=True))
        whole = [
            np.concatenate([np.array(next(encoded), np.int64) if isinstance(piece, str) else piece for piece in turn])
            for turn in pieces
        ]
        return [self._after(tokens, token) for tokens, token in zip(whole, last, strict=True)]

    def _pieces(self, turn: str | Reply) -> list[Piece]:
        if isinstance(turn, str) or not turn.answers or self.answers is None:
            return [self.before, self.write(turn if isinstance(turn, str) else turn.text), self.after]
        pieces = self.answers.pieces(turn.answers)
        own = [text for is_own, text in pieces if is_own]
        encoded = iter(_encode(self.tokenizer, own))
        return [np.array(next(encoded), dtype=np.int64) if is_own else text for is_own, text in pieces]

    def _after(self, tokens: IntArray, last: int) -> IntArray:
        """The tokens without their first if that ends a turn, and `last` has: Llama 3 has two tokens that do."""
        ended = len(tokens) and (tokens[0] == last or {int(tokens[0]), last} <= set(self.ends))
        return tokens[1:] if ended else tokens


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **how: bool) -> list[list[int]]:
    """The tokens of texts that follow other tokens: without the space that SentencePiece writes before a text."""
    first = tokenizer("\n", add_special_tokens=False)["input_ids"]
    spaced = bool(first) and tokenizer.convert_ids_to_tokens(first)[0].startswith("▁")
    texts = [f"\n{text}" if spaced else text for text in texts]
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False, **how)["input_ids"]
    return [tokens[len(first) if spaced else 0 :] for tokens in encoded]  # a line break is a token of its own there


@dataclass(frozen=True)
class _Rendering:
    """Renders what follows a turn of the policy."""

    tokenizer: PreTrainedTokenizerBase
    options: Mapping[str, Any]
    system: str | None
    parts: bool
    tools: Tools = ()

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, system: str | None, options: Mapping[str, Any], *, tools: bool
    ) -> _Rendering:
        """With the system message and a tool, which may change later turns; without what would be repeated in each."""
        parts, of_tools = takes_parts(tokenizer, options, system=system is not None), [_TOOL] if tools else []
        if system is not None or tools:
            marked = cls(tokenizer, options, None if system is None else SYSTEM, parts, of_tools)
            (text,) = marked.after_policy([[{"role": "user", "content": ENVIRONMENT}]])
            system = None if SYSTEM in text else system
            of_tools = [] if TOOL in text else of_tools
        return cls(tokenizer, options, system, parts, of_tools)

    def after_policy(self, turns: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
        """The text after the policy's turn, for each sequence of messages that follows it."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        first += [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": POLICY}]
        conversations = [[*first, *messages] for messages in turns]
        texts = conversation_texts(conversations, self.tokenizer, self.options, parts=self.parts, tools=self.tools)
        return [text.partition(POLICY)[2] for text in texts]


def _answer_form(rendering: _Rendering) -> AnswerForm | None:
    """The form of answers to tool calls; None for a template that refuses the role "tool" or omits an answer."""

    answers = [ToolAnswer(text=f"winnowtext{n}", name=f"winnowname{n}", call_id=f"winnowid{n}") for n in (1, 2, 3)]
    turns = [answers[:1], answers[:2], answers, [dataclasses.replace(answers[0], text=_BLANK)]]
    try:
        one, two, three, shown = rendering.after_policy([[_message(each) for each in turn] for turn in turns])
    except DataError:
        return None
    for write in WRITINGS:
        form = AnswerForm.of(two, write)
        if form and [form.text(turn) for turn in (*turns[:1], *turns[2:])] == [one, three, shown]:
            return form
    return None


def _message(answer: ToolAnswer) -> dict[str, str]:
    return {"role": "tool", "content": answer.text, "name": answer.name, "tool_call_id": answer.call_id}
