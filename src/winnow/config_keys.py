"""Every key of the configuration: type, default and meaning; a configuration as TOML."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from winnow.config import FORM, Config, Member, RewardSection, dump, form_of, sections_in
from winnow.other_names import as_key, as_toml

_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def format_toml(config: Config, *, secrets: bool = False) -> str:
    """The resolved configuration as TOML that can be loaded again, one dotted key per line, as for `--set`, which reads
    no key in quotes. `secrets` as in `dump`.
    """
    return "\n".join(_lines(dump(config, secrets=secrets)))


def changed_lines(config: Config) -> tuple[list[str], int]:
    """The lines of `format_toml` with a value that is not the key's default, and the number of the other lines.

    An option of a member has no default here unless the member itself is the default one.
    """
    lines, defaults = (format_toml(each).splitlines() for each in (config, Config.model_validate({})))
    changed = [line for line in lines if line not in set(defaults)]
    return changed, len(lines) - len(changed)


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
    yield from _keys([Config], "", dict(line.split(" = ", 1) for line in whole.splitlines()))


def _keys(forms: list[type[BaseModel]], prefix: str, defaults: dict[str, str]) -> Iterator[Key]:
    """Keys of a table, which has one section or several forms."""
    for field_name in dict.fromkeys(name for form in forms for name in form.model_fields):
        having = [form for form in forms if field_name in form.model_fields]
        fields = [form.model_fields[field_name] for form in having]
        name = prefix + field_name
        inner = list(sections_in(fields[0].annotation))
        is_member = any(issubclass(section, (Member, RewardSection)) for section in inner)
        if not inner or is_member or fields[0].default is None:
            default = defaults.get(name) or defaults.get(f"{name}.use") or next(filter(None, map(_default, fields)), "")
            own = " or ".join(json.dumps(form_of(form)) for form in having) if having != forms else ""
            only = f" Only with {FORM} {own}." if own else ""
            meaning = next((field.description for field in fields if field.description), None)
            if not meaning:
                raise ValueError(f"{name} has no meaning: write it in winnow/config.py, as a docstring under the field")
            types = " or ".join(dict.fromkeys(_type(field.annotation, field.metadata) for field in fields))
            yield Key(name=name, type=types, default=default, meaning=" ".join(meaning.split()) + only)
        if inner and inner != [Member]:
            listed = typing.get_origin(fields[0].annotation) is tuple
            yield from _keys(inner, f"{name}{'[]' if listed else ''}.", defaults)


def _default(field: FieldInfo) -> str:
    """The default of a key that a configuration without lists does not print."""
    return "" if field.is_required() or field.default is None else json.dumps(field.default)


def _type(annotation: Any, bounds: Iterable[Any] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], [bound for each in arguments[1:] for bound in getattr(each, "metadata", [each])])
    if origin is typing.Literal:
        return " or ".join(map(json.dumps, arguments))
    if origin is tuple:
        several = arguments[-1] is Ellipsis
        return f"list of {_type(arguments[0])}" if several else f"[{', '.join(map(_type, arguments))}]"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if arguments:  # a union. None means that the key is absent, and TOML has no functions
        function = typing.get_origin(Callable[..., Any])
        own = (_type(a, bounds) for a in arguments if a is not type(None) and typing.get_origin(a) is not function)
        return " or ".join(dict.fromkeys(own))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "member" if issubclass(annotation, (Member, RewardSection)) else "table"
    ends = ((sign, getattr(bound, name, None)) for bound in bounds for name, sign in _BOUNDS.items())
    within = ", ".join(f"{sign} {end}" for sign, end in ends if end is not None)
    return f"{_WORDS.get(annotation, annotation.__name__)} {within}".strip()


def _lines(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{prefix}{as_key(key)}.")
        elif value is not None:
            yield f"{prefix}{as_key(key)} = {as_toml(value)}"
