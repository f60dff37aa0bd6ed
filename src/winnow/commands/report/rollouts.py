"""A group of rollouts as data of the page: texts, verdicts, and numbers per token. Long texts lose their middle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.commands.report.packed_rollouts import packed
from winnow.commands.report.step_groups import GroupPlace
from winnow.commands.report.strict_json import plain
from winnow.commands.report.token_pieces import TokenPieces
from winnow.state.rollout_files import StepFile

COLUMNS = (
    "step", "prompt_id", "prompt", "answer", "task", "count", "index", "text", "tokens", "logprobs", "length", "finish",
    "reward", "kind", "parts", "extracted", "cause", "detail", "seconds", "advantage", "advantages", "values", "weight",
    "keep", "reason",
)  # fmt: skip
PER_TOKEN = ("logprobs", "advantages", "values")
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
        "kind": row["kind"],
        "reward": row["reward"],
        "parts": row["parts"],
        "extracted": None if extracted is None else cut(extracted, longest),
        "cause": row["cause"],
        "detail": cut(row["detail"], longest),
        "seconds": hundredths(row["seconds"]),
        "advantage": digits(row["advantage"] if row["advantages"] is None else _mean(row["advantages"])),
        "kept": row["keep"],
        "trained": row["reason"] == "trained",
        "reason": cut(row["reason"], NAME),
        "weight": digits(row["weight"]),
        **_text(row, pieces, longest),
    }


def _text(row: Row, pieces: TokenPieces | None, longest: int) -> dict[str, Any]:
    """The text as pieces with their numbers, or, where there are no pieces, as one text without numbers."""
    text = row["text"]
    split = pieces(row["tokens"], text) if pieces and text is not None and row["tokens"] is not None else None
    if split is None:
        shown = None if text is None else cut(text, longest)
        left_out = len(text) - longest // 2 * 2 if text is not None and len(text) > longest else 0
        return {"text": shown, "left_out": left_out, "pieces": None, **dict.fromkeys(PER_TOKEN)}
    head, tail = _ends(split, longest)
    left_out = sum(map(len, split[head : len(split) - tail]))
    numbers = {name: None if row[name] is None else row[name].tolist() for name in PER_TOKEN}
    if not left_out:
        shown_numbers = {name: None if of is None else [rounded(x) for x in of] for name, of in numbers.items()}
        return {"text": None, "left_out": 0, "pieces": split, **shown_numbers}
    end = len(split) - tail
    return {
        "text": None,
        "left_out": left_out,
        "pieces": [*split[:head], _left_out(left_out), *split[end:]],
        **{
            name: None if of is None else [*map(rounded, of[:head]), None, *map(rounded, of[end:])]
            for name, of in numbers.items()
        },
    }


def _ends(pieces: Sequence[str], longest: int) -> tuple[int, int]:
    """The numbers of tokens that are shown at the beginning and at the end of a rollout; all of a short one.

    A token without text counts as one character, so that at most `longest` tokens are shown.
    """
    sizes = [max(1, len(piece)) for piece in pieces]
    if sum(sizes) <= longest:
        return len(pieces), 0
    return _within(sizes, longest // 2), _within(sizes[::-1], longest // 2)


def _within(sizes: Sequence[int], room: int) -> int:
    count = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        count += 1
    return count


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


def _mean(numbers: Any) -> float | None:
    return float(numbers.mean()) if len(numbers) else None
