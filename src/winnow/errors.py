"""Every error winnow raises on purpose.

    WinnowError
    ├── ConfigError       a key, value or combination that cannot run; raised before a model is loaded
    ├── DataError         a problem file, a tokenizer or a model folder that cannot be used
    ├── RunFolderError    a run folder that is taken, foreign, or cannot be resumed
    ├── EngineError       an engine that broke its contract (stale weights, wrong counts)
    ├── VerifierError     verification failed too often to go on
    ├── UpdateError       update after update could not be taken
    └── RankError         another process of the same run failed

The message names what is wrong, where (key, file and line), and what to do about it; the parts are attributes too. The
command line prints the message alone (`told`); a traceback is for bugs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self, TypeVar

E = TypeVar("E", bound=BaseException)


class WinnowError(Exception):
    """Base of all deliberate errors: what is wrong and what to do about it, as text and as data.

    `problem` names the file, line or key that is wrong. `remedy` is what the user can do, without a full stop; empty
    where nothing can be done. `key` is the configuration's key that the error is about. `code` is the kind of the
    error, stable across releases; a class has a code of its own, which an error may make more precise.
    """

    code = "error"

    def __init__(self, problem: str = "", *, remedy: str = "", key: str | None = None, code: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.key = problem, remedy, key
        self.code = code or type(self).code

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem

    def within(self, place: str) -> Self:
        """The same error, whose problem begins with the place where it was found: "configs/mine.toml, line 3"."""
        return type(self)(f"{place}: {self.problem}", remedy=self.remedy, key=self.key, code=self.code)


class Leave(BaseException):
    """A signal ended what was under way. Not an Exception: no handler of failures may take it for one."""


class ConfigError(WinnowError):
    """A configuration that cannot run."""

    code = "config"


class DataError(WinnowError):
    """Input data, a tokenizer or a model folder that cannot be used."""

    code = "data"


class RunFolderError(WinnowError):
    """A run folder that is taken, belongs to another run, or cannot be resumed."""

    code = "run_folder"


class EngineError(WinnowError):
    """An engine that broke its contract."""

    code = "engine"


class VerifierError(WinnowError):
    """Verification failed too often for the rewards to be trusted."""

    code = "verifier"


class UpdateError(WinnowError):
    """Gradients were not finite too often in a row for training to go on."""

    code = "update"


class RankError(WinnowError):
    """Another process of the same run failed; its message is part of this one."""

    code = "rank"


ENDING = (
    KeyboardInterrupt,
    Leave,
)  # what ends a call of a user's function from outside; all else is the function's own


def told(error: BaseException) -> str:
    """An error's message and the notes that were added on its way: what was saved, and how to go on."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def resumable(error: E, **options: Iterable[str]) -> E:
    """The error, marked: what it ended or refused continues with a resume under these further options of the command
    (`allow_change=["seed"]`). The command line then prints the command.
    """
    error.winnow_resume = {name: list(values) for name, values in options.items()}  # type: ignore[attr-defined]
    return error


def resume_options(error: BaseException) -> dict[str, list[str]] | None:
    """The further options of a resume, by name; None where `resumable` did not mark the error."""
    options: dict[str, list[str]] | None = getattr(error, "winnow_resume", None)
    return options


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'clip'?"` for a near miss, else the list of what exists."""
    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6) or _sharing_a_word(word, options)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(options)}" if options else ""


def _sharing_a_word(name: str, options: list[str]) -> list[str]:
    """The options with most words of a name: "clip_low" for "low"."""
    words = set(name.split("_"))
    shared = {option: len(words & set(option.split("_"))) for option in options}
    most = max(shared.values(), default=0)
    return [option for option in options if most and shared[option] == most]
