"""Names for functions: `register` gives one, `resolve` finds one, `bind` sets its options.

A member of a family is a plain function. Its positional parameters are the family's (`FAMILIES`), its keyword-only
parameters are its options; nothing else describes it. A user's own comes by name, by `"file.py:function"`, or as the
function itself, and goes through the same checks as winnow's.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pydantic
from pydantic import ConfigDict, TypeAdapter

from winnow.errors import ConfigError, WinnowError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

# "4" is not 4, but a TOML array is a tuple or a list, whichever the option wants.
_OPTION_TYPES = ConfigDict(strict=False, arbitrary_types_allowed=True, coerce_numbers_to_str=False)

FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task": ("split",),
        "reward": ("prompt", "rollout"),
        "allocator": ("stats", "budget"),
        "selector": ("group", "rng"),
        "advantage": ("groups",),
        "weighting": ("kept",),
        "loss": ("out", "mb"),
        "term": ("out", "mb"),
        "engine": ("context",),
    }
)


@dataclass(frozen=True)
class Entry:
    """A resolved member: its function, and what it declares about itself."""

    family: str
    name: str
    function: Callable[..., Any]
    traits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters, by name."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def summary(self) -> str:
        """The docstring up to the first line that ends a sentence."""
        lines = (inspect.getdoc(self.function) or "").partition("\n\n")[0].splitlines()
        end = next((number for number, line in enumerate(lines, start=1) if line.endswith(".")), 1)
        return " ".join(lines[:end])


GIVEN = " (given from Python)"
_importing: list[Path] = []  # the files of users' that are being imported, the innermost last

_ENTRIES: dict[str, dict[str, Entry]] = {family: {} for family in FAMILIES}


def register(
    family: str, name: str | None = None, *, aliases: Mapping[str, Mapping[str, str]] | None = None, **traits: Any
) -> Callable[[F], F]:
    """Give a function a name in a family. `traits` are what contract tests and the corridor read
    (`baseline="group"` of an advantage, `needs=("ref_logprobs",)` of a term; `instead_of` of any: {a name that people
    look for: what this member is to them}).

    `aliases` maps a published name to what else it presumes: {"no_baseline": {"advantage": "raw"}}.
    """

    def add(function: F) -> F:
        own_name = name or function.__name__
        _add(Entry(family, own_name, function, MappingProxyType(traits)))
        for alias, presumes in (aliases or {}).items():
            _add(Entry(family, own_name, function, MappingProxyType({**traits, "presumes": presumes})), under=alias)
        return function

    return add


def _add(entry: Entry, *, under: str | None = None) -> None:
    _check_signature(entry)
    name = under or entry.name
    known = _ENTRIES[entry.family].get(name)
    if known is not None and not _same_place(known.function, entry.function):
        raise ConfigError(f"the {entry.family} {name!r} is already registered; choose another name")
    _ENTRIES[entry.family][name] = entry


def members(family: str) -> dict[str, Entry]:
    """Everything registered in a family, by name, aliases left out."""
    return {name: entry for name, entry in sorted(_ENTRIES[family].items()) if name == entry.name}


def aliases(family: str) -> dict[str, str]:
    """Published names that mean one of ours: alias -> name."""
    return {name: entry.name for name, entry in sorted(_ENTRIES[family].items()) if name != entry.name}


def resolve(family: str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry:
    """Find a member by name, by "file.py:function" (relative to `base`), or take the function itself.

    Raises ConfigError naming what was asked for and what exists.
    """
    if callable(use):
        entry = _entry_of(family, use)
        _check_signature(entry)
        return entry
    if ".py:" in use:
        entry = _entry_of(family, load_function(use, base=base))
        _check_signature(entry, where=f"{use!r}: ")
        return entry
    if use.endswith(GIVEN):
        raise ConfigError(f"only the name of {use!r} was saved; give the same function again")
    if use not in _ENTRIES[family]:
        raise ConfigError(f"no {family} is called {use!r}{_instead(family, use)}")
    return _ENTRIES[family][use]


def name_of(function: Callable[..., Any]) -> str:
    """What stands for a function in text: its registered name, else one that no member can have."""
    entries = (entry for family in _ENTRIES.values() for entry in family.values())
    own = getattr(function, "__qualname__", repr(function))
    return next((entry.name for entry in entries if entry.function is function), f"{own}{GIVEN}")


def _instead(family: str, use: str) -> str:
    """What is meant by a name that is no member's: the one that says so of itself, else the nearest."""
    known = ((entry.name, entry.traits.get("instead_of", {})) for entry in _ENTRIES[family].values())
    meant = next((f"; {name!r} is {names[use]}" for name, names in known if use in names), None)
    return meant or did_you_mean(use, _ENTRIES[family])


def bind(entry: Entry, options: Mapping[str, Any], *, key: str) -> Callable[..., Any]:
    """The member with its options set; refuses options it does not have and demands those without a default.

    `key` is where the options stand in the configuration, for the message.
    """
    known = entry.options
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) if known else "; it takes no options"
            raise ConfigError(f"{key}.{name}: the {entry.family} {entry.name!r} has no such option{hint}")
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(f"{key}.{name} is missing: the {entry.family} {entry.name!r} needs it")
    checked = {name: _checked(entry, name, value, key=f"{key}.{name}") for name, value in options.items()}
    function = functools.partial(entry.function, **checked) if checked else entry.function
    if entry.family == "reward":  # what it raises is a verdict, which says so itself
        return function
    return said_by_name(f"the {entry.family} {entry.name!r}", entry.function, function)


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


def load_function(path: str, *, base: Path | None = None) -> Callable[..., Any]:
    """Import `function` from `"file.py:function"`. The file is the user's own, trusted code: its text, as it stands."""
    file_name, _, function_name = path.rpartition(":")
    file = (base or Path.cwd()) / file_name
    if not file_name.endswith(".py"):  # Python would import compiled code as well, of which nobody sees what it does
        raise ConfigError(f"{path!r}: functions come from a .py file; write it as file.py:function")
    if not file.is_file():
        raise ConfigError(f"{path!r}: there is no file {file}")
    module_name = "winnow_user_" + re.sub(r"\W", "_", str(file.resolve()))
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None, "a .py file always has a loader"
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    _importing.append(file)
    try:  # not by the loader, which may take a compiled file beside it, of which nobody sees what it does
        exec(compile(file.read_bytes(), spec.origin, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        raise ConfigError(f"{path!r}: importing {file} raised {type(error).__name__}: {error}") from error
    finally:
        _importing.pop()
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(f"{path!r}: {file} has no function {function_name!r}{did_you_mean(function_name, public)}")
    return function  # type: ignore[no-any-return]


def check_not_importing() -> None:
    """Raise ConfigError inside a file that is being imported for its functions: it must not start a run by that."""
    if _importing:
        raise ConfigError(
            f"{_importing[-1]} is imported for its functions, and calls winnow while it is: put that call under "
            f'`if __name__ == "__main__":`'
        )


def _checked(entry: Entry, name: str, value: Any, *, key: str) -> Any:
    """The value as the option's annotation wants it; a user's unannotated or exotic option takes anything."""
    try:
        hint = typing.get_type_hints(entry.function, include_extras=True).get(name)
    except NameError:  # an annotation that only a type checker can see
        return value
    if hint is None:
        return value
    try:
        return TypeAdapter(hint, config=_OPTION_TYPES).validate_python(value)
    except pydantic.ValidationError as error:
        said = error.errors()[0]["msg"]
        raise ConfigError(
            f"{key} is {value!r}: {said[:1].lower()}{said[1:]} (an option of the {entry.family} {entry.name!r})"
        ) from error


def _entry_of(family: str, function: Callable[..., Any]) -> Entry:
    for entry in _ENTRIES[family].values():
        if entry.function is function:
            return entry
    return Entry(family, getattr(function, "__name__", type(function).__name__), function)


def _check_signature(entry: Entry, *, where: str = "") -> None:
    expected = FAMILIES[entry.family]
    try:
        signature = inspect.signature(entry.function)
    except ValueError:  # some of Python's own functions have none
        signature = inspect.Signature([inspect.Parameter("unknown", inspect.Parameter.VAR_POSITIONAL)])
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(positional) != len(expected) or open_ended:
        raise ConfigError(
            f"{where}{entry.name}{signature} does not fit the family {entry.family}: it must take exactly "
            f"({', '.join(expected)}) by position, and its options after a bare * as keyword-only parameters"
        )


def _same_place(a: Callable[..., Any], b: Callable[..., Any]) -> bool:
    """True when b is a again, from a module imported a second time (a user's file, re-read by a worker)."""
    return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)
