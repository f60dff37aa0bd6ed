"""How a rank ended with an error, in a note for its launcher: the file that torch's elastic launchers name."""

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

from winnow.commands.exit_codes import FAILED, RunFailed, code_of
from winnow.errors import RankError, WinnowError, format_with_code, told

NOTE = "TORCHELASTIC_ERROR_FILE"  # the variable that names the file
HOLD_BACK_SECONDS = 5.0


@dataclass(frozen=True)
class RankEnd:
    """The error that ended a rank."""

    rank: int
    host: str
    code: int  # the exit code
    suffered: bool  # another rank was the cause
    text: str
    trace: str = ""  # of an error that is a bug
    begun: bool = False  # a step was under way

    @classmethod
    def of(cls, error: BaseException, rank: int) -> Self:
        """What a rank's error says of its end."""
        begun = isinstance(error, RunFailed) or hasattr(error, "__notes__")
        deliberate = isinstance(error, WinnowError)
        text = format_with_code(error) if isinstance(error, WinnowError) else f"{type(error).__name__}: {told(error)}"
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
        """Write the note, where the launcher named a file; one that cannot be written is left out."""
        if path := os.environ.get(NOTE):
            # The form that torch reads, with this end in it.
            more = {"py_callstack": self.trace or self.text, "timestamp": str(int(time.time()))}
            note = {"message": {"message": self.text, "extraInfo": more}, "winnow": asdict(self)}
            draft = Path(f"{path}.draft")
            with suppress(OSError):
                draft.write_text(json.dumps(note), encoding="utf-8")
                draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """A note that a rank of winnow left; None for any other file."""
        try:
            said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(**said["winnow"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def suffered(error: BaseException | None) -> bool:
    """Whether an error says no more than that another rank failed: RankError, a connection that broke, a wait that took
    too long.
    """
    if isinstance(error, RunFailed):
        return suffered(error.__cause__)
    if isinstance(error, RankError):
        return True
    from torch.distributed import DistError

    # Gloo raises RuntimeError with a place in its own source.
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def hold_back() -> None:
    """Wait: a launcher takes the first rank that it sees end for the cause, which is another than this one."""
    time.sleep(HOLD_BACK_SECONDS)
