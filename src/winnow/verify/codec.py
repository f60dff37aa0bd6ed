"""Prompts, rollouts and outcomes as JSON and back, exactly: a reward gets the same in a worker as in the trainer.

Arrays are sent as base64 of their bytes, and token ids as 32 bits each. If tokens were not saved, their number is
sent, or null if that is unknown. Log-probs, two thirds of a rollout's bytes, are sent only if a reward reads them.
NaN and infinities are written the way Python's json reads them.

A prompt is encoded once for all of its rollouts.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import fields

import numpy as np

from winnow.errors import ConfigError, DataError, WinnowError
from winnow.records import IntArray, Outcome, Prompt, Reply, Rollout, ToolAnswer, packed, unpacked
from winnow.rewards.compose import NOT_READ, NotRead, unsaved_tokens
from winnow.rewards.outcomes import check_outcome, failure
from winnow.verify.failures import SOCKET_HINT

REPLY = b'{"reply":'  # with which the line of an environment's reply begins
_SHOWN = 80  # characters
_OUTCOME_FIELDS = tuple(field.name for field in fields(Outcome))
_dump = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def encode_prompt(prompt: Prompt) -> bytes:
    """Raises DataError when the prompt's answer or meta is not JSON."""
    fields = {
        "id": prompt.id,
        "tokens": _pack_tokens(prompt.tokens),
        "text": prompt.text,
        "answer": prompt.answer,
        "task": prompt.task,
        "meta": prompt.meta,
    }
    try:
        return _dump(fields).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"prompt {prompt.id!r}: its answer or meta is not JSON ({error}), so it cannot be sent to a worker",
            remedy="use only texts, numbers, lists and tables in the task's problems",
            code="data.malformed",
        ) from error


def encode_task(prompt: bytes, rollout: Rollout, *, logprobs: bool) -> bytes:
    """A task, made from the result of `encode_prompt`; with or without the rollout's log-probs."""
    fields = {
        "index": int(rollout.index),
        "tokens": _pack_tokens(rollout.tokens),
        "logprobs": packed(rollout.logprobs, "<f8") if logprobs else None,
        "text": rollout.text,
        "finish": rollout.finish,
        "version": int(rollout.version),
        "trainable": None if rollout.trainable is None else packed(rollout.trainable, "?"),
        "turns": rollout.turns,
    }
    return b'{"prompt":%b,"rollout":%b}' % (prompt, _dump(fields).encode("ascii"))


def decode_task(line: bytes) -> tuple[Prompt, Rollout]:
    """The prompt and the rollout of a task; log-probs that were not sent are `NOT_READ`."""
    task = json.loads(line)
    prompt, rollout = task["prompt"], task["rollout"]
    prompt["tokens"] = _unpack_tokens(prompt["tokens"])
    rollout["tokens"] = _unpack_tokens(rollout["tokens"])
    rollout["logprobs"] = NOT_READ if rollout["logprobs"] is None else unpacked(rollout["logprobs"], "<f8")
    if rollout["trainable"] is not None:
        rollout["trainable"] = unpacked(rollout["trainable"], "?").astype(np.bool_)
    if rollout["turns"] is not None:
        rollout["turns"] = tuple(rollout["turns"])
    return Prompt(**prompt), Rollout(**rollout)


def encode_verdict(verdict: Outcome | Reply) -> bytes:
    """An outcome or an environment's reply as JSON. Its text has no lone surrogate, which JSON would represent."""
    if isinstance(verdict, Reply):
        answers = [[answer.text, answer.name, answer.call_id] for answer in verdict.answers]
        return _dump({"reply": verdict.text, "seconds": verdict.seconds, "answers": answers}).encode("ascii")
    return encode_outcome(verdict)


def decode_verdict(line: bytes) -> Outcome | Reply:
    """The outcome or the reply in a line. Any other line is failed(crash), as in `decode_outcome`."""
    if not line.startswith(REPLY):
        return decode_outcome(line)
    try:
        fields = json.loads(line)
        text, seconds, answers = fields["reply"], float(fields["seconds"]), [tuple(row) for row in fields["answers"]]
        if not all(isinstance(part, str) for part in (text, *(part for row in answers for part in row))):
            raise TypeError("a reply and its answers are texts")
        made = tuple(ToolAnswer(text=answer, name=name, call_id=call_id) for answer, name, call_id in answers)
    except (TypeError, ValueError, KeyError, RecursionError):
        return decode_outcome(b"")
    return Reply(text=text, seconds=seconds, answers=made)


def encode_outcome(outcome: Outcome) -> bytes:
    """An outcome as JSON; one with fields that JSON cannot represent becomes failed(malformed)."""
    try:
        return _dump({name: getattr(outcome, name) for name in _OUTCOME_FIELDS}).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        return encode_outcome(failure("malformed", f"the reward's outcome is not plain data: {error}"))


def decode_outcome(line: bytes) -> Outcome:
    """The outcome in a line. Any other line is failed(crash), because the reward wrote into its worker's socket."""
    try:
        outcome = Outcome(**json.loads(line))
        check_outcome(outcome)
        if outcome.failed and not (math.isnan(outcome.reward) and outcome.correct is None):
            raise ValueError("a failure has no reward")
    except (TypeError, ValueError, RecursionError) as error:
        sent = line[:_SHOWN].decode("ascii", "backslashreplace")
        return failure("crash", f"its worker sent something other than an outcome ({error}), {sent!r}; {SOCKET_HINT}")
    return outcome


def encode_error(error: WinnowError) -> bytes:
    """The error that stopped the import of a reward, as JSON."""
    return _dump([error.problem, error.remedy, error.key, error.code]).encode("ascii")


def decode_error(line: bytes) -> ConfigError:
    """The error for which the supervisor could not import the reward."""
    try:
        problem, remedy, key, code = parts = json.loads(line)
        texts = all(isinstance(part, str) for part in (problem, remedy, code)) and isinstance(key, str | None)
        if not (texts and isinstance(parts, list)):
            raise TypeError("an error has another form")
        return ConfigError(problem, remedy=remedy, key=key, code=code)
    except (TypeError, ValueError, RecursionError):
        return ConfigError(
            "the reward's file wrote into the socket of its process while it was imported",
            remedy=SOCKET_HINT,
            code="config.user_code",
        )


def _pack_tokens(tokens: IntArray | NotRead) -> str | int | None:
    return tokens.length if isinstance(tokens, NotRead) else packed(tokens, "<i4")


def _unpack_tokens(tokens: str | int | None) -> IntArray:
    return unpacked(tokens, "<i4") if isinstance(tokens, str) else unsaved_tokens(tokens)


class EncodedPrompts:
    """A cache of `most` bytes of the most recently used prompts, or of the last one alone if it is larger."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        # By id(prompt), which is unique because the cache keeps the prompt alive
        self._cached: OrderedDict[int, tuple[Prompt, bytes]] = OrderedDict()

    def __call__(self, prompt: Prompt) -> bytes:
        """The encoded prompt. Raises DataError when its answer or meta is not JSON."""
        cached = self._cached.get(id(prompt))
        if cached is not None:
            self._cached.move_to_end(id(prompt))
            return cached[1]
        encoded = encode_prompt(prompt)
        self._cached[id(prompt)] = prompt, encoded
        self._bytes += len(encoded)
        while self._bytes > self._most and len(self._cached) > 1:
            _, (_, oldest) = self._cached.popitem(last=False)
            self._bytes -= len(oldest)
        return encoded
