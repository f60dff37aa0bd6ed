"""The options of a member: its keyword-only parameters, checked against their annotations and set.

Records of a run and printed text contain `HIDDEN` in place of an option that is named like a secret, such as `api_key`.
No part of the value is kept, and no digest, because a short secret can be guessed from its digest.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import pydantic
from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

from winnow.errors import ConfigError, DataError, accepted_value, combine_errors, near_miss, wrong_result
from winnow.families import FAMILIES, Traits
from winnow.records import Problem
from winnow.registry import Entry
from winnow.user_code import with_named_errors, without_partial

T = TypeVar("T", bound=Traits)
T_co = TypeVar("T_co", bound=Traits, covariant=True)

HIDDEN = "***"

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_ALWAYS = {"password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"}
_AT_THE_END = {"key", "keys", "apikey", "token"}  # `api_key` and `hf_token`, not `key_value_mb` or `max_new_tokens`

_NUMBERS = (bool, int, float)
_NO_ARRAY = ("is_instance_of", "list_type", "tuple_type")  # pydantic's errors about a value that is no array of TOML
_OPTION_TYPES = ConfigDict(arbitrary_types_allowed=True)


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
    """The member with its options set. Raises ConfigError with a line per unknown option, invalid value, and missing
    option without a default, or for options that exclude each other.

    `key` is the key of the options' table in the configuration, for the message.
    """
    for option, value in secret_keys(options, key=key, member=True):
        if value == HIDDEN:  # from a manifest
            raise ConfigError(
                f"{option}: {HIDDEN!r} replaces a secret, which was not saved",
                remedy="set the key to the secret's value",
                key=option,
                code="config.value",
            )
    try:
        checked = options_table(entry).validate_python(dict(options))
    except pydantic.ValidationError as error:
        firsts = {each["loc"][0]: each for each in reversed(error.errors())}  # a union has an error per type
        raise combine_errors([_mistake(entry, each, options, key) for each in reversed(firsts.values())]) from error
    values = {**entry.defaults, **checked}
    _check_together(entry, values, key)
    function = functools.partial(entry.function, **checked) if checked else entry.function
    family = entry.family.name
    if family not in ("reward", "environment"):  # an exception there becomes a failed verdict with the member's name
        function = with_named_errors(f"the {family} {entry.name!r}", entry.function, function)
    if family == "task":
        function = _with_problems(f"the task {entry.name!r}", key, function, own=entry.origin == "winnow")
    return Bound(entry, values, function)


def _with_problems(
    what: str, key: str, function: Callable[[str], Any], *, own: bool
) -> Callable[[str], Sequence[Problem]]:
    """A task that returns problems. Else it raises ConfigError, and DataError for a split without any, and for a
    problem that is not plain data; those of winnow's `own` tasks are.
    """

    @functools.wraps(function, updated=())
    def problems_of(split: str) -> Sequence[Problem]:
        found = function(split)
        if not isinstance(found, Sequence) or not all(isinstance(one, Problem) for one in found):
            raise wrong_result(
                f"{what} returned {type(found).__name__} for the split {split!r}, and not a list of problems",
                remedy="let it return a list of winnow.Problem",
                key=key,
            )
        if not found:
            raise DataError(
                f"{what} has no {split} problems",
                remedy="let it return at least one problem",
                key=key,
                code="data.empty",
            )
        counts = Counter(one.id for one in found)
        wrong = next((name for name, count in counts.items() if count > 1 or not isinstance(name, str)), None)
        if wrong is not None:
            fault = "more than once" if isinstance(wrong, str) else "which is no text"
            raise wrong_result(
                f"{what} returned the id {wrong!r} for the split {split!r}, {fault}",
                remedy="give each problem of a split a text of its own as id",
                key=key,
            )
        for one in () if own else found:
            if (why := _not_plain(one)) is not None:
                raise DataError(
                    f"{what} returned the problem {one.id!r} for the split {split!r}, {why}",
                    remedy="use only texts, numbers, lists and tables (of a number of numpy, int(n) or float(n))",
                    key=key,
                    code="data.malformed",
                )
        return found

    return problems_of


def _not_plain(problem: Problem) -> str | None:
    """Why a problem cannot be rendered, sent to a worker and logged, in words; None where it can."""
    kinds: dict[str, type] = {"question": str, "task": str, "meta": dict}
    for name, kind in kinds.items():
        if not isinstance(getattr(problem, name), kind):
            return f"whose {name} is no {'table' if kind is dict else 'text'}"
    try:
        json.dumps([problem.answer, problem.meta])
    except (TypeError, ValueError, RecursionError) as error:
        return f"whose answer or meta is not JSON ({error})"
    return None


def options_table(entry: Entry[Any]) -> SchemaValidator:
    """The options of a member as one table, made from its keyword-only parameters: of these names, types and ranges.

    An option without a usable annotation accepts any value. It is no BaseModel, which has attributes of its own: an
    option may be called `copy` or `model_config`.
    """
    try:
        hints = typing.get_type_hints(_annotated(entry.function), include_extras=True)
    except Exception:  # annotations that exist only for type checkers
        hints = {}
    fields = {
        name: core_schema.typed_dict_field(
            core_schema.no_info_plain_validator_function(_reader(hints.get(name, Any))),
            required=parameter.default is parameter.empty,
        )
        for name, parameter in entry.options.items()
    }
    return SchemaValidator(core_schema.typed_dict_schema(fields, extra_behavior="forbid"))


def _reader(hint: Any) -> Callable[[Any], Any]:
    """What turns a value into the type of an annotation: a TOML array into a tuple or a list, but no text and no truth
    value into a number.
    """
    try:
        adapter = TypeAdapter(hint, config=_OPTION_TYPES)
    except Exception:  # it is no type
        adapter = TypeAdapter(Any)

    def read(value: Any) -> Any:
        found = adapter.validate_python(value)
        both_plain = type(found) in _NUMBERS and type(value) in (str, *_NUMBERS)
        if isinstance(value, (list, tuple)) and isinstance(found, (list, tuple)) and _changed(found, value):
            raise PydanticCustomError("array", "Input should be a list of plain numbers, as the option's type has them")
        return adapter.validate_python(value, strict=True) if both_plain else found

    return read


def _changed(found: Sequence[Any], value: Sequence[Any]) -> bool:
    """Whether a number of an array was read from a text, a truth value, or as another number than an integer's."""
    pairs = [(number, given) for number, given in zip(found, value, strict=True) if type(number) in _NUMBERS]
    return any(
        type(number) is not type(given) and (type(number), type(given)) != (float, int) for number, given in pairs
    )


def _mistake(entry: Entry[Any], error: Any, options: Mapping[str, Any], key: str) -> ConfigError:
    """One mistake from pydantic, as a ConfigError with its key and its remedy."""
    name, member = str(error["loc"][0]), f"the {entry.family.name} {entry.name!r}"
    match error["type"]:
        case "extra_forbidden":
            problem, code = f"{key}.{name}: {member} has no such option", "config.unknown_key"
            remedy = near_miss(name, entry.options) or "remove it: that function has no options"
        case "missing":
            problem, code = f"{key}.{name} is missing", "config.missing_key"
            remedy = f"set it: {member} needs it"
        case _:
            shown = HIDDEN if is_secret(name, options[name]) else repr(options[name])
            problem, code = f"{key}.{name} is {shown} (an option of {member})", "config.value"
            remedy = "set it to a list, [...]" if error["type"] in _NO_ARRAY else accepted_value(error["msg"])
    return ConfigError(problem, remedy=remedy, key=f"{key}.{name}", code=code)


def _check_together(entry: Entry[Any], values: Mapping[str, Any], key: str) -> None:
    """Raise ConfigError if the member refuses these values together: by its trait `check`."""
    if entry.traits.check is None:
        return
    try:
        entry.traits.check(values)
    except ConfigError as error:
        raise error.under(key) from error
    except ValueError as error:  # a function of arrays names the option first
        option, _, fault = str(error).partition(" ")
        known = option in values
        raise ConfigError(
            f"{key}.{option} {fault}" if known else f"{key}: {error}",
            remedy=f"change it, or another option of the {entry.family.name} {entry.name!r}",
            key=f"{key}.{option}" if known else key,
            code="config.combination",
        ) from error


def tried(function: Callable[..., Any], *example: Any) -> Callable[[Mapping[str, Any]], None]:
    """A trait `check`: call a function of arrays, which raises ValueError for options that exclude each other, on an
    example of its arguments.
    """

    def check(options: Mapping[str, Any]) -> None:
        function(*example, **options)

    return check


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
        key: HIDDEN
        if (member := key.startswith(families)) and is_secret(key.rpartition(".")[2], value)
        else hide_secrets(value, member=member)
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
