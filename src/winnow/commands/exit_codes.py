"""What a command's exit code says."""

from __future__ import annotations

from winnow.errors import EngineError, RankError, VerifierError, WinnowError

BAD_INPUT, FAILED, SAVED, INTERRUPTED = 2, 1, 75, 130


class RunFailed(WinnowError):
    """A run that had begun to step could not go on."""


def code_of(error: BaseException) -> int:
    """The exit code of a command that an error ends."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    failed = isinstance(error, (RunFailed, EngineError, VerifierError, RankError))
    return BAD_INPUT if isinstance(error, WinnowError) and not failed else FAILED
