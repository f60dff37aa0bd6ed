"""What a configuration can name: every key, read from `Config`, and every member, read from the registry."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from winnow.config import Config, Member, RewardSection, sections_in
from winnow.errors import ConfigError, near_miss
from winnow.evaluation.settings import format_toml
from winnow.families import FAMILIES, Family
from winnow.metrics import METRICS
from winnow.registry import Entry, aliases, load_plugins, members
from winnow.view.text import wrap

_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key, named as in a TOML file and `--set`; `terms[].coefficient` is a key of each table in a list."""

    name: str
    type: str
    default: str  # as TOML writes it; "" where there is none
    meaning: str


def keys() -> Iterator[Key]:
    """All keys, in the order of config.py. Raises ValueError for a key without a docstring there."""
    whole = format_toml(Config.model_validate({"model": {"lora": {}}}))
    yield from _keys(Config, "", dict(line.split(" = ", 1) for line in whole.splitlines()))


def _keys(section: type[BaseModel], prefix: str, defaults: dict[str, str]) -> Iterator[Key]:
    for field_name, field in section.model_fields.items():
        name = prefix + field_name
        inner = next(sections_in(field.annotation), None)
        if inner is None or issubclass(inner, (Member, RewardSection)) or field.default is None:
            default = defaults.get(name) or defaults.get(f"{name}.use") or _default(field)
            yield _key(name, field, default)
        if inner is not None and inner is not Member:
            listed = typing.get_origin(field.annotation) is tuple
            yield from _keys(inner, f"{name}{'[]' if listed else ''}.", defaults)


def _key(name: str, field: FieldInfo, default: str) -> Key:
    if not field.description:
        raise ValueError(f"{name} has no meaning: write it in winnow/config.py, as a docstring under the field")
    meaning = " ".join(field.description.split())  # a row of a table
    return Key(name=name, type=_type(field.annotation, field.metadata), default=default, meaning=meaning)


def _default(field: FieldInfo) -> str:
    """The default of a key that a configuration without lists does not print."""
    return "" if field.is_required() or field.default is None else json.dumps(field.default)


def _type(annotation: Any, bounds: Iterable[Any] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], getattr(arguments[1], "metadata", ()))
    if origin is typing.Literal:
        return " or ".join(map(json.dumps, arguments))
    if origin is tuple:
        several = arguments[-1] is Ellipsis
        return f"list of {_type(arguments[0])}" if several else f"[{', '.join(map(_type, arguments))}]"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if arguments:  # a union. None means that the key is absent, and TOML has no functions
        return " or ".join(_type(a, bounds) for a in arguments if a is not type(None) and not _is_function(a))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "member" if issubclass(annotation, (Member, RewardSection)) else "table"
    within = (f"{sign} {getattr(b, name)}" for b in bounds for name, sign in _BOUNDS.items() if hasattr(b, name))
    return f"{_WORDS.get(annotation, annotation.__name__)} {', '.join(within)}".strip()


def _is_function(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.get_origin(Callable[..., Any])


KINDS = (*(family.plural for family in FAMILIES.values()), "keys", "metrics")


def catalog(kind: str, *, own: bool = False) -> Iterator[str]:
    """One block per member: call, aliases, origin and purpose; with `own` only of the members that come with winnow.

    `kind` is singular or plural. Raises ConfigError for an unknown one.
    """
    if kind in ("metric", "metrics"):
        yield from (f"{name}\n    {wrap(meaning)}" for name, meaning in METRICS.items())
        return
    if kind in ("key", "keys"):
        yield from map(_key_lines, keys())
        return
    family = _family(kind).name
    known_as = aliases(family)
    for name, entry in members(family).items():
        if entry.origin == "winnow" or not own:
            yield "\n".join(_lines(entry, [alias for alias, target in known_as.items() if target == name]))
    for why in () if own else load_plugins():
        yield f"note: the members of an installed package are missing: {why}"


def _family(kind: str) -> Family[Any]:
    for family in FAMILIES.values():
        if kind in (family.name, family.plural):
            return family
    raise ConfigError(
        f"there is nothing called {kind!r} to list", remedy=near_miss(kind, KINDS), code="config.unknown_name"
    )


def _key_lines(key: Key) -> str:
    """A key with its default, its type and its meaning."""
    default = f" = {key.default}" if key.default else ""
    return f"{key.name}{default}\n    {wrap(f'[{key.type}] {key.meaning}')}"


def _lines(entry: Entry[Any], also: list[str]) -> Iterator[str]:
    yield f"{entry.name}({', '.join(_option(p) for p in entry.options.values())})"
    if also:
        yield f"    also called {', '.join(also)}"
    if entry.origin != "winnow":
        yield f"    from {entry.origin or 'this process'}"
    yield f"    {entry.summary}"


def _option(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name} = {parameter.default!r}"
