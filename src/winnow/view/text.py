"""Text for a terminal: foreign text escaped, numbers shortened."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from winnow.errors import ConfigError

WIDTH = 80
UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6, "kb": 10**3}
LARGEST = 1e15  # larger numbers are neither drawn, summed nor written out: no run reaches them, and sums would overflow

# Control characters, invisible format characters (they reorder or hide text), lone surrogates, and separators of lines
# and paragraphs.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def sanitize(text: str) -> str:
    r"""The text with every character that a terminal would act on as a visible escape (`\x1b`); keeps line breaks."""
    if text.replace("\n", "").isprintable():  # a fast path: no unsafe character is printable
        return text
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in _UNSAFE else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def one_line(text: str) -> str:
    """`sanitize`, with line breaks escaped as well, so that a name cannot forge a line of output."""
    return sanitize(text).replace("\n", "\\n")


def encodable(text: str, encoding: str = "utf-8") -> str:
    """The text with characters that the encoding lacks, in UTF-8 lone surrogates, as visible escapes."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def common_prefix(texts: Sequence[str]) -> str:
    """The longest beginning that all texts have, which is what the first and the last in sorted order share."""
    first, last = min(texts), max(texts)
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def shortest_names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as much of each path as makes them unique."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(of[-depth:]) for of in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder.resolve()) for folder in folders]


def shorten(text: str, limit: int) -> str:
    """The text in at most about `limit` characters. In a longer text, a note with the number of omitted characters
    replaces the middle.
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[len(text) - half :]}"


def quote(text: str, *, limit: int | None, indent: str) -> str:
    """Foreign text as indented lines after a bar, safe to print; `limit` as in `shorten`."""
    shown = sanitize(text if limit is None else shorten(text, limit))
    return "\n".join(f"{indent}| {line}" for line in shown.split("\n"))


def wrap(text: str) -> str:
    """A sentence in lines of a terminal's width."""
    return textwrap.fill(sanitize(text), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def format_duration(seconds: float) -> str:
    """Seconds as "0:04", "12:30" or "1:02:03"; "?" for a number that is not finite, or that no run reaches."""
    if not abs(seconds) < LARGEST:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_count(number: float) -> str:
    """A number in two or three digits with a letter for its size: "950", "3.4k", "12M"; from 1e15 on as "1.0e+15"."""
    if abs(number) >= LARGEST:
        return f"{number:.1e}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            scaled = number / size
            return f"{scaled:.0f}{letter}" if scaled >= 9.95 else f"{scaled:.1f}{letter}"
    return f"{number:.0f}"


def format_decimal(number: float, *, digits: int = 3, sign: Literal["", "+"] = "") -> str:
    """A number with `digits` decimals, such as "0.250"; with an exponent, such as "+1.5e+31", if that would be long."""
    fixed = abs(number) < 1e5 or not math.isfinite(number)
    return f"{number:{sign}.{digits}f}" if fixed else f"{number:{sign}.1e}"


def parse_bytes(text: str) -> int:
    """Bytes of a size that a user wrote: "80GiB", "80 GB", "500kB". Raises ConfigError for other text."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) *([a-z]+)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in UNITS:
        raise ConfigError(
            f"{text!r} is no size",
            remedy="write a number and a unit, GiB, GB, MiB, MB or kB, for example 80GiB or 20MB",
            code="config.value",
        )
    return int(float(match[1]) * UNITS[match[2]])


def format_percent(share: float) -> str:
    """A share as a percentage with one decimal: "41.2%"."""
    return f"{share:.1%}"


MARGIN = "± is the standard error over problems"  # of `format_accuracies`


def format_accuracies(metrics: Mapping[str, float]) -> str:
    """An evaluation in one line: "sampled 44.1% ± 2.0%, greedy 50.0%", or a note that there was no verdict."""
    shown = []
    if "eval/accuracy_sampled" in metrics:
        error = metrics.get("eval/accuracy_sampled_sem", math.nan)
        margin = "" if math.isnan(error) else f" ± {format_percent(error)}"  # see MARGIN
        shown.append(f"sampled {format_percent(metrics['eval/accuracy_sampled'])}{margin}")
    if "eval/accuracy_greedy" in metrics:
        shown.append(f"greedy {format_percent(metrics['eval/accuracy_greedy'])}")
    if shown and "eval/weight_bits" in metrics:
        shown.append(f"weights of {metrics['eval/weight_bits']:.0f} bits")
    return ", ".join(shown) or "no verdict: every verifier failed"
