"""A user's own functions: imported from "file.py:function" once per process, reported by name when they raise, and
checked where they return integers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from winnow.errors import INTERRUPTIONS, ConfigError, WinnowError, near_miss
from winnow.records import IntArray, as_array

_sources: ContextVar[tuple[str, ...]] = ContextVar("sources", default=())  # current imports, the innermost last
_imported: dict[Path, tuple[bytes, ModuleType]] = {}  # by resolved path: the text that ran, and its module
# Held while a file runs or packages are imported: a second thread waits for their functions. One lock for both, because
# either may need the other.
LOCK = threading.RLock()


def import_path() -> list[str]:
    """The folders of this process's import path, for another process; Python ignores entries that are no texts."""
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]


@dataclass(frozen=True)
class Requested:
    """What was requested of a member, for the error about its result."""

    member: str  # "the sampler"
    what: str  # "a draw of 2 prompts from 5"
    remedy: str
    key: str

    def refuse(self, returned: str) -> ConfigError:
        """The error for a result that is described by `returned`."""
        problem = f"{self.member} returned {returned} for {self.what}"
        return ConfigError(problem, remedy=self.remedy, key=self.key, code="config.member_result")

    def integers(self, answer: object, count: int, fault: Callable[[IntArray], str | None]) -> IntArray:
        """[count] int64 numbers, from a result that has to be one integer for each of `count` items.

        `fault` describes what is wrong with such numbers, or returns None. Raises ConfigError for another shape or
        type, and for a fault.
        """
        numbers = as_array(answer)
        if numbers.shape != (count,) or not np.issubdtype(numbers.dtype, np.integer):
            raise self.refuse(f"{numbers.dtype} of shape {numbers.shape}")
        returned = fault(numbers)
        if returned is not None:
            raise self.refuse(returned)
        return numbers.astype(np.int64)


def load_function(path: str, *, base: Path | None = None) -> Callable[..., Any]:
    """Import `function` from `"file.py:function"`. The file is the user's own, trusted code: its present text is
    executed, never a compiled file beside it.

    A file runs once per process, whatever the path to it, and again only after its text has changed. The script that
    Python runs is not run again. Raises ConfigError.
    """
    file_name, _, function_name = path.rpartition(":")
    file = file_of(path, base=base)
    if not file_name.endswith(".py"):  # Python would also import compiled code, which a user cannot read
        raise _refused(f"{path!r} names no .py file", remedy="write it as file.py:function")
    if not file.is_file():
        start = "" if Path(file_name).is_absolute() else f": a relative path starts from {base or Path.cwd()}"
        raise _refused(f"{path!r}: there is no file {file}", remedy=f"correct the path{start}")
    with LOCK:
        module = _module(path, file)
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise _refused(
            f"{path!r}: {file} has no function {function_name!r}",
            remedy=near_miss(function_name, public) or "define it in that file",
        )
    return function  # type: ignore[no-any-return]


def file_of(path: str, *, base: Path | None = None) -> Path:
    """The file of `"file.py:function"`, which is relative to `base`."""
    return ((base or Path.cwd()) / path.rpartition(":")[0]).absolute()


def _module(path: str, file: Path) -> ModuleType:
    text, place = file.read_bytes(), file.resolve()
    script = sys.modules.get("__main__")
    if script is not None and Path(getattr(script, "__file__", None) or "").resolve() == place:
        return script
    known = _imported.get(place)
    if known is not None and known[0] == text:
        return known[1]
    if str(file) in _sources.get():
        raise _refused(
            f"{path!r}: {file} uses its functions by name while it is imported",
            remedy='put that call under `if __name__ == "__main__":`',
        )
    module = ModuleType(_module_name(place))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up by its name
    beside = str(place.parent)
    is_new = beside not in sys.path
    if is_new:
        sys.path.append(beside)  # its modules can be imported, as in `python mine.py`; last, and only meanwhile
    try:  # not by a loader, which may run a compiled file beside it instead of this text
        with importing(str(file)):
            exec(compile(text, str(file), "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        del sys.modules[module.__name__]
        if known is not None:
            sys.modules[module.__name__] = known[1]
        if isinstance(error, INTERRUPTIONS):
            raise
        raised = f"{path!r}: importing {file} raised {type(error).__name__}"
        if isinstance(error, WinnowError):
            raise error.within(raised) from error
        raise _refused(f"{raised}: {error}", remedy="correct that file") from error
    finally:
        if is_new:
            sys.path.remove(beside)
    _imported[place] = (text, module)
    return module


def _module_name(place: Path) -> str:
    """The name of a file's module, with a digest of the path: two paths may differ only in punctuation."""
    stem = re.sub(r"\W", "_", place.stem)
    return f"winnow_user_{stem}_{hashlib.sha256(bytes(place)).hexdigest()[:16]}"


@contextlib.contextmanager
def importing(source: str) -> Iterator[None]:
    """Mark that a file or an installed package (`source`) is imported for its functions."""
    token = _sources.set((*_sources.get(), source))
    try:
        yield
    finally:
        _sources.reset(token)


def being_imported() -> str:
    """The innermost source that this context imports for its functions; empty without one."""
    return _sources.get()[-1] if _sources.get() else ""


def check_not_importing() -> None:
    """Raise ConfigError inside a file or package that is imported for its functions: it must not start a run."""
    if source := being_imported():
        raise _refused(
            f"{source} calls winnow while it is imported for its functions",
            remedy='put that call under `if __name__ == "__main__":`',
        )


def with_named_errors(what: str, own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, made from `own`, but with a ConfigError that names `what`, file and line where a user's code raises.

    Winnow's own functions are returned unchanged: an exception there is a bug, and its traceback is needed.
    """
    if (getattr(own, "__module__", None) or "").partition(".")[0] == "winnow":
        return function

    @functools.wraps(own, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (WinnowError, *INTERRUPTIONS):
            raise
        except BaseException as error:  # CancelledError, GeneratorExit and SystemExit are no Exception
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise _refused(
                f"{what} raised {text} ({_raised_at(own, error)})", remedy="correct that function"
            ) from error

    return call


def _refused(problem: str, *, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, code="config.user_code")


def without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside a partial, or the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _raised_at(own: Callable[..., Any], error: BaseException) -> str:
    """File, line and function of the last call in the file of the user's function, else of the last call."""
    function = inspect.unwrap(without_partial(own))
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    last = (inside or frames)[-1]
    return f"{last.filename}, line {last.lineno}, in {last.name}"
