"""The error of a failed rank, as a note for its launcher in the file that torch's elastic launchers name."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from winnow.commands.command_line import FAILED, RunFailed, code_of
from winnow.errors import RankError, WinnowError, format_error, format_with_code

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
        deliberate = isinstance(error, WinnowError)
        text = (
            format_with_code(error)
            if isinstance(error, WinnowError)
            else f"{type(error).__name__}: {format_error(error)}"
        )
        return cls(
            rank=rank,
            host=socket.gethostname(),
            code=FAILED if begun else code_of(error),
            suffered=suffered(error),
            text=text,
            trace="" if deliberate else "".join(traceback.format_exception(error)),
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


def hold_back() -> None:
    """Wait before exiting, as launchers report the rank that exits first, and another rank is the cause."""
    time.sleep(HOLD_BACK_SECONDS)
