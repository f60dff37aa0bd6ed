"""The lines of `winnow check --prove`: the plan beside what torch's instruments find in a rehearsed update."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.learner.proof import Pass, Proof, ProvedPart, prove
from winnow.memory.demand import Demand
from winnow.memory.plan import format_bytes
from winnow.view.text import format_count

NAMES, NUMBERS = 28, 12  # widths of columns
SAME = 0.05  # a plan is confirmed within this share of what was tracked


def proof_lines(demand: Demand, needs: frozenset[str], *, limit: float) -> Iterator[str]:
    """A table of bytes, and the operations and exchanged bytes of each pass. `limit` is in seconds.

    Raises ConfigError as `prove` does.
    """
    found = prove(demand, needs=needs, limit=limit)
    ranks = f", rank 0 of {demand.ranks}" if demand.ranks > 1 else ""
    yield f"{'proof':<13}an update without numbers, by torch's {found.tracker}{ranks}, in {found.seconds:.0f} s"
    yield _line("", "plan", "tracker", "plan / tracker")
    yield from map(_row, found.rows)
    yield from _passes(found)


def _row(row: ProvedPart) -> str:
    sign = "" if abs(row.ratio - 1) <= SAME else "  !"
    return _line(row.name, format_bytes(row.planned), format_bytes(row.tracked), f"{row.ratio:.3f}{sign}")


def _passes(found: Proof) -> Iterator[str]:
    yield _line("of a micro-batch", "tokens", "operations", "per token", "exchanged")
    for each in found.passes:
        per_token = each.operations / each.tokens
        yield _line(
            each.name, format_count(each.tokens), f"{each.operations:.3g}", f"{per_token:.3g}", _exchanged(each)
        )


def _exchanged(each: Pass) -> str:
    parts = {"gathered": each.gathered, "scattered": each.scattered, "reduced": each.reduced}
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size) or "nothing"


def _line(name: str, *columns: str) -> str:
    return f"{'':<13}{name:<{NAMES}}{''.join(f'{column:>{NUMBERS}}  ' for column in columns)}".rstrip()
