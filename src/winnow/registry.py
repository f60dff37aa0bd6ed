"""Names for functions: `register` gives one, `resolve` finds one, `bind` sets its options.

A member of a family (families.py) is a plain function. Its positional parameters are the family's, its keyword-only
parameters are its options; its traits say the rest. A user's own comes by name, by `"file.py:function"`, or as the
function itself, and goes through the same checks as winnow's. An installed package brings members by an entry point of
the group "winnow": a module that registers them when it is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import pydantic
from pydantic import ConfigDict, TypeAdapter

from winnow.errors import ConfigError, did_you_mean
from winnow.families import FAMILIES, Family, Traits
from winnow.user_code import load_function, said_by_name

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Traits)
T_co = TypeVar("T_co", bound=Traits, covariant=True)

GROUP = "winnow"  # of entry points
GIVEN = " (given from Python)"

# "4" is not 4, but a TOML array is a tuple or a list, whichever the option wants.
_OPTION_TYPES = ConfigDict(strict=False, arbitrary_types_allowed=True, coerce_numbers_to_str=False)


@dataclass(frozen=True)
class Entry(Generic[T_co]):
    """A resolved member: its function, what it declares about itself, and where it comes from."""

    family: Family[T_co]
    name: str
    function: Callable[..., Any]
    traits: T_co
    presumes: Mapping[str, str] = field(default_factory=dict)  # of a published name: {key: member}
    origin: str = ""  # "winnow", "a package 1.0", a file, or "" where a function was given as an object

    @functools.cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters, by name."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def defaults(self) -> dict[str, Any]:
        """Of the options that have one."""
        return {name: p.default for name, p in self.options.items() if p.default is not p.empty}

    @property
    def summary(self) -> str:
        """The docstring up to the first line that ends a sentence."""
        lines = (inspect.getdoc(self.function) or "").partition("\n\n")[0].splitlines()
        end = next((number for number, line in enumerate(lines, start=1) if line.endswith(".")), 1)
        return " ".join(lines[:end])


@dataclass(frozen=True)
class Bound(Generic[T_co]):
    """A member with its options set; call it with what its family says."""

    entry: Entry[T_co]
    options: Mapping[str, Any]  # every one that has a value, given or by default
    call: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def traits(self) -> T_co:
        return self.entry.traits


_ENTRIES: dict[str, dict[str, Entry[Any]]] = {name: {} for name in FAMILIES}
_origins: list[str] = []  # of what is being imported, the innermost last
_packages: set[str] = set()  # of these, the installed packages
_plugins: dict[str, str] | None = None  # entry points that were imported: name -> why that failed, or ""


def register(
    family: str, name: str | None = None, *, aliases: Mapping[str, Mapping[str, str]] | None = None, **traits: Any
) -> Callable[[F], F]:
    """Give a function a name in a family, and declare its traits: `register("advantage", baseline="none")`.

    `aliases` maps a published name to what else it presumes: {"no_baseline": {"advantage": "raw"}}. Raises ConfigError
    for a family, a trait or a value of one that does not exist, and for a name that is taken.
    """
    if family not in FAMILIES:
        raise ConfigError(f"there is no family {family!r}{did_you_mean(family, FAMILIES)}")
    declared = _traits(FAMILIES[family], traits)

    def add(function: F) -> F:
        own_name = name or function.__name__
        origin = _origin(function)
        for called, presumes in {own_name: {}, **(aliases or {})}.items():
            _add(Entry(FAMILIES[family], own_name, function, declared, presumes, origin), under=called)
        return function

    return add


def _traits(family: Family[T], given: Mapping[str, Any]) -> T:
    known = [each.name for each in dataclasses.fields(family.traits)]
    for trait in given:
        if trait not in known:
            raise ConfigError(f"the family {family.name} has no trait {trait!r}{did_you_mean(trait, known)}")
    try:
        _declarations(family).validate_python(dict(given))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        trait = ".".join(map(str, first["loc"]))
        said = first["msg"][:1].lower() + first["msg"][1:]
        raise ConfigError(f"the trait {trait!r} of the family {family.name} is {first['input']!r}: {said}") from error
    return family.traits(**given)


@functools.cache
def _declarations(family: Family[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(family.traits)


def _add(entry: Entry[Any], *, under: str) -> None:
    _check_signature(entry)
    known = _ENTRIES[entry.family.name].get(under)
    if known is not None and not _same_place(known.function, entry.function):
        where = f" by {known.origin}" if known.origin else ""
        raise ConfigError(f"the {entry.family.name} {under!r} is already registered{where}; choose another name")
    _ENTRIES[entry.family.name][under] = entry


def members(family: str) -> dict[str, Entry[Any]]:
    """Everything registered in a family, by name, aliases left out; installed packages' members too."""
    _load(FAMILIES[family])
    return {name: entry for name, entry in sorted(_ENTRIES[family].items()) if name == entry.name}


def aliases(family: str) -> dict[str, str]:
    """Published names that mean one of ours: alias -> name."""
    _load(FAMILIES[family])
    return {name: entry.name for name, entry in sorted(_ENTRIES[family].items()) if name != entry.name}


@overload
def resolve(family: Family[T], use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[T]: ...
@overload
def resolve(family: str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[Any]: ...
def resolve(family: Family[Any] | str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[Any]:
    """Find a member by name, by "file.py:function" (relative to `base`), or take the function itself.

    Raises ConfigError naming what was asked for and what exists.
    """
    family = FAMILIES[family] if isinstance(family, str) else family
    if callable(use):
        return _entry_of(family, use)
    if ".py:" in use:
        file = (base or Path.cwd()) / use.rpartition(":")[0]
        with_origin = functools.partial(load_function, use, base=base)
        return _entry_of(family, _importing(str(file), with_origin), where=f"{use!r}: ", origin=str(file))
    if use.endswith(GIVEN):
        raise ConfigError(f"only the name of {use!r} was saved; give the same function again")
    if use not in _ENTRIES[family.name]:
        family.load()
    if use not in _ENTRIES[family.name]:
        load_plugins()
    if use not in _ENTRIES[family.name]:
        raise ConfigError(f"no {family.name} is called {use!r}{_instead(family.name, use)}{_broken_plugins()}")
    return _ENTRIES[family.name][use]


def name_of(function: Callable[..., Any]) -> str:
    """What stands for a function in text: its registered name, else one that no member can have."""
    entries = (entry for family in _ENTRIES.values() for entry in family.values())
    own = getattr(function, "__qualname__", repr(function))
    return next((entry.name for entry in entries if entry.function is function), f"{own}{GIVEN}")


def in_every_process(entry: Entry[Any]) -> bool:
    """Whether every process on this machine finds the member by its name: it is winnow's or an installed package's."""
    return entry.origin == "winnow" or entry.origin in _packages


def load_plugins() -> Mapping[str, str]:
    """Import every module that an installed package names in the entry-point group "winnow", once per process.

    Returns {entry point: why it could not be imported}; one that is broken does not keep the others from their names.
    """
    global _plugins
    if _plugins is None:
        _plugins = {}
        for point in importlib.metadata.entry_points(group=GROUP):
            package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            try:
                _packages.add(package)
                _importing(package, point.load)
                _plugins[point.name] = ""
            except Exception as error:
                _plugins[point.name] = f"{package} ({point.value}) raised {type(error).__name__}: {error}"
    return {name: why for name, why in _plugins.items() if why}


def _load(family: Family[Any]) -> None:
    family.load()
    load_plugins()


def _broken_plugins() -> str:
    said = "; ".join(load_plugins().values())
    return f"; an installed package may have it, which could not be imported: {said}" if said else ""


def _importing(origin: str, load: Callable[[], Any]) -> Any:
    """What `load` returns; what it registers comes from `origin`."""
    _origins.append(origin)
    try:
        return load()
    finally:
        _origins.pop()


def _origin(function: Callable[..., Any]) -> str:
    if (getattr(function, "__module__", None) or "").partition(".")[0] == "winnow":
        return "winnow"
    return _origins[-1] if _origins else ""


def _instead(family: str, use: str) -> str:
    """What is meant by a name that is no member's: the one that says so of itself, else the nearest."""
    known = ((entry.name, entry.traits.instead_of) for entry in _ENTRIES[family].values())
    meant = next((f"; {name!r} is {names[use]}" for name, names in known if use in names), None)
    return meant or did_you_mean(use, _ENTRIES[family])


def bind(entry: Entry[T], options: Mapping[str, Any], *, key: str) -> Bound[T]:
    """The member with its options set; refuses options it does not have and demands those without a default.

    `key` is where the options stand in the configuration, for the message.
    """
    family, known = entry.family.name, entry.options
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) if known else "; it takes no options"
            raise ConfigError(f"{key}.{name}: the {family} {entry.name!r} has no such option{hint}")
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(f"{key}.{name} is missing: the {family} {entry.name!r} needs it")
    checked = {name: _checked(entry, name, value, key=f"{key}.{name}") for name, value in options.items()}
    values = {**entry.defaults, **checked}
    function = functools.partial(entry.function, **checked) if checked else entry.function
    if family != "reward":  # what a reward raises is a verdict, which says so itself
        function = said_by_name(f"the {family} {entry.name!r}", entry.function, function)
    return Bound(entry, values, function)


def _checked(entry: Entry[Any], name: str, value: Any, *, key: str) -> Any:
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
            f"{key} is {value!r}: {said[:1].lower()}{said[1:]} (an option of the {entry.family.name} {entry.name!r})"
        ) from error


def _entry_of(family: Family[T], function: Callable[..., Any], *, where: str = "", origin: str = "") -> Entry[T]:
    """The entry under which a function is registered, else one with the family's default traits."""
    for known in _ENTRIES[family.name].values():
        if known.function is function:
            return known
    name = getattr(function, "__name__", type(function).__name__)
    entry = Entry(family, name, function, family.traits(), origin=origin)
    _check_signature(entry, where=where)
    return entry


def _check_signature(entry: Entry[Any], *, where: str = "") -> None:
    expected = entry.family.positional
    try:
        signature = inspect.signature(entry.function)
    except ValueError:  # some of Python's own functions have none
        signature = inspect.Signature([inspect.Parameter("unknown", inspect.Parameter.VAR_POSITIONAL)])
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(positional) != len(expected) or open_ended:
        raise ConfigError(
            f"{where}{entry.name}{signature} does not fit the family {entry.family.name}: it must take exactly "
            f"({', '.join(expected)}) by position, and its options after a bare * as keyword-only parameters"
        )


def _same_place(a: Callable[..., Any], b: Callable[..., Any]) -> bool:
    """True when b is a again, from a module imported a second time (a user's file whose text has changed)."""
    return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)
