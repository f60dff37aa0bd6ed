"""A user's own functions: imported from "file.py:function" once per process, and what they raise said by name."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from winnow.errors import ConfigError, WinnowError, did_you_mean

_importing: list[Path] = []  # the files that are being imported, the innermost last
_imported: dict[Path, tuple[bytes, ModuleType]] = {}  # by their resolved path: the text that ran, and what it made


def load_function(path: str, *, base: Path | None = None) -> Callable[..., Any]:
    """Import `function` from `"file.py:function"`. The file is the user's own, trusted code: its text, as it stands.

    A file runs once per process, and again only after its text has changed. Raises ConfigError.
    """
    file_name, _, function_name = path.rpartition(":")
    file = (base or Path.cwd()) / file_name
    if not file_name.endswith(".py"):  # Python would import compiled code as well, of which nobody sees what it does
        raise ConfigError(f"{path!r}: functions come from a .py file; write it as file.py:function")
    if not file.is_file():
        raise ConfigError(f"{path!r}: there is no file {file}")
    module = _module(path, file)
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(f"{path!r}: {file} has no function {function_name!r}{did_you_mean(function_name, public)}")
    return function  # type: ignore[no-any-return]


def _module(path: str, file: Path) -> ModuleType:
    text, place = file.read_bytes(), file.resolve()
    known = _imported.get(place)
    if known is not None and known[0] == text:
        return known[1]
    module_name = "winnow_user_" + re.sub(r"\W", "_", str(place))
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None, "a .py file always has a loader"
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(module_name)
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up by its name
    _importing.append(file)
    try:  # not by the loader, which may take a compiled file beside it, of which nobody sees what it does
        exec(compile(text, spec.origin, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        if before is None:
            del sys.modules[module_name]
        else:
            sys.modules[module_name] = before
        raise ConfigError(f"{path!r}: importing {file} raised {type(error).__name__}: {error}") from error
    finally:
        _importing.pop()
    _imported[place] = (text, module)
    return module


def check_not_importing() -> None:
    """Raise ConfigError inside a file that is being imported for its functions: it must not start a run by that."""
    if _importing:
        raise ConfigError(
            f"{_importing[-1]} is imported for its functions, and calls winnow while it is: put that call under "
            f'`if __name__ == "__main__":`'
        )


def said_by_name(what: str, own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, made of `own`: where it is a user's and raises, that is a ConfigError with `what`, file and line.

    What winnow itself brings is left as it is: there an exception is a bug, and its traceback is wanted.
    """
    if (getattr(own, "__module__", None) or "").partition(".")[0] == "winnow":
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except WinnowError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ConfigError(f"{what} raised {said} ({_raised_at(own, error)})") from error

    return call


def _raised_at(own: Callable[..., Any], error: Exception) -> str:
    """File, line and function of the last call in the file of the user's function; else of the last call at all."""
    while isinstance(own, functools.partial):
        own = own.func
    function = inspect.unwrap(own)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    last = (inside or frames)[-1]
    return f"{last.filename}, line {last.lineno}, in {last.name}"
