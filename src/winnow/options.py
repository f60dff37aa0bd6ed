"""The options of a member: its keyword-only parameters, checked against their annotations and set.

Records of a run and printed text contain `HIDDEN` in place of an option that is named like a secret, such as `api_key`.
No part of the value is kept, and no digest, because a short secret can be guessed from its digest.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import pydantic
from pydantic import ConfigDict, TypeAdapter

from winnow.errors import ConfigError, accepted_value, near_miss
from winnow.families import FAMILIES, Traits
from winnow.registry import Entry
from winnow.user_code import with_named_errors, without_partial

T = TypeVar("T", bound=Traits)
T_co = TypeVar("T_co", bound=Traits, covariant=True)

HIDDEN = "***"

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_ALWAYS = {"password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"}
_AT_THE_END = {"key", "keys", "apikey", "token"}  # `api_key` and `hf_token`, not `key_value_mb` or `max_new_tokens`

# A text is not accepted as a number, but a TOML array is accepted as a tuple or a list, by the annotation.
_OPTION_TYPES = ConfigDict(strict=False, arbitrary_types_allowed=True, coerce_numbers_to_str=False)


@dataclass(frozen=True)
class Bound(Generic[T_co]):
    """A member with its options set; it is called with the positional arguments of its family."""

    entry: Entry[T_co]
    options: Mapping[str, Any]  # every option with a value, given or by default
    call: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def traits(self) -> T_co:
        return self.entry.traits


def bind(entry: Entry[T], options: Mapping[str, Any], *, key: str) -> Bound[T]:
    """The member with its options set. Raises ConfigError for unknown options, invalid values, and missing options
    without a default.

    `key` is the key of the options' table in the configuration, for the message.
    """
    family, known = entry.family.name, entry.options
    for name in options:
        if name not in known:
            raise ConfigError(
                f"{key}.{name}: the {family} {entry.name!r} has no such option",
                remedy=near_miss(name, known) or "remove it: that function has no options",
                key=f"{key}.{name}",
                code="config.unknown_key",
            )
    for option, value in secret_keys(options, key=key, member=True):
        if value == HIDDEN:  # from a manifest
            raise ConfigError(
                f"{option}: {HIDDEN!r} replaces a secret, which was not saved",
                remedy="set the key to the secret's value",
                key=option,
                code="config.value",
            )
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise ConfigError(
                f"{key}.{name} is missing",
                remedy=f"set it: the {family} {entry.name!r} needs it",
                key=f"{key}.{name}",
                code="config.missing_key",
            )
    checked = {name: _checked(entry, name, value, key=f"{key}.{name}") for name, value in options.items()}
    values = {**entry.defaults, **checked}
    function = functools.partial(entry.function, **checked) if checked else entry.function
    if family not in ("reward", "environment"):  # an exception there becomes a failed verdict with the member's name
        function = with_named_errors(f"the {family} {entry.name!r}", entry.function, function)
    return Bound(entry, values, function)


def _checked(entry: Entry[Any], name: str, value: Any, *, key: str) -> Any:
    """The value in the type of the option's annotation. An option without a usable annotation accepts any value."""
    try:
        hint = typing.get_type_hints(_annotated(entry.function), include_extras=True)[name]
        adapter = TypeAdapter(hint, config=_OPTION_TYPES)
    except Exception:  # no annotation, one that exists only for type checkers, or one that is no type
        return value
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        shown = HIDDEN if is_secret(name, value) else repr(value)
        raise ConfigError(
            f"{key} is {shown} (an option of the {entry.family.name} {entry.name!r})",
            remedy=accepted_value(error.errors()[0]["msg"]),
            key=key,
            code="config.value",
        ) from error


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the annotations: a function itself, __init__ of a class, __call__ of any other object."""
    function = inspect.unwrap(without_partial(function))
    if isinstance(function, type):
        return cast(Callable[..., Any], function.__init__)  # type: ignore[misc]
    return function if hasattr(function, "__code__") else type(function).__call__


def is_secret(name: str, value: Any) -> bool:
    """Whether an option is a secret by its name. A number or a switch that is called a key or a token is none.

    >>> is_secret("api_key", "sk-1"), is_secret("hfToken", "hf_1"), is_secret("key_value_mb", 512)
    (True, True, False)
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or value is None:
        return False
    if not _ALWAYS.isdisjoint(words):
        return True
    return words[-1] in _AT_THE_END and not isinstance(value, (bool, int, float))


def hide_secrets(config: Any, *, member: bool = False) -> Any:
    """A configuration as plain data, with `HIDDEN` for the secrets of its members (the tables with `use`).

    With `member`, `config` is the table of options of one member.
    """
    if isinstance(config, Mapping):
        member = member or "use" in config
        return {
            name: HIDDEN if member and is_secret(name, value) else hide_secrets(value, member=member)
            for name, value in config.items()
        }
    return [hide_secrets(value, member=member) for value in config] if isinstance(config, (list, tuple)) else config


def hide_dotted_secrets(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The same for {dotted key: value}, where the options of members are below the keys of their families."""
    families = tuple(f"{family.key}." for family in FAMILIES.values())
    return {
        key: HIDDEN if key.startswith(families) and is_secret(key.rpartition(".")[2], value) else hide_secrets(value)
        for key, value in keys.items()
    }


def secret_keys(config: Any, *, key: str = "", member: bool = False) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each secret in the members' options of a configuration as plain data."""
    if isinstance(config, Mapping):
        member = member or "use" in config
        for name, value in config.items():
            inner = f"{key}.{name}" if key else str(name)
            if member and is_secret(name, value):
                yield inner, value
            else:
                yield from secret_keys(value, key=inner, member=member)
    elif isinstance(config, (list, tuple)):
        for place, value in enumerate(config):
            yield from secret_keys(value, key=f"{key}.{place}", member=member)
