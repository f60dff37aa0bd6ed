"""A configuration from TOML or keyword arguments: read, overridden and checked; every mistake is named by key and line.

config = load(Path("configs/arithmetic.toml"), sets=["optimizer.learning_rate=1e-4"])
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from winnow.config import SHORTHANDS, Config, key_of, leaves, sections_in, tables
from winnow.errors import ConfigError, did_you_mean
from winnow.other_names import own_name

# What pydantic says in words of Python, by the type of its error.
SHOULD_BE = {
    "tuple_type": "a list, [...]",
    "dict_type": "a table",
    "model_type": "a table",
    "bool_type": "true or false",
}


def load(path: Path, sets: Sequence[str] = (), unset: Sequence[str] = ()) -> Config:
    """Read a TOML file, leave out the keys and tables of `--unset a.b`, apply `--set a.b=c`, validate. Raises
    ConfigError.
    """
    data, text = read_toml(path)
    for key in unset:
        remove(data, key.strip())
    for assignment in sets:
        override(data, assignment)
    return validate(data, source=str(path), text=text, sets=sets)


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as nested data that is not validated yet, and its text. Raises ConfigError."""
    try:
        if path.is_char_device() or path.is_block_device():  # /dev/zero is read without end
            raise ConfigError(f"cannot read the configuration {path}: it is a device; name a TOML file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}{_bare_word(text, str(error))}") from error


def _bare_word(text: str, error: str) -> str:
    """The remedy where the line of an error has a text without quotes, or a truth value in capitals."""
    at = re.search(r"at line (\d+)", error)
    line = text.splitlines()[int(at[1]) - 1] if at else ""
    written = re.match(r"\s*([\w.\-]+)\s*=\s*([A-Za-z_.~/][^\s,#\"'\[\]{}]*)\s*(?:#.*)?$", line)
    if written is None:
        return ""
    key, word = written.groups()
    if word.lower() in ("true", "false"):
        return f"; write {key} = {word.lower()}"
    return f'; a text stands in quotes: {key} = "{word}"'


def validate(
    data: Mapping[str, Any], *, source: str = "the configuration", text: str = "", sets: Sequence[str] = ()
) -> Config:
    """Check a nested mapping. Raises ConfigError with one line per mistake: key, line where known, remedy.

    `sets` are the overrides that are in `data` already: a mistake in one of them is not looked for in `text`.
    """
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(_explain(e, source, text, sets) for e in error.errors())) from error


def override(data: dict[str, Any], assignment: str) -> None:
    """Apply one `a.b=c` to nested data, the value read as TOML, a bare word as text. Raises ConfigError."""
    key, equals, raw = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {assignment!r}: write it as key=value, for example --set optimizer.learning_rate=1e-4"
        )
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError as error:
        if raw.strip().startswith(("{", "[", '"', "'")):
            raise ConfigError(f"--set {assignment!r}: the value is not valid TOML: {error}") from error
        value = raw.strip()  # a bare word is a string
    try:
        put(data, key.strip(), value)
    except ConfigError as error:
        raise ConfigError(f"--set {assignment!r}: {error}") from error


def put(data: dict[str, Any], key: str, value: Any, folder: str | Path = "") -> None:
    """Set a dotted key in nested data; a member by name that is given an option becomes a table.

    The value is given beside a file or instead of one: a "file.py:function" or a template's file in it starts from
    `folder`, by default from where the user stands, not from that file's folder. Raises ConfigError where the key leads
    through what is no table.
    """
    data.update(tables(data))
    *above, last = key.split(".")
    for table in above:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{key}: {_no_table(table, data)}")
    data[last] = placed(value, folder, last)


def remove(data: dict[str, Any], key: str) -> None:
    """Take a dotted key, or a table, out of nested data. Raises ConfigError where there is none of that name."""
    *above, last = key.split(".")
    table: Any = data
    for name in (*above, last):
        if not isinstance(table, dict) or name not in table:
            there = did_you_mean(name, table) if isinstance(table, dict) else ""
            raise ConfigError(f"--unset {key}: the file has no {key!r}, so there is nothing to leave out{there}")
        table, holder = table[name], table
    del holder[last]


def _no_table(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{name!r} is a list: give all of it, {name}=[...], or change it in the file"
    return f"{name!r} is {value!r}, which is not a table"


def merge(data: dict[str, Any], changes: Mapping[str, Any], prefix: str = "") -> None:
    """`put` every key of nested `changes`; a table that names a function (`use`, `parts`) replaces what was there."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and not {"use", "parts"} & value.keys():
            merge(data, value, f"{prefix}{name}.")
        else:
            put(data, f"{prefix}{name}", value)


def placed(value: Any, folder: str | Path, name: str = "") -> Any:
    """The same with an absolute path, from `folder`, in each "file.py:function" that names a member, and in a
    template's file; `name` is the key that has the value.
    """
    if isinstance(value, Mapping):
        return {key: placed(inner, folder, key) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [placed(inner, folder, name) for inner in value]
    if not isinstance(value, str):
        return value
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(value)))
    is_member = ".py:" in value and name in ("use", *SHORTHANDS, "engine")
    is_file = name == "template" and os.path.isfile(path)
    return path if is_member or is_file else value


def _explain(error: Any, source: str, text: str, sets: Sequence[str]) -> str:
    path = [str(p) for p in error["loc"] if not _is_union_arm(p)]
    key = ".".join(path)
    line = _line_of(text, path)
    where = _set_of(key, sets) or (f"{source}, line {line}" if line else _set_below(path, sets) or source)
    match error["type"]:
        case "extra_forbidden":
            return f"{where}: {_unknown(path, error['input'])}"
        case "missing":
            unnamed = ": it names the member whose options stand beside it" if path[-1] == "use" else ""
            return f"{where}: {key!r} is missing{unnamed}"
        case kind if kind in SHOULD_BE:
            remedy = _table_for(key, error["input"]) if kind == "model_type" else ""
            return f"{where}: {key!r} is {error['input']!r}: it should be {SHOULD_BE[kind]}{remedy}"
        case "value_error":
            return f"{where}: {key + ': ' if key else ''}{error['ctx']['error']}"
        case _:
            return f"{where}: {key!r} is {error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _unknown(path: Sequence[str], value: Any) -> str:
    """That a key does not exist, and which one is meant: by the names of other programs, as a key of another table, or
    as a near miss of its own.
    """
    key = ".".join(path)
    below = [(key, value), *((key_of((key, *inner)), leaf) for inner, leaf in leaves(value) if inner)]
    for written, held in below:
        own = own_name(written)
        if own is not None:
            return f"unknown key {written!r}; it is {own!r} here{_table_for(own, held) if own == 'model.lora' else ''}"
    elsewhere = [known for known in _all_keys() if known.rpartition(".")[2] == path[-1]]
    fewest = min((known.count(".") for known in elsewhere), default=0)
    meant = [known for known in elsewhere if known.count(".") == fewest]
    if meant and path[-1] not in _fields_at(path[:-1]):
        return f"unknown key {key!r}; did you mean {' or '.join(map(repr, meant))}?"
    return f"unknown key {key!r}{did_you_mean(path[-1], _fields_at(path[:-1]))}"


def _table_for(key: str, value: Any) -> str:
    """The remedy where a table was switched on or off with a single word."""
    if not isinstance(value, bool):
        return ""
    return f"; {key} = {{}} takes its defaults" if value else f"; without {key} there is none: leave it out"


def _all_keys(section: type[pydantic.BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every key, but those of the tables in lists."""
    for name, field in section.model_fields.items():
        yield prefix + name
        inner = next(sections_in(field.annotation), None)
        if inner is not None and typing.get_origin(field.annotation) is not tuple:
            yield from _all_keys(inner, f"{prefix}{name}.")


def _set_of(key: str, sets: Sequence[str]) -> str | None:
    """The last override of a key or of a table around it; it is the one that counts."""
    named = (s for s in reversed(sets) if key and f"{key}.".startswith(f"{s.partition('=')[0].strip()}."))
    found = next(named, None)
    return None if found is None else f"--set {found}"


def _set_below(path: Sequence[str], sets: Sequence[str]) -> str | None:
    """The last override that made a table which no file has: of a key in the one around `path`, or in it."""
    keys = [part for part in path if not part.isdigit()]
    tables_around = tuple(".".join(keys[:depth]) + "." for depth in (len(keys), len(keys) - 1) if depth)
    found = next((s for s in reversed(sets) if s.strip().startswith(tables_around)), None)
    return None if found is None else f"--set {found}"


def _is_union_arm(part: Any) -> bool:
    """pydantic puts the tried arm of a union into the location ("str", "function-...", "literal[...]")."""
    return isinstance(part, str) and bool(
        re.fullmatch(r"str|bool|callable|int|float|(literal|tuple|function)\W.*", part)
    )


def _fields_at(path: Sequence[str]) -> list[str]:
    section: Any = Config
    for name in path:
        if name.isdigit():
            continue
        section = next(sections_in(section.model_fields[name].annotation), None)
        if section is None:
            return []
    return list(section.model_fields)


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """Where a key stands in TOML text, found by reading table headers; None when it is not written there."""
    table: list[str] = []
    keys = [p for p in path if not p.isdigit()]
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([\w.\-]+)\s*\]+", line):
            table = header[1].split(".")
            if table == keys:
                return number
        elif assignment := re.match(r"\s*([\w.\-]+)\s*=", line):
            written = [*table, *assignment[1].split(".")]
            if written == keys or (len(written) < len(keys) and written == keys[: len(written)] and "{" in line):
                return number
    return None
