"""A group of rollouts as data of the page: texts, verdicts, and numbers per token. Long texts lose their middle.

Of a long run, the columns that identify groups and count their verdicts are read first.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from winnow.errors import DataError
from winnow.state.disk import errors_as
from winnow.state.rollout_files import StepFile, files_in
from winnow_lab.report.html import encoded, plain

IDENTITY = ("step", "prompt_id", "correct")


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The rollouts of a prompt in a step: consecutive rows of its file."""

    step: int
    prompt_id: str
    first: int
    count: int
    verified: int
    correct: int


@dataclass
class LoggedSteps:
    """The rollouts of a run folder. A file is read once, and again if it changes, as the run may be in progress."""

    run: Path
    notes: list[str] = field(default_factory=list)  # on files that cannot be read
    _known: dict[Path, tuple[Any, list[GroupPlace]]] = field(default_factory=dict)

    def steps(self) -> dict[int, list[GroupPlace]]:
        """The groups of every logged step, in step order. A file that cannot be read is omitted, with a note."""
        groups = {}
        self.notes = []
        for step, path in files_in(self.run).items():
            try:
                groups[step] = self._groups(path)
            except DataError as error:
                self.notes.append(f"step {step} is left out: {error}")
        return groups

    def file(self, step: int) -> StepFile:
        """The file of a step. Raises DataError if the step is not logged, or cannot be read."""
        files = files_in(self.run)
        if step not in files:
            raise DataError(
                f"{self.run} contains no rollouts of step {step}", remedy="choose another step", code="data.missing"
            )
        return StepFile(files[step])

    def _groups(self, path: Path) -> list[GroupPlace]:
        remedy = "put the file back, or allow reading it"
        with errors_as(DataError, f"cannot read {path}", remedy, code="data.unreadable"):
            about = path.stat()
        seen = about.st_mtime_ns, about.st_size, about.st_ino
        if path not in self._known or self._known[path][0] != seen:
            self._known[path] = seen, list(places(StepFile(path)))
        return self._known[path][1]


def places(file: StepFile) -> Iterator[GroupPlace]:
    """The groups of a file, in its order. Raises DataError."""
    rows = itertools.chain.from_iterable(file.rows(first, end, IDENTITY) for first, end in file.parts)
    first = 0
    for (step, prompt), same in itertools.groupby(rows, key=lambda row: (row["step"], row["prompt_id"])):
        verdicts = [row["correct"] for row in same]
        verified = [verdict for verdict in verdicts if verdict is not None]
        yield GroupPlace(step, prompt, first, len(verdicts), len(verified), sum(verified))
        first += len(verdicts)


MOST = 16  # tokens that form one character or word together; a character of UTF-8 has at most 4 bytes
UNFINISHED = "\ufffd"  # a tokenizer's output for bytes that are no character, or not yet a whole one


class TokenPieces:
    """The pieces from one tokenizer. The texts of single tokens and pairs are cached."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer)
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, tokens: Sequence[int], text: str) -> list[str] | None:
        """A piece per token. Tokens that end within a character get "", and the token that completes the character gets
        it. Special tokens, which a rollout's text lacks, and tokens after a stop string also get "".

        None if the tokens do not decode to this text.
        """
        ids = [int(token) for token in tokens]
        if not all(0 <= token < self._size for token in ids):
            return None
        pieces: list[str] = []
        at = 0
        while len(pieces) < len(ids):
            some = self._next(ids, len(pieces), text, at)
            if some is None:
                return None
            pieces += some
            at += sum(map(len, some))
        return pieces if at == len(text) else None

    def _next(self, ids: Sequence[int], first: int, text: str, at: int) -> list[str] | None:
        """The pieces of the next token, or of the next few tokens that only together form a text."""
        for end in range(first + 1, min(first + MOST, len(ids)) + 1):
            for written in self._written(ids, first, end):
                whole = not written.endswith(UNFINISHED) or end == len(ids)
                if whole and text.startswith(written, at):
                    return [""] * (end - first - 1) + [written]
                within = whole and at < len(text) and end == first + 1  # a stop string may end the text within a token
                if within and written.startswith(text[at:]):
                    return [text[at:]]
        return [""] if at == len(text) else None

    def _written(self, ids: Sequence[int], first: int, end: int) -> list[str]:
        """The text of tokens alone, and their text after the previous token, where some tokenizers add a space."""
        alone = self._decoded(tuple(ids[first:end]))
        if first == 0:
            return [alone]
        before = self._decoded((ids[first - 1],))
        both = self._decoded(tuple(ids[first - 1 : end]))
        return [alone, both[len(before) :]] if both.startswith(before) else [alone]

    def _decoded(self, ids: tuple[int, ...]) -> str:
        if ids not in self._known:
            text = str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
            if len(ids) > 2:
                return text
            self._known[ids] = text
        return self._known[ids]


PARTS = 10_000  # of a nat: a log-prob of 0 is a probability of 1, to 0.005%

Column = list[Any] | dict[str, Any]


def packed(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns of rollouts that `rollout_data` returned."""
    columns = {name: [rollout[name] for rollout in rollouts] for name in rollouts[0]}
    special = {"pieces": _pieces, "logprobs": _log_probs}
    return {name: special.get(name, _column)(values) for name, values in columns.items()}


def _column(values: list[Any]) -> Column:
    places: dict[Hashable, int] = {}
    at = [places.setdefault(_key(value), len(places)) for value in values]
    if len(places) == 1:
        return {"of": values[:1], "at": 0}
    if len(places) > len(values) // 2:
        return values
    return {"of": [values[at.index(place)] for place in range(len(places))], "at": at}


def _key(value: Any) -> Hashable:
    """A key that is equal for values with equal JSON: it separates True from 1, and equates equal lists."""
    return encoded(value) if isinstance(value, (list, dict)) else (type(value), value)


def _pieces(values: list[Any]) -> Column:
    places: dict[str, int] = {}
    at = [None if of is None else [places.setdefault(piece, len(places)) for piece in of] for of in values]
    return {"of": list(places), "at": at} if any(of is not None for of in values) else {"of": [None], "at": 0}


def _log_probs(values: list[Any]) -> Column:
    return _column([None if of is None else [x if x is None else round(PARTS * x) for x in of] for of in values])


COLUMNS = (
    "step", "prompt_id", "prompt", "answer", "task", "count", "index", "text", "tokens", "logprobs", "length", "finish",
    "reward", "kind", "parts", "extracted", "cause", "detail", "seconds", "advantage", "advantages", "values", "weight",
    "keep", "reason", "trainable", "turns",
)  # fmt: skip
PER_TOKEN = ("logprobs", "advantages", "values")
UNKNOWN = "unknown"  # a verdict that another trainer's log lacks
NAME = 200  # characters of a prompt's id, a task's name

Row = Mapping[str, Any]


def group_data(file: StepFile, place: GroupPlace, pieces: TokenPieces | None, *, longest: int) -> dict[str, Any]:
    """The group with its rollouts; texts have at most about `longest` characters. Raises DataError."""
    rows = file.rows(place.first, place.first + place.count, COLUMNS)
    of = rows[0]
    answer = of["answer"] if isinstance(of["answer"], str) else json.dumps(plain(of["answer"]), ensure_ascii=False)
    rewards = [row["reward"] for row in rows if not math.isnan(row["reward"])]
    return {
        "step": of["step"],
        "prompt_id": cut(of["prompt_id"], NAME),
        "prompt": cut(of["prompt"], longest),
        "answer": cut(answer, longest),
        "task": cut(of["task"], NAME),
        "count": of["count"],
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "rollouts": packed([rollout_data(row, pieces, longest=longest) for row in rows]),
    }


def rollout_data(row: Row, pieces: TokenPieces | None, *, longest: int) -> dict[str, Any]:
    """One rollout from its row of the log. A rollout that the selectors did not keep has no advantage."""
    extracted = row["extracted"]
    row = row if row["keep"] else {**row, "advantage": None, "advantages": None}
    return {
        "index": row["index"],
        "length": row["length"],
        "finish": row["finish"],
        "kind": row["kind"] or UNKNOWN,
        "reward": row["reward"],
        "parts": row["parts"],
        "extracted": None if extracted is None else cut(extracted, longest),
        "cause": row["cause"],
        "detail": cut(row["detail"], longest),
        "seconds": hundredths(row["seconds"]),
        "advantage": digits(
            row["advantage"] if row["advantages"] is None else _mean(row["advantages"], row["trainable"])
        ),
        "kept": row["keep"],
        "trained": row["reason"] == "trained",
        "reason": cut(row["reason"], NAME),
        "weight": digits(row["weight"]),
        **(_text if row["turns"] is None else _turns)(row, pieces, longest),
    }


def _turns(row: Row, pieces: TokenPieces | None, longest: int) -> dict[str, Any]:
    """The turns of policy and environment. The policy's are pieces with their numbers. Each of the environment's is one
    piece without numbers, and `environment` has their places. Where the tokens have no pieces, or too many characters,
    all turns are one text, each below the name of its writer.
    """
    split, tokens = _pieces_of_turns(row, pieces) if pieces and row["tokens"] is not None else ([], [])
    if not split or sum(max(1, len(piece)) for piece in split) > longest:
        names = ("policy", "environment")
        return _whole("\n".join(f"[{names[place % 2]}]\n{turn}" for place, turn in enumerate(row["turns"])), longest)
    known = {name: None if row[name] is None else row[name].tolist() for name in PER_TOKEN}
    numbers = {
        name: None if of is None else [None if token is None else rounded(of[token]) for token in tokens]
        for name, of in known.items()
    }
    places = [place for place, token in enumerate(tokens) if token is None]
    return {"text": None, "left_out": 0, "pieces": split, "environment": places, **numbers}


def _pieces_of_turns(row: Row, pieces: TokenPieces) -> tuple[list[str], list[int | None]]:
    """The pieces of all turns, and for each the place of its token, None for a text of the environment. Both are empty
    where a turn of the policy has no tokens, or other ones than its text.
    """
    sampled = np.concatenate([[False], row["trainable"], [False]])
    ends = np.flatnonzero(np.diff(sampled)).reshape(-1, 2)  # [policy's turns, 2] first token, and one after the last
    replies, texts = row["turns"][::2], row["turns"][1::2]
    split, tokens = list[str](), list[int | None]()
    for place, (first, end) in enumerate(ends.tolist()):
        own = pieces(row["tokens"][first:end], replies[place]) if len(ends) == len(replies) else None
        if own is None:
            return [], []
        split += [*own, *texts[place : place + 1]]
        tokens += [*range(first, end), *[None for _ in texts[place : place + 1]]]
    return split, tokens


def _whole(text: str | None, longest: int) -> dict[str, Any]:
    shown = None if text is None else cut(text, longest)
    left_out = len(text) - longest // 2 * 2 if text is not None and len(text) > longest else 0
    return {"text": shown, "left_out": left_out, "pieces": None, "environment": None, **dict.fromkeys(PER_TOKEN)}


def _text(row: Row, pieces: TokenPieces | None, longest: int) -> dict[str, Any]:
    """The text as pieces with their numbers, or, where there are no pieces, as one text without numbers."""
    text = row["text"]
    split = pieces(row["tokens"], text) if pieces and text is not None and row["tokens"] is not None else None
    if split is None:
        return _whole(text, longest)
    head, tail = _ends(split, longest)
    left_out = sum(map(len, split[head : len(split) - tail]))
    if not left_out:
        head, tail = len(split), 0
    end, note = len(split) - tail, [_left_out(left_out)] * bool(left_out)
    numbers = {name: None if row[name] is None else row[name].tolist() for name in PER_TOKEN}
    shown_numbers = {
        name: None if of is None else [*map(rounded, of[:head]), *[None for _ in note], *map(rounded, of[end:])]
        for name, of in numbers.items()
    }
    pieces_shown = [*split[:head], *note, *split[end:]]
    return {"text": None, "left_out": left_out, "pieces": pieces_shown, "environment": None, **shown_numbers}


def _ends(pieces: Sequence[str], longest: int) -> tuple[int, int]:
    """The numbers of tokens that are shown at the beginning and at the end of a rollout; all of a short one.

    A token without text counts as one character, so that at most `longest` tokens are shown.
    """
    sizes = [max(1, len(piece)) for piece in pieces]
    if sum(sizes) <= longest:
        return len(pieces), 0
    head, tail = (np.searchsorted(np.cumsum(of), longest // 2, side="right") for of in (sizes, sizes[::-1]))
    return int(head), int(tail)


def cut(text: str, longest: int) -> str:
    """The text; if it is longer than `longest`, a note replaces its middle."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}{_left_out(len(text) - 2 * half)}{text[len(text) - half :]}"


def _left_out(characters: int) -> str:
    return f" [... {characters:,} characters left out ...] "


def rounded(number: float) -> float | None:
    """The number to three significant digits; None if it is not finite."""
    return float(f"{number:.3g}") if math.isfinite(number) else None


def digits(number: float | None) -> float | None:
    """The number to six significant digits, the precision of float32; None if it is not finite."""
    return float(f"{number:.6g}") if number is not None and math.isfinite(number) else None


def hundredths(seconds: float) -> float | None:
    """The seconds to a hundredth, as the page shows nothing shorter; None if they are not finite."""
    return round(seconds, 2) if math.isfinite(seconds) else None


def _mean(numbers: Any, own: Any) -> float | None:
    """The mean over the tokens that the policy sampled, if they are logged."""
    numbers = numbers if own is None else numbers[own]
    return float(numbers.mean()) if len(numbers) else None
