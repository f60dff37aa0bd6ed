"""Every error winnow raises on purpose.

The message contains the problem, its place (key, file and line, where known) and the remedy. Problem, remedy and key
are attributes too. The command line prints code and message (`format_with_code`); a traceback is for bugs.
"""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Self, TypeVar

E = TypeVar("E", bound=BaseException)
W = TypeVar("W", bound="WinnowError")


# The codes of errors, on which a program may rely. Sorted; a test compares them with the source.
CODES: Mapping[str, str] = {
    "config": "A configuration cannot run.",
    "config.cluster": "A Ray cluster cannot be reached.",
    "config.combination": "Keys exclude each other.",
    "config.duplicate": "A key, a label or a name is given twice.",
    "config.member_result": "A member returned a value that its family does not accept, or read an absent field.",
    "config.memory": "The run does not fit into memory.",
    "config.missing_key": "A key without a default is not set.",
    "config.no_effect": "A key has no effect beside the other keys.",
    "config.not_installed": "An optional package is not installed, or has an unsuitable version.",
    "config.ranks_differ": "The ranks of one run have different inputs.",
    "config.registration": "A function or its declaration does not match its family.",
    "config.tracker": "A tracker refused the run, or has no credentials.",
    "config.unknown_key": "A key or an option does not exist.",
    "config.unknown_member": "No member of the family, or no family, has this name.",
    "config.unknown_name": "A recipe, a label, a measure or a list does not exist.",
    "config.unreadable": "A configuration file or an override cannot be read.",
    "config.unsupported": "The model, the engine, the machine or the command does not support what a key requests.",
    "config.untrusted": "A saved configuration names code that the user has not named.",
    "config.user_code": "A user's file or function cannot be loaded, or raised an exception.",
    "config.value": "A value is of the wrong type, out of range, or none of the choices.",
    "data": "Input data, a tokenizer or a model folder cannot be used.",
    "data.changed": "Settings or files are not those with which the work was started.",
    "data.empty": "The input has no problem, prompt, row, curve or step to use.",
    "data.exists": "An output exists already and is not overwritten.",
    "data.incomplete": "Rows, steps or columns that the work needs are missing.",
    "data.malformed": "A record, a field or a file has the wrong form.",
    "data.mismatch": "Inputs cannot be combined or compared.",
    "data.missing": "A file, a folder, a model, a step or a column does not exist.",
    "data.not_installed": "A package that reads the data is not installed.",
    "data.port": "A port cannot be used.",
    "data.unfit_model": "A model or its tokenizer cannot be trained as it is.",
    "data.unreadable": "A file or a data set exists and cannot be read.",
    "data.unwritable": "An output cannot be written.",
    "engine": "An engine broke its contract.",
    "engine.contract": "An engine was called, or returned a result, against its contract.",
    "engine.diverged": "The policy's probabilities are not finite.",
    "engine.failed": "The engine, or its process, failed.",
    "engine.memory": "The engine has too little memory for one rollout.",
    "engine.stale_weights": "Rollouts are not of the weights that were requested.",
    "error": "An error without a more precise code.",
    "rank": "Another process of the same run failed.",
    "rank.failed": "Another rank announced a failure.",
    "rank.lost": "Another rank exited, or was not ready in time.",
    "rank.machine": "A machine lacks the version or the folder of the run.",
    "run_folder": "A run folder is taken, belongs to another run, or cannot be resumed.",
    "run_folder.changed": "A resume would change a setting or an input of the run.",
    "run_folder.damaged": "A checkpoint, a log or a description is damaged or lacks rows.",
    "run_folder.foreign": "A folder does not belong to a run, or not to this run.",
    "run_folder.incomplete": "A file of a checkpoint is missing.",
    "run_folder.locked": "Another process uses the folder.",
    "run_folder.missing": "There is nothing to resume in the folder.",
    "run_folder.other_model": "A checkpoint is of another model, adapter, optimizer or value model.",
    "run_folder.taken": "The folder already contains a run or a sweep.",
    "run_folder.unreadable": "A file of a run or a sweep cannot be read.",
    "run_folder.unsaved": "A checkpoint could not be written.",
    "run_folder.untrusted": "A run belongs to another user.",
    "run_folder.unwritable": "A folder or a file of a run cannot be written.",
    "update": "Update after update was skipped.",
    "update.not_finite": "Gradients or values are not finite.",
    "verifier": "Verification failed too often.",
    "verifier.closed": "A verifier was used after it was closed.",
    "verifier.crashed": "The process of a reward crashes before it returns a verdict.",
    "verifier.failed": "Too many verdicts are failures.",
    "verifier.not_repeatable": "An environment gave two outcomes to one rollout.",
    "verifier.sandbox": "No sandbox works, or the one in use has stopped working.",
}


class WinnowError(Exception):
    """Base of all deliberate errors, as text for people and as data for programs.

    `problem` describes the mistake and names its file, line or key. `remedy` is the user's next action, without a full
    stop; empty where there is none. `key` is the configuration's key that the error is about. `code` is the kind of
    the error, stable across releases (`CODES`); each class has one, and an error may have a more precise one.
    """

    code = "error"
    parts: Sequence[Self] = ()  # of an error about several mistakes, one for each

    def __init__(self, problem: str = "", *, remedy: str = "", key: str | None = None, code: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.key = problem, remedy, key
        self.code = code or type(self).code

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem

    def within(self, place: str) -> Self:
        """The same error with a place before its problem: "configs/mine.toml, line 3"."""
        return type(self)(f"{place}: {self.problem}", remedy=self.remedy, key=self.key, code=self.code)

    def under(self, key: str) -> Self:
        """The same error below a key of the configuration; its key, if it has one, is relative to that key."""
        error = self.within(key)
        error.key = f"{key}.{self.key}" if self.key else key
        return error


class StoppedBySignal(BaseException):
    """A signal stopped the current work. Not an Exception, so that handlers of failures do not catch it."""


class ConfigError(WinnowError):
    """A configuration that cannot run; raised before a model is loaded."""

    code = "config"


def conflict(problem: str, *, remedy: str, key: str | None = None) -> ConfigError:
    """The error of keys or members that are valid, but do not fit together."""
    return ConfigError(problem, remedy=remedy, key=key, code="config.combination")


def bad_value(problem: str, remedy: str, *, key: str) -> ConfigError:
    """The error of a value that a key cannot have."""
    return ConfigError(problem, remedy=remedy, key=key, code="config.value")


def no_effect(problem: str, *, remedy: str, key: str) -> ConfigError:
    """The error of a key that would be ignored silently."""
    return ConfigError(problem, remedy=remedy, key=key, code="config.no_effect")


def unsupported(problem: str, *, remedy: str, key: str) -> ConfigError:
    """The error of a model, an engine or a machine that does not support what a key requests."""
    return ConfigError(problem, remedy=remedy, key=key, code="config.unsupported")


def wrong_result(problem: str, *, remedy: str, key: str) -> ConfigError:
    """The error of a member's result that its family does not accept."""
    return ConfigError(problem, remedy=remedy, key=key, code="config.member_result")


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


# They interrupt a user's function from outside; every other exception is its own.
INTERRUPTIONS = (KeyboardInterrupt, StoppedBySignal)


def signal_name(number: int) -> str:
    """The name of a signal for a message. Most real-time signals have none.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_error(error: BaseException) -> str:
    """An error's message and its notes, for example what was saved and how to continue."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def format_with_code(error: WinnowError) -> str:
    """An error as commands print it: its code, by which docs/reference.md lists it, its message and its notes.

    >>> format_with_code(ConfigError("steps is -1", remedy="set it to 1 or more", code="config.value"))
    'error (config.value): steps is -1; set it to 1 or more'
    """
    return f"error ({error.code}): {format_error(error)}"


def resumable(error: E, **options: Iterable[str]) -> E:
    """Mark the error and return it: a resume with these further options (`allow_change=["seed"]`) continues the work.

    The command line then prints that command.
    """
    error.winnow_resume = {name: list(values) for name, values in options.items()}  # type: ignore[attr-defined]
    return error


def resume_options(error: BaseException) -> dict[str, list[str]] | None:
    """The further options of a resume by name; None for an error that `resumable` did not mark."""
    options: dict[str, list[str]] | None = getattr(error, "winnow_resume", None)
    return options


def near_miss(word: str, known: Iterable[str]) -> str:
    """The remedy for a name that does not exist: "did you mean 'clip'?" where one is close, else all names."""
    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6) or _sharing_a_word(word, options)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of: {', '.join(options)}" if options else ""


def accepted_value(message: str) -> str:
    """The remedy for a value that pydantic refuses, from pydantic's message.

    >>> accepted_value("Input should be greater than 0")
    'set it to a number greater than 0'
    """
    accepted = message.removeprefix("Input should be ")
    if accepted == message:
        return f"correct it: {message[:1].lower()}{message[1:]}"
    value = re.split(r", (?=got |unable )", accepted)[0]
    return f"set it to {'a number ' * accepted.startswith(('greater', 'less'))}{value}"


def combine_errors(errors: Sequence[W]) -> W:
    """The only error; for several, one whose lines list them, with the key and the code of the first."""
    first = errors[0]
    if len(errors) == 1:
        return first
    combined = type(first)("\n".join(map(str, errors)), key=first.key, code=first.code)
    combined.parts = errors
    return combined


def _sharing_a_word(name: str, options: list[str]) -> list[str]:
    """The options that share most words with a name: "clip_low" for "low"."""
    words = set(name.split("_"))
    shared = {option: len(words & set(option.split("_"))) for option in options}
    most = max(shared.values(), default=0)
    return [option for option in options if most and shared[option] == most]
