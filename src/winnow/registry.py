"""Names for functions: `register` adds one, `resolve` returns the function.

A member of a family (families.py) is a plain function. Its positional parameters are the family's, its keyword-only
parameters are its options, and its traits declare its other properties. A user's member is given by name, by
`"file.py:function"`, or as the function itself, and passes the same checks as winnow's. An installed package adds
members by an entry point of the group "winnow": a module that registers them when it is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import pydantic
from pydantic import TypeAdapter

from winnow.errors import INTERRUPTIONS, ConfigError, accepted_value, near_miss
from winnow.families import FAMILIES, Family, Traits
from winnow.user_code import being_imported, file_of, importing, load_function, with_named_errors, without_partial

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Traits)
T_co = TypeVar("T_co", bound=Traits, covariant=True)

GROUP = "winnow"  # the group of entry points
PRESUMING = ("allocate", "advantage", "weighting", "loss")  # keys of one member whose aliases may presume another
GIVEN = " (given from Python)"
_NAME = re.compile(r"\w[\w.+-]*")  # matches no "file.py:function", and no name that ends in GIVEN


def _unfit(problem: str, *, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, code="config.registration")


@dataclass(frozen=True)
class Entry(Generic[T_co]):
    """A resolved member: its function, its traits, and its origin."""

    family: Family[T_co]
    name: str
    function: Callable[..., Any]
    traits: T_co
    presumes: Mapping[str, str] = field(default_factory=dict)  # other members that an alias implies: {key: member}
    origin: str = ""  # "winnow", "a package 1.0", a file, or "" where only this process can resolve it
    home: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # globals of its module

    @functools.cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters, by name."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each option that has one."""
        return {name: p.default for name, p in self.options.items() if p.default is not p.empty}

    @property
    def summary(self) -> str:
        """The docstring up to the first line that ends a sentence."""
        lines = (inspect.getdoc(without_partial(self.function)) or "").partition("\n\n")[0].splitlines()
        end = next((number for number, line in enumerate(lines, start=1) if line.endswith(".")), 1)
        return " ".join(lines[:end])


_ENTRIES: dict[str, dict[str, Entry[Any]]] = {name: {} for name in FAMILIES}
_twins: dict[tuple[str, str], Entry[Any]] = {}  # registered by a script that is also imported as a file
_packages: dict[str, str] = {}  # installed packages with members: "a package 1.0" -> its top-level module
_broken: list[str] | None = None  # the failed imports of packages; None before the first import
_lock = threading.RLock()  # held while packages are imported: a second thread waits for their members


def register(
    family: str, name: str | None = None, *, aliases: Mapping[str, Mapping[str, str]] | None = None, **traits: Any
) -> Callable[[F], F]:
    """Register a function in a family under a name, and declare its traits: `register("advantage", baseline="none")`.

    `aliases` maps a published name to the other members that it presumes: {"no_baseline": {"advantage": "raw"}}. Raises
    ConfigError for an unknown family, trait or presumed key, for an invalid name or value of a trait, and for a name
    that is taken.
    """
    declared, home = _traits(family_of(family), traits), sys._getframe(1).f_globals
    _check_presumed(FAMILIES[family], aliases or {})

    def add(function: F) -> F:
        own_name = name or str(getattr(function, "__name__", ""))
        named = _with_named_errors(declared, f"the {family} {own_name!r}")
        entry = Entry(FAMILIES[family], own_name, function, named, origin=_origin(home), home=home)
        _check_named_options(entry)
        _add({own_name: entry, **{a: replace(entry, presumes=presumes) for a, presumes in (aliases or {}).items()}})
        return function

    return add


def family_of(name: str) -> Family[Any]:
    """The family of this name. Raises ConfigError."""
    if name not in FAMILIES:
        raise ConfigError(
            f"there is no family {name!r}", remedy=near_miss(name, FAMILIES), code="config.unknown_member"
        )
    return FAMILIES[name]


def _check_presumed(family: Family[Any], aliases: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigError for a presumed key without an effect, which would be ignored silently."""
    for alias, presumes in aliases.items():
        for key in presumes:
            if family.key not in PRESUMING:
                raise _unfit(
                    f"the alias {alias!r} of the family {family.name} cannot presume other members",
                    remedy=f"map it to an empty table: aliases={{{alias!r}: {{}}}}",
                )
            if key not in PRESUMING:
                raise _unfit(
                    f"the alias {alias!r} presumes {key!r}, which is not a key of one member",
                    remedy=near_miss(key, PRESUMING),
                )


def _traits(family: Family[T], given: Mapping[str, Any]) -> T:
    known = [each.name for each in dataclasses.fields(family.traits)]
    for trait in given:
        if trait not in known:
            raise _unfit(f"the family {family.name} has no trait {trait!r}", remedy=near_miss(trait, known))
    try:
        declared: T = _declarations(family).validate_python(dict(given))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        trait = ".".join(map(str, first["loc"]))
        raise _unfit(
            f"the trait {trait!r} of the family {family.name} is {first['input']!r}",
            remedy=accepted_value(first["msg"]),
        ) from error
    return declared


def _with_named_errors(traits: T, what: str) -> T:
    """The same traits with functions that raise ConfigError with name, file and line where a user's function raises."""
    named: dict[str, Any] = {}
    for name, value in vars(traits).items():
        if callable(value):
            named[name] = with_named_errors(f"the trait {name!r} of {what}", value, value)
    return replace(traits, **named)


def _check_named_options(entry: Entry[Any]) -> None:
    """Raise ConfigError for a trait with an unknown option, which would be ignored, or fail only in a run."""
    for trait, names in entry.traits.named_options().items():
        for name in names:
            if name not in entry.options:
                raise _unfit(
                    f"the trait {trait!r} of the {entry.family.name} {entry.name!r} names {name!r}, and the function "
                    f"has no such option",
                    remedy=near_miss(name, entry.options) or "remove it from the trait: the function has no options",
                )


@functools.cache
def _declarations(family: Family[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(family.traits)


def _add(entries: Mapping[str, Entry[Any]]) -> None:
    """Register all names of a member, or none. Winnow's members come first, so that their names cannot be taken."""
    entry = next(iter(entries.values()))
    if entry.origin != "winnow":
        entry.family.load()
    _forget_earlier_runs(entry.home)
    known = _ENTRIES[entry.family.name]
    for name in entries:
        if not _NAME.fullmatch(name):
            raise _unfit(
                f"no {entry.family.name} can be called {name!r}",
                remedy=f"give it a name of letters, digits and _, as register({entry.family.name!r}, 'mine') does",
            )
        if name in known and _same_file(known[name], entry):
            _twins[entry.family.name, name] = known[name]
        elif name in known and not _same_place(known[name], entry):
            where = known[name].origin or "this process"
            raise _unfit(
                f"the {entry.family.name} {name!r} is already registered by {where}", remedy="choose another name"
            )
    _check_signature(entry)
    known.update(entries)


def _forget_earlier_runs(home: Mapping[str, Any]) -> None:
    """Remove the members that an earlier text of this module registered: its present text may register fewer."""
    for known in _ENTRIES.values():
        for name, entry in list(known.items()):
            if entry.home is not home and entry.home.get("__name__") == home.get("__name__", ""):
                del known[name]


def _same_place(a: Entry[Any], b: Entry[Any]) -> bool:
    """Whether b replaces a: a notebook's cell or a module ran twice. Two of one name in one run are a mistake."""
    names = [getattr(each.function, "__qualname__", "") for each in (a, b)]
    return a.home is b.home and names[0] == names[1] and names[0].isidentifier() and not being_imported()


def _same_file(a: Entry[Any], b: Entry[Any]) -> bool:
    """Whether both are from one file: a running script that names one of its functions as "file.py:function"."""
    files = [each.home.get("__file__") for each in (a, b)]
    return a.home is not b.home and None not in files and len(set(map(os.path.realpath, filter(None, files)))) == 1


def members(family: str) -> dict[str, Entry[Any]]:
    """All members of a family by name, without aliases and with those of installed packages."""
    _load(family_of(family))
    return {name: entry for name, entry in sorted(_ENTRIES[family].items()) if name == entry.name}


def aliases(family: str) -> dict[str, str]:
    """Published names of a family's members, also those of installed packages: alias -> name."""
    _load(family_of(family))
    return {name: entry.name for name, entry in sorted(_ENTRIES[family].items()) if name != entry.name}


@overload
def resolve(family: Family[T], use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[T]: ...
@overload
def resolve(family: str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[Any]: ...
def resolve(family: Family[Any] | str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[Any]:
    """The member for a name, for "file.py:function" (relative to `base`), or for the function itself.

    Raises ConfigError with the given name and the nearest existing one, or with all of them where none is near.
    """
    family = family_of(family) if isinstance(family, str) else family
    if callable(use):
        return _entry_of(family, use)
    if ".py:" in use:
        function = load_function(use, base=base)
        return _entry_of(family, function, where=f"{use!r}: ", origin=str(file_of(use, base=base)))
    if use.endswith(GIVEN):
        raise ConfigError(
            f"only the name of {use!r} was saved", remedy="pass the same function again", code="config.user_code"
        )
    family.load()
    if use not in _ENTRIES[family.name] or _ENTRIES[family.name][use].origin != "winnow":
        load_plugins()
    if use not in _ENTRIES[family.name]:
        raise ConfigError(
            f"no {family.name} is called {use!r}{_broken_plugins()}",
            remedy=_instead(family.name, use),
            code="config.unknown_member",
        )
    return _ENTRIES[family.name][use]


def resolve_at(key: str, family: Family[T], use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[T]:
    """`resolve`, with `key` added to a ConfigError: the key of the configuration that names the member."""
    try:
        return resolve(family, use, base=base)
    except ConfigError as error:
        raise error.under(key) from error


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function in a saved configuration: its registered name, else one that no member can have."""
    entries = (entry for family in FAMILIES for entry in _registered(family))
    own = getattr(function, "__qualname__", repr(function))
    return next((entry.name for entry in entries if entry.function is function), f"{own}{GIVEN}")


def in_every_process(entry: Entry[Any]) -> bool:
    """Whether every process on this machine can resolve the member by name: it is winnow's or a package's."""
    return entry.origin == "winnow" or entry.origin in _packages


def package_name(entry: Entry[Any]) -> str | None:
    """The name of the installed package with this member; None for a member of winnow or of a user."""
    return entry.origin.rpartition(" ")[0] if entry.origin in _packages else None


def load_plugins() -> Sequence[str]:
    """Import every module that an installed package names in the entry-point group "winnow", once per process.

    Returns a message for each failed import; the members of the other modules are registered nevertheless.
    """
    global _broken
    with _lock:
        if _broken is None:
            _broken = []  # not None: a package that resolves a name while it is imported must not start this again
            try:
                points = importlib.metadata.entry_points(group=GROUP)
                for point in sorted(points, key=lambda point: (point.name, point.value)):  # same order in all processes
                    _import_plugin(point, _broken)
            except BaseException:  # interrupted: the next call starts again
                _broken = None
                raise
        return tuple(_broken)


def _import_plugin(point: EntryPoint, broken: list[str]) -> None:
    package = ""
    try:
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        _packages[package] = point.module.partition(".")[0]
        with importing(package):
            point.load()
        _settle(package)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        broken.append(f"{package} ({point.value}) raised {type(error).__name__}: {error}".strip())


def _settle(package: str) -> None:
    """Set the package as the origin of its members, also where another module had imported them before."""
    module = _packages[package]
    for known in _ENTRIES.values():
        for name, entry in known.items():
            if _top(entry.home) == module and _packages.get(entry.origin) != module:
                known[name] = replace(entry, origin=package)


def _load(family: Family[Any]) -> None:
    family.load()
    load_plugins()


def _broken_plugins() -> str:
    failures = "; ".join(load_plugins())
    return f" (an installed package that may have it could not be imported: {failures})" if failures else ""


def _origin(home: Mapping[str, Any]) -> str:
    return "winnow" if _top(home) == "winnow" else being_imported()


def _top(home: Mapping[str, Any]) -> str:
    return str(home.get("__name__", "")).partition(".")[0]


def _instead(family: str, use: str) -> str:
    """The remedy for an unknown name: the member that declares it as `instead_of`, else the nearest name."""
    known = ((entry.name, entry.traits.instead_of) for entry in _ENTRIES[family].values())
    declared = next((f"use {name!r}: {names[use]}" for name, names in known if use in names), None)
    if use.endswith(".py"):
        return f"name a function of the file: {use + ':function'!r}"
    return declared or near_miss(use, _ENTRIES[family])


def _registered(family: str) -> Sequence[Entry[Any]]:
    return [*_ENTRIES[family].values(), *(entry for (name, _), entry in _twins.items() if name == family)]


def _entry_of(family: Family[T], function: Callable[..., Any], *, where: str = "", origin: str = "") -> Entry[T]:
    """The entry under which a function is registered, else one with the family's default traits."""
    for known in _registered(family.name):
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
    except ValueError:  # some built-in functions have no signature
        signature = inspect.Signature([inspect.Parameter("unknown", inspect.Parameter.VAR_POSITIONAL)])
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(positional) != len(expected) or open_ended:
        raise _unfit(
            f"{where}{entry.name}{signature} does not fit the family {entry.family.name}",
            remedy=f"define it with exactly ({', '.join(expected)}) by position, and with its options after a bare * "
            f"as keyword-only parameters",
        )
