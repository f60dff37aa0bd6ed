"""The decisions of a run that chooses the sizes of its steps, as short rows and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from winnow.algos.step_plan import Setting
from winnow.errors import DataError
from winnow.state.decisions import DECISIONS, read_decisions
from winnow.state.disk import errors_as
from winnow.view.text import format_duration, format_percent

MEASURED = ("seconds", "tokens", "flat", "signal_share")
SIZES = ("rollouts", "kept", "prompts")


def decisions(run: Path) -> list[dict[str, Any]]:
    """Per decision: step, the sizes before and after it, whether it was the jump, the expected gain, the reason of one
    that compared nothing, the share of the seconds that planning took, and what came of it, [expected, measured] by
    name; None for what is not known.

    Empty for a run of fixed sizes. Raises DataError for a row that is none.
    """
    made = list(read_decisions(run).values())
    wrong = errors_as(
        DataError,
        f"{run / DECISIONS} has a row that is no decision",
        "restore the file, or delete it to read the run without its decisions",
        code="data.malformed",
        of=(KeyError, TypeError, ValueError, AttributeError),
    )
    with wrong:
        outcomes = [row.get("outcome") or {} for row in made[1:]]
        return [_row(row, outcome) for row, outcome in zip(made, [*outcomes, {}], strict=False)]


def _row(row: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    before, after = (str(Setting(*(int(row[of][name]) for name in SIZES))) for of in ("before", "chosen"))
    expected = row.get("expected", {})
    steps, own = (_number(of.get("seconds")) for of in (row.get("spent") or {}, row))
    return {
        "step": int(row["step"]),
        "before": before,
        "after": after,
        "jump": bool(row.get("jump")),
        "gain": _number(expected.get("gain")),
        "least_gain": _number(expected.get("least_gain")),
        "noise": _number((row.get("noise") or {}).get("factor")),
        "reason": row.get("reason"),
        "planning": own / steps if steps and own is not None else None,  # of the seconds of the steps it was made from
        "came": {
            name: [_number(expected.get(name)), _number((outcome.get(name) or [None, None])[1])] for name in MEASURED
        },
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else format_duration(seconds)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def decision_lines(run: Path) -> Iterator[str]:
    """A line per decision that changed the sizes, one of the last, and the number of others. Raises as `decisions`."""
    made = decisions(run)
    shown = [row for row in made if row["before"] != row["after"] or row is made[-1]]
    for row in shown:
        same = row["before"] == row["after"]
        sizes = row["after"] if same else f"{row['before']} become {row['after']}"
        parts = [f"step {row['step']}: {sizes}"]
        if row["reason"]:
            parts.append(str(row["reason"]))
        if not same and row["gain"] is not None:
            parts.append(f"expected {row['gain']:.2f} times the progress per second")
        for name, show in (("seconds", _seconds), ("flat", format_percent)):
            expected, measured = row["came"][name]
            if expected is not None and measured is not None:
                what = "a step" if name == "seconds" else "flat groups"
                parts.append(f"{what} {show(measured)} (expected {show(expected)})")
        if row["planning"] is not None:
            parts.append(f"planning took {row['planning']:.2%} of the seconds")
        yield ", ".join(parts)
    if len(shown) < len(made):
        yield f"{len(made) - len(shown)} further decisions kept the sizes (decisions.jsonl)"
