"""Why a run of several ranks failed, from the exit codes of the ranks and their notes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection
from dataclasses import dataclass

from winnow.commands.command_line import FAILED, INTERRUPTED
from winnow.commands.train.rank_end import RankEnd


@dataclass(frozen=True)
class Cause:
    """The message for the user, and the exit code of the run."""

    text: str
    code: int
    trace: str = ""  # printed before the text: the traceback of a bug, or the notes of an error


def first_cause(
    seen: tuple[int, int],
    notes: Collection[RankEnd],
    *,
    ranks: int,
    timeout_seconds: float,
    signals: Collection[int] = (),
) -> Cause:
    """The first cause of the failure of a run.

    `seen` is the rank whose exit the launcher noticed first, with its exit code (after a signal, minus its number).
    `signals` are those that the launcher has forwarded to the ranks.
    """
    rank, code = seen
    where = f"rank {rank} of {ranks} on {socket.gethostname()}"
    own = sorted((note for note in notes if not note.suffered), key=lambda note: note.rank)
    by = signal.SIGINT if code == INTERRUPTED else -code
    if by in signals:  # a second signal ends a rank at once
        return Cause(f"stopped at once by {_signal(by)}: progress since the last checkpoint is lost", 128 + by)
    if code < 0:
        return Cause(f"{where} was killed by {_signal(-code)}{_hint(-code)}; resume the run to continue", FAILED)
    if own:
        first = own[0]
        plain = first.rank == 0 and not first.trace  # printed as in a run of one process
        cause, _, later_lines = first.text.partition("\n")  # printed before the cause, which is the last line
        text = cause if plain else f"rank {first.rank} of {ranks} on {first.host}: {cause}"
        return Cause(text, first.code, first.trace or later_lines)
    silent = sorted(set(range(ranks)) - {note.rank for note in notes})
    if notes and silent:
        who = f"rank {', '.join(map(str, silent))} of {ranks} on {socket.gethostname()}"
        return Cause(
            f"{who} did not answer: it hangs or was stopped, and the others waited for "
            f"ranks.timeout_seconds = {timeout_seconds:g}; resume the run to continue",
            FAILED,
        )
    if note := next((note for note in notes if note.rank == rank), None):
        return Cause(f"{where}: {note.text}", note.code)
    return Cause(f"{where} ended with exit code {code} and without a message", FAILED)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int) -> str:
    return ", which the system does when memory runs out" if number == signal.SIGKILL else ""
