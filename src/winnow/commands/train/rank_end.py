"""The end of a rank as a note for its launcher, and why a run of several ranks failed, from notes and exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from winnow.commands.command_line import FAILED, INTERRUPTED, RunFailed, code_of
from winnow.errors import RankError, WinnowError, format_error, format_with_code, signal_name

NOTE = "TORCHELASTIC_ERROR_FILE"  # the variable that names the file
HOLD_BACK_SECONDS = 5.0


@dataclass(frozen=True)
class RankEnd:
    """The error that ended a rank."""

    rank: int
    host: str
    code: int  # the exit code
    suffered: bool  # another rank was the cause
    text: str  # as a command prints it
    trace: str = ""  # the traceback of a bug
    begun: bool = False  # after the first step had begun

    @classmethod
    def of(cls, error: BaseException, rank: int) -> Self:
        """The end of a rank by this error."""
        begun = isinstance(error, RunFailed) or hasattr(error, "__notes__")
        text, trace = f"{type(error).__name__}: {format_error(error)}", "".join(traceback.format_exception(error))
        if isinstance(error, WinnowError):  # no bug
            text, trace = format_with_code(error), ""
        return cls(
            rank=rank,
            host=socket.gethostname(),
            code=FAILED if begun else code_of(error),
            suffered=suffered(error),
            text=text,
            trace=trace,
            begun=begun,
        )

    def leave(self) -> None:
        """Write the note, if the launcher named a file for it. Errors of writing are ignored."""
        if path := os.environ.get(NOTE):
            # torch's format, with this object under a key that torch ignores.
            more = {"py_callstack": self.trace or self.text, "timestamp": str(int(time.time()))}
            note = {"message": {"message": self.text, "extraInfo": more}, "winnow": asdict(self)}
            draft = Path(f"{path}.draft")
            with suppress(OSError):
                draft.write_text(json.dumps(note), encoding="utf-8")
                draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The note of a rank of winnow; None for any other file."""
        try:
            note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(**note["winnow"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def suffered(error: BaseException | None) -> bool:
    """Whether another rank is the cause of an error: RankError, a broken connection, or a timeout."""
    if isinstance(error, RunFailed):
        return suffered(error.__cause__)
    if isinstance(error, RankError):
        return True
    from torch.distributed import DistError

    # Gloo's errors are RuntimeErrors whose text contains a path of its source.
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


@dataclass(frozen=True)
class Cause:
    """The message for the user, whose last line is the cause, and the exit code of the run."""

    text: str
    code: int


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
    first = min((note for note in notes if not note.suffered), key=lambda note: note.rank, default=None)
    by = signal.SIGINT if code == INTERRUPTED else -code
    if by in signals:  # a second signal ends a rank at once
        return Cause(f"stopped at once by {signal_name(by)}: progress since the last checkpoint is lost", 128 + by)
    if code < 0:
        hint = ", which the system does when memory runs out" if -code == signal.SIGKILL else ""
        return Cause(f"{where} was killed by {signal_name(-code)}{hint}; resume the run to continue", FAILED)
    if first is not None:
        plain = first.rank == 0 and not first.trace  # printed as in a run of one process
        cause, _, later_lines = first.text.partition("\n")
        text = cause if plain else f"rank {first.rank} of {ranks} on {first.host}: {cause}"
        above = (first.trace or later_lines).rstrip()
        return Cause(f"{above}\n{text}" if above else text, first.code)
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
