"""Times of day: `5:15 p.m.` is `17:15`. A time is converted only if one side has a.m. or p.m."""

from __future__ import annotations

import re

_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?:\s?[:.]\s?(?P<minute>\d{2}))?(?:\s?:\s?(?P<second>\d{2}))?"
    r"(?:\s?(?P<half>[ap])\s?\.?\s?m\.?)?",
    re.IGNORECASE | re.ASCII,
)


def compare(answer: str, gold: str) -> bool | None:
    """Whether two tidy texts are one time of day. None if neither has a.m. or p.m.

    A time without either is read on the clock of 24 hours, so `5:15` is not `5:15 p.m.`.
    """
    mine, theirs = (_TIME.fullmatch(text.strip()) for text in (answer, gold))
    if not any(match and match["half"] for match in (mine, theirs)):
        return None
    if mine is None or theirs is None:
        return False
    a, g = _seconds(mine), _seconds(theirs)
    return a is not None and a == g


def _seconds(time: re.Match[str]) -> int | None:
    """Seconds since midnight; None for 25:00, 13 p.m., `17.15` and a number without a.m. or p.m."""
    hour, minute, second = (int(time[part] or 0) for part in ("hour", "minute", "second"))
    if minute > 59 or second > 59 or hour > 23:
        return None
    if time["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if time["half"].lower() == "p" else 0)
    elif time["minute"] is None or "." in time[0]:
        return None
    return 3600 * hour + 60 * minute + second
