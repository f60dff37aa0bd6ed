"""The exit codes of commands (docs/troubleshooting.md lists them)."""

from __future__ import annotations

from typing import Self

from winnow.errors import EngineError, RankError, VerifierError, WinnowError

BAD_INPUT, FAILED, SAVED, INTERRUPTED = 2, 1, 75, 130


class RunFailed(WinnowError):
    """A run failed after its first step had begun."""

    @classmethod
    def of(cls, error: WinnowError) -> Self:
        """The same error as the failure of a run, with its parts and notes."""
        failure = cls(error.problem, remedy=error.remedy, key=error.key, code=error.code)
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        return failure


def code_of(error: BaseException) -> int:
    """The exit code of a command that raises `error`."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    failed = isinstance(error, (RunFailed, EngineError, VerifierError, RankError))
    return BAD_INPUT if isinstance(error, WinnowError) and not failed else FAILED
