"""Names for functions: `register` adds one, `resolve` returns the function.

A member of a family (families.py) is a plain function. Its positional parameters are the family's, its keyword-only
parameters are its options, and its traits declare its other properties. A user's member is given by name, by
`"file.py:function"`, or as the function itself, and passes the same checks as winnow's. An installed package adds
members by an entry point of the group "winnow": a module that registers them when it is imported.
"""

from __future__ import annotations

import functools
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from winnow.errors import INTERRUPTIONS, ConfigError, near_miss
from winnow.families import FAMILIES, OPTION_TRAITS, Family, Traits, unfit
from winnow.installed import entry_points, package_of
from winnow.other_names import remedy_for_member
from winnow.user_code import LOCK, being_imported, file_of, importing, load_function, with_named_errors, without_partial

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Traits)
T_co = TypeVar("T_co", bound=Traits, covariant=True)

GROUP = "winnow"  # the group of entry points
PRESUMING = ("allocate", "advantage", "weighting", "loss")  # keys of one member whose aliases may presume another
GIVEN = " (given from Python)"
_NAME = re.compile(r"\w[\w.+-]*")  # matches no "file.py:function", and no name that ends in GIVEN
_DOTTED = re.compile(r"(?P<module>[^\W\d]\w*(\.\w+)*)[.:](?P<function>[^\W\d]\w*)")

_packages = {"winnow": "winnow"}  # packages with members, by their top-level module: "a package 1.0"


@dataclass(frozen=True)
class Entry(Generic[T_co]):
    """A resolved member: its function, its traits, and its origin."""

    family: Family[T_co]
    name: str
    function: Callable[..., Any]
    traits: T_co
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # other name -> {key: member it presumes}
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
    def origin(self) -> str:
        """The place that registered it: "winnow", "a package 1.0", a file, or "" for a notebook."""
        module = str(self.home.get("__name__", "")).partition(".")[0]
        return _packages.get(module) or str(self.home.get("__file__") or "")

    @property
    def package(self) -> str | None:
        """The installed package with the member, "winnow" for winnow's own; None for a user's.

        Every process on this machine can resolve the member of a package by its name.
        """
        return self.origin.partition(" ")[0] if self.origin in _packages.values() else None


_ENTRIES: dict[str, dict[str, Entry[Any]]] = {name: {} for name in FAMILIES}


def register(
    family: str, name: str | None = None, *, aliases: Mapping[str, Mapping[str, str]] | None = None, **traits: Any
) -> Callable[[F], F]:
    """Register a function in a family under a name, and declare its traits: `register("advantage", baseline="none")`.

    `aliases` maps a published name to the other members that it presumes: {"no_baseline": {"advantage": "raw"}}. Raises
    ConfigError for an unknown family, trait or presumed key, for an invalid name or value of a trait, and for a name
    that is taken.
    """
    own_family, home, published = _family(family), sys._getframe(1).f_globals, aliases or {}
    declared = own_family.declare(traits)
    for alias, presumes in published.items():
        if presumes and not {own_family.key, *presumes} <= set(PRESUMING):  # it would be ignored silently
            raise unfit(
                f"the alias {alias!r} of a {family} presumes {', '.join(map(repr, presumes))}",
                remedy=f"only members of {', '.join(map(repr, PRESUMING))} can presume each other",
            )

    def add(function: F) -> F:
        own_name = name or str(getattr(function, "__name__", ""))
        member = own_family.member_of(function)
        made = replace(own_family.traits_of(member), **{trait: getattr(declared, trait) for trait in traits})
        named = {
            trait: with_named_errors(f"the trait {trait!r} of the {family} {own_name!r}", value, value)
            for trait, value in vars(made).items()
            if callable(value)
        }
        _add(Entry(own_family, own_name, member, replace(made, **named), published, home))
        return function

    return add


def members(family: str) -> dict[str, Entry[Any]]:
    """All members of a family by name, without aliases and with those of installed packages."""
    _family(family).load()
    load_plugins()
    return {name: entry for name, entry in sorted(_ENTRIES[family].items()) if name == entry.name}


@overload
def resolve(family: Family[T], use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[T]: ...
@overload
def resolve(family: str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[Any]: ...
def resolve(family: Family[Any] | str, use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[Any]:
    """The member for a name, for "file.py:function" (relative to `base`), or for the function itself.

    Raises ConfigError with the given name and the nearest existing one, or with all of them where none is near.
    """
    family = _family(family) if isinstance(family, str) else family
    if callable(use):
        return _entry_of(family, use)
    if ".py:" in use:
        return _entry_of(family, load_function(use, base=base), home={"__file__": file_of(use, base=base)})
    if use.endswith(GIVEN):
        raise ConfigError(
            f"only the name of {use!r} was saved", remedy="pass the same function again", code="config.user_code"
        )
    family.load()
    known, failures = _ENTRIES[family.name], ""
    if use not in known or known[use].package != "winnow":
        failures = "; ".join(load_plugins())
    if use not in known:
        broken = f" (an installed package that may have it could not be imported: {failures})" if failures else ""
        raise ConfigError(
            f"no {family.name} is called {use!r}{broken}", remedy=_instead(family, use), code="config.unknown_member"
        )
    return known[use]


def resolve_at(key: str, family: Family[T], use: str | Callable[..., Any], *, base: Path | None = None) -> Entry[T]:
    """`resolve`, with `key` added to a ConfigError: the key of the configuration that names the member."""
    try:
        return resolve(family, use, base=base)
    except ConfigError as error:
        raise error.under(key) from error


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function in a saved configuration: its registered name, else one that no member can have."""
    entries = (entry for known in _ENTRIES.values() for entry in known.values())
    own = getattr(function, "__qualname__", repr(function))
    return next((entry.name for entry in entries if entry.function is function), f"{own}{GIVEN}")


def load_plugins() -> tuple[str, ...]:
    """Import every module that an installed package names in the entry-point group "winnow", once per process.

    Returns a message for each failed import; the members of the other modules are registered nevertheless.
    """
    with LOCK:
        if being_imported() in _packages.values():  # a package resolves a name while it is imported
            return ()
        return _import_plugins()


@functools.cache  # not where it is interrupted: the next call starts again
def _import_plugins() -> tuple[str, ...]:
    broken = []
    for point in entry_points(GROUP):
        package = point.name
        try:
            package = package_of(point)
            _packages.setdefault(point.module.partition(".")[0], package)
            with importing(package):
                point.load()
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            broken.append(f"{package} ({point.value}) raised {type(error).__name__}: {error}")
    return tuple(broken)


def _family(name: str) -> Family[Any]:
    if name not in FAMILIES:
        raise ConfigError(
            f"there is no family {name!r}", remedy=near_miss(name, FAMILIES), code="config.unknown_member"
        )
    return FAMILIES[name]


# Parameters of a reward of TRL or verl, of which two are as many as a reward of winnow has
_FOREIGN = {"completions", "data_source", "ground_truth", "solution_str"}


def _check_function(entry: Entry[Any]) -> None:
    """Raise ConfigError for parameters that are not the family's, and for a trait with an option that is not there."""
    family, where = entry.family, entry.origin and f"{entry.origin}: "
    try:
        signature = inspect.signature(entry.function)
    except ValueError:  # some built-in functions have no signature
        signature = inspect.Signature([inspect.Parameter("unknown", inspect.Parameter.VAR_POSITIONAL)])
    kinds = [p.kind for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    open_ended = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    foreign = family.name == "reward" and not _FOREIGN.isdisjoint(signature.parameters)
    if len(kinds) != len(family.positional) or open_ended & set(kinds) or foreign:
        raise unfit(
            f"{where}{entry.name}{signature} does not fit the family {family.name}",
            remedy=f"define it with exactly ({', '.join(family.positional)}) by position, and with its options after a "
            f"bare * as keyword-only parameters",
        )
    for trait in OPTION_TRAITS:
        named = getattr(entry.traits, trait, None) or ()
        for option in (named,) if isinstance(named, str) else named:
            if option not in entry.options:  # it would be ignored, or fail only in a run
                raise unfit(
                    f"{where}the trait {trait!r} of the {family.name} {entry.name!r} names {option!r}, and the "
                    f"function has no such option",
                    remedy=near_miss(option, entry.options) or "remove it from the trait: the function has no options",
                )


def _add(entry: Entry[Any]) -> None:
    """Register all names of a member, or none. Winnow's members come first, so that their names cannot be taken."""
    if entry.package != "winnow":
        entry.family.load()
    _check_function(entry)
    _forget_earlier_runs(entry.home)
    family, known = entry.family.name, _ENTRIES[entry.family.name]
    names = (entry.name, *entry.aliases)
    for name in names:
        if not _NAME.fullmatch(name):
            raise unfit(
                f"no {family} can be called {name!r}",
                remedy=f"give it a name of letters, digits and _, as register({family!r}, 'mine') does",
            )
        if name in known and not _replaces(entry, known[name]):
            where = known[name].origin or "this process"
            raise unfit(f"the {family} {name!r} is already registered by {where}", remedy="choose another name")
    known.update(dict.fromkeys(names, entry))


def _forget_earlier_runs(home: Mapping[str, Any]) -> None:
    """Remove the members that an earlier text of this module registered: its present text may register fewer."""
    for known in _ENTRIES.values():
        for name, entry in list(known.items()):
            if entry.home is not home and entry.home.get("__name__") == home.get("__name__", ""):
                del known[name]


def _replaces(entry: Entry[Any], earlier: Entry[Any]) -> bool:
    """Whether a notebook's cell or a module ran twice. Two members of one name in one run are a mistake."""
    names = {getattr(each.function, "__qualname__", "") for each in (entry, earlier)}
    return entry.home is earlier.home and not being_imported() and len(names) == 1 and names.pop().isidentifier()


def _instead(family: Family[Any], use: str) -> str:
    """The remedy for an unknown name: the form of a function or a file of the user's, the member that papers or other
    programs call so, or the nearest name.
    """
    known = _ENTRIES[family.name]
    if use.endswith(".py"):
        return f"name a function of the file: {use + ':function'!r}"
    reader = known.get(Path(use).suffix[1:])
    if reader is not None and "path" in reader.options:
        path = f"{family.key}.path"
        return f"use {reader.name!r} with {path} = {use!r} (on the command line --set {shlex.quote(f'{path}={use}')})"
    return remedy_for_member(family.key, use) or ", or ".join(filter(None, (_as_function(use), near_miss(use, known))))


def _as_function(use: str) -> str:
    """The remedy for "module.function" and "module:function"; "" for any other name."""
    dotted = _DOTTED.fullmatch(use)
    if dotted is None:
        return ""
    example = f"{dotted['module'].replace('.', '/')}.py:{dotted['function']}"
    return f"name a function of your own as 'file.py:function', such as {example!r}"


def _entry_of(family: Family[T], function: Callable[..., Any], *, home: Mapping[str, Any] | None = None) -> Entry[T]:
    """The entry under which a function is registered, else one with the family's default traits."""
    member = family.member_of(function)
    for known in _ENTRIES[family.name].values():
        if known.function is member:
            return known
    name = getattr(function, "__name__", type(function).__name__)
    entry = Entry(family, name, member, family.traits_of(member), home=home or {})
    _check_function(entry)
    return entry


def description(entry: Entry[Any]) -> str:
    """A member's docstring up to the first line that ends a sentence."""
    lines = (inspect.getdoc(without_partial(entry.function)) or "").partition("\n\n")[0].splitlines()
    end = next((number for number, line in enumerate(lines, start=1) if line.endswith(".")), 1)
    return " ".join(lines[:end])
