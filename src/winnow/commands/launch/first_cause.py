"""Why a run of several ranks ended, from what is left of them: exit codes and the notes that ranks left."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection
from dataclasses import dataclass

from winnow.commands.exit_codes import FAILED, INTERRUPTED
from winnow.commands.launch.rank_end import RankEnd


@dataclass(frozen=True)
class Cause:
    """What a person is told."""

    text: str
    code: int  # the exit code of the run
    trace: str = ""  # told before it: of an error that is a bug, or what was saved


def first_cause(
    seen: tuple[int, int],
    notes: Collection[RankEnd],
    *,
    ranks: int,
    timeout_seconds: float,
    asked: Collection[int] = (),
) -> Cause:
    """The cause of the end of a run.

    `seen` is the rank that the launcher saw end first, with its exit code (of a signal, minus its number); `asked` are
    the signals that the launcher has passed on to the ranks.
    """
    rank, code = seen
    where = f"rank {rank} of {ranks} on {socket.gethostname()}"
    own = sorted((note for note in notes if not note.suffered), key=lambda note: note.rank)
    by = signal.SIGINT if code == INTERRUPTED else -code
    if by in asked:
        return Cause(f"ended at once by {_signal(by)}: what was not saved before is lost", 128 + by)
    if code < 0:
        return Cause(f"{where} was killed by {_signal(-code)}{_hint(-code)}; resume the run to go on", FAILED)
    if own:
        first = own[0]
        known = first.rank == 0 and not first.trace  # as a run of one process says it
        cause, _, notes_of_it = first.text.partition("\n")  # what was saved; told first, as the cause is the last line
        said = cause if known else f"rank {first.rank} of {ranks} on {first.host}: {cause}"
        return Cause(said, first.code, first.trace or notes_of_it)
    silent = sorted(set(range(ranks)) - {note.rank for note in notes})
    if notes and silent:
        who = f"rank {', '.join(map(str, silent))} of {ranks} on {socket.gethostname()}"
        return Cause(
            f"{who} did not answer: it hangs or was stopped, and the others waited for "
            f"ranks.timeout_seconds = {timeout_seconds:g}; resume the run to go on",
            FAILED,
        )
    if note := next((note for note in notes if note.rank == rank), None):
        return Cause(f"{where}: {note.text}", note.code)
    return Cause(f"{where} ended with exit code {code} and said nothing", FAILED)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int) -> str:
    return ", as the system does where memory runs out" if number == signal.SIGKILL else ""
