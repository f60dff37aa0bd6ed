"""What the logs of every trainer are read with: lines of JSON, numbers, ids of prompts, and estimated lengths."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from winnow.errors import DataError
from winnow.records import FloatArray
from winnow.state.disk import check_kind, errors_as


def written(path: Path) -> tuple[int, ...]:
    """What changes when a file is written again: a key under which its contents can be kept. Raises OSError."""
    about = path.stat()
    return about.st_mtime_ns, about.st_size, about.st_ino


def json_lines(path: Path, *, may_be_cut: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, its object). With `may_be_cut`, an incomplete last line is ignored: it is being written, or the writer was
    killed. Raises DataError, with the line.
    """
    with errors_as(DataError, f"cannot read {path}", "make it readable", code="data.unreadable"):
        check_kind(path, "a file", follow=True)  # opening a pipe would wait for its writer
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if may_be_cut and not line.endswith(b"\n"):
                    return
                try:
                    row = json.loads(line.decode("utf-8-sig"))  # json would guess UTF-16 or UTF-32 for some bytes
                except (ValueError, RecursionError) as error:
                    raise malformed(path, f"line {number}: is no JSON ({error})") from error
                if not isinstance(row, dict):
                    raise malformed(path, f"line {number}: is no JSON object")
                yield number, row


def digest_of(prompt: str) -> str:
    """A short id of a prompt that has none: equal for equal texts."""
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def metric(path: Path, where: str, name: str, value: Any) -> float:
    """A logged number, NaN for null. Raises DataError for anything else."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise malformed(path, f"{where}: the metric {name!r} is {value!r:.40}, and not a number")
    return float(value)


def malformed(path: Path, problem: str) -> DataError:
    return DataError(f"{path} {problem}", remedy="restore it, or name another run", code="data.malformed")


def estimated_lengths(characters: Sequence[int], mean: float) -> FloatArray:
    """[N] whole numbers of tokens: the logged mean length, divided among N rollouts in proportion to their characters.

    Their sum is N times the mean, rounded. NaN without a finite mean.
    """
    count = len(characters)
    if not math.isfinite(mean):
        return np.full(count, np.nan)
    total, sizes = round(mean * count), np.array(characters, dtype=np.float64)
    exact = sizes * total / sizes.sum() if sizes.any() else np.full(count, total / max(1, count))
    whole: FloatArray = np.floor(exact)
    most = np.argsort(whole - exact, kind="stable")[: int(total - whole.sum())]
    whole[most] += 1
    return whole
