"""Reads, overrides and checks a configuration from TOML or keyword arguments; errors name the key and, if known, its
line.

config = load(Path("mine.toml"), sets=["optimizer.learning_rate=1e-4"])
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pydantic

from winnow.config import FORM, SHORTHANDS, Config, RefusedValue, as_table, dump, form_of, key_of, leaves, sections_in
from winnow.errors import ConfigError, accepted_value, combine_errors, near_miss
from winnow.other_names import own_name, remedy_for_key

# Remedies for errors that pydantic describes in terms of Python, by the type of the error.
EXPECTED = {
    "tuple_type": "a list, [...]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "bool_type": "true or false",
}
# A part of pydantic's location that is an arm of a union ("str", "function-...", "literal[...]") and no key
_UNION_ARM = re.compile(r"str|bool|callable|int|float|(literal|tuple|function)\W.*")

BYTE_ORDER_MARK = "\ufeff"  # editors of Windows write it at the start of a file, and TOML does not have it
NAMING = (*SHORTHANDS, "rollout.engine", "evaluate.tasks")  # keys at which a bare text, or one in a list, is a member


def load(
    path: Path, sets: Sequence[str] = (), unset: Sequence[str] = (), changes: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """Read a TOML file, remove the keys and tables of `--unset a.b`, apply `--set a.b=c` or nested `changes`, validate.

    Raises ConfigError.
    """
    data, text = _changed(path, sets, unset, changes)
    # After changes from Python, a line of the file may not be the one with the mistake, so that none is named.
    return validate(data, source=str(path), text="" if changes else text, sets=sets)


def _changed(
    path: Path, sets: Sequence[str], unset: Sequence[str], changes: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The nested data of a file after its changes, and its text."""
    data, text = read_toml(path)
    for key in unset:
        remove(data, key.strip())
    for assignment in sets:
        override(data, assignment)
    merge(data, changes)
    return data, text


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as nested data that is not validated yet, and its text without a byte order mark. Raises
    ConfigError.
    """
    try:
        if path.is_char_device() or path.is_block_device():  # reading /dev/zero would never end
            raise _unreadable(f"cannot read the configuration {path}: it is a device", "name a TOML file")
        text = path.read_text(encoding="utf-8").removeprefix(BYTE_ORDER_MARK)
    except FileNotFoundError as error:
        raise _unreadable(f"there is no file {path}", _nearby(path)) from error
    except IsADirectoryError as error:
        raise _unreadable(f"{path} is a folder", f"name a TOML file, such as {str(path / 'config.toml')!r}") from error
    except OSError as error:
        raise _unreadable(
            f"cannot read the configuration {path}: {error.strerror}", "name a TOML file that you may read"
        ) from error
    except UnicodeDecodeError as error:
        raise _unreadable(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start})", "save it as UTF-8"
        ) from error
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(f"{path}: not valid TOML: {error}", _correction(text, str(error))) from error


def _unreadable(problem: str, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, code="config.unreadable")


def _nearby(path: Path) -> str:
    """The remedy for a configuration that does not exist: a file with a similar name beside it, or its folder."""
    beside = {file.name: file for file in path.parent.glob("*.toml")} if path.parent.is_dir() else {}
    near = difflib.get_close_matches(path.name, beside, n=1)
    meant = f"did you mean {str(beside[near[0]])!r}?" if near else "correct the path"
    return meant if path.is_absolute() or near else f"{meant}, which starts from {Path.cwd()}"


def _correction(text: str, error: str) -> str:
    """The remedy for invalid TOML: precise for a text without quotes, and for a truth value in capitals."""
    at = re.search(r"at line (\d+)", error)
    line = text.split("\n")[int(at[1]) - 1] if at else ""
    written = re.match(r"\s*([\w.\-]+)\s*=\s*([A-Za-z_.~/][^\s,#\"'\[\]{}]*)\s*(?:#.*)?$", line)
    if written is None:
        return "correct that line"
    key, word = written.groups()
    if word.lower() in ("true", "false"):
        return f"write {key} = {word.lower()}"
    return f'write text in quotes: {key} = "{word}"'


def validate(
    data: Mapping[str, Any],
    *,
    source: str = "the configuration",
    text: str = "",
    sets: Sequence[str] = (),
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Config:
    """Check a nested mapping. Raises ConfigError with one line per mistake: key, line where known, remedy.

    `sets` are the overrides that `data` already contains: for a mistake in one of them, no line of `text` is named.
    `given` are nested keys that it contains too: for a mistake in one of them, not even the source is named.
    """
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        if is_sweep(data):
            raise ConfigError(
                f"{source} is a sweep file: its key config names the configuration {data['config']!r}",
                remedy=f"winnow sweep {source} checks and trains its runs; other commands take that configuration",
                key="config",
                code="config.unknown_key",
            ) from error
        raise combine_errors([_explain(e, source, text, sets, given, data) for e in error.errors()]) from error


def is_sweep(data: Mapping[str, Any]) -> bool:
    """Whether the data are a sweep file, which names a configuration and changes keys of it."""
    of_a_run = data.keys() & Config.model_fields.keys() - {"output"}
    return isinstance(data.get("config"), str) and (not of_a_run or bool(data.keys() & {"seeds", "grid", "variants"}))


def located(
    error: ConfigError,
    path: Path,
    sets: Sequence[str] = (),
    unset: Sequence[str] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> ConfigError:
    """An error about a member of the configuration that `load` read, with the place of its key: the override that set
    it, or the line of the file. The remedy for an option of another program is winnow's key.
    """
    data, text = _changed(path, sets, unset, changes)
    return combine_errors(
        [_located(part, path, "" if changes else text, sets, data) for part in error.parts or (error,)]
    )


def _located(error: ConfigError, path: Path, text: str, sets: Sequence[str], data: Mapping[str, Any]) -> ConfigError:
    if error.key is None:
        return error
    keys = error.key.split(".")
    own = own_name(error.key) if error.code == "config.unknown_key" else None
    if own is not None:
        table, _, option = own.rpartition(".")
        place = ".".join(part for part in keys[:-1] if not part.isdigit())
        if table != place or option in error.remedy:  # the remedy names options that the member has
            remedy = remedy_for_key(error.key, value_at(data, error.key), functools.partial(_setting, data))
            error = ConfigError(error.problem, remedy=remedy or "", key=error.key, code=error.code)
    return error.within(_place(keys, keys[:-1], str(path), text, sets))


def override(data: dict[str, Any], assignment: str) -> None:
    """Apply one `a.b=c` to nested data, the value read as TOML, a bare word as text. Raises ConfigError."""
    key, equals, raw = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {assignment!r} is not an assignment",
            remedy="write it as key=value, for example --set optimizer.learning_rate=1e-4",
            code="config.unreadable",
        )
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError as error:
        if raw.strip().startswith(("{", "[", '"', "'")):
            raise ConfigError(
                f"--set {assignment!r}: the value is not valid TOML: {error}",
                remedy="correct the value, and quote all of it for the shell",
                key=key.strip(),
                code="config.unreadable",
            ) from error
        value = raw.strip()  # a bare word is a string
    try:
        put(data, key.strip(), value)
    except ConfigError as error:
        raise error.within(f"--set {assignment!r}") from error


def put(data: dict[str, Any], key: str, value: Any, folder: str | Path = "") -> None:
    """Set a dotted key in nested data; a member by name becomes a table where it gets an option.

    A "file.py:function" or a template's file in the value is relative to `folder`, by default the working directory,
    not the folder of the configuration file. Raises ConfigError if a part of the key before the last is no table.
    """
    *above, last = key.split(".")
    for depth, table in enumerate(above, start=1):
        inner = as_table(".".join(above[:depth]), data.get(table, {}))
        if not isinstance(inner, dict):
            raise _no_table(key, table, inner)
        data[table] = inner
        data = inner
    data[last] = placed(value, folder, key)


def remove(data: dict[str, Any], key: str) -> None:
    """Remove a dotted key, or a table, from nested data. Raises ConfigError if it does not exist."""
    *above, last = key.split(".")
    table: Any = data
    for name in (*above, last):
        if not isinstance(table, dict) or name not in table:
            raise ConfigError(
                f"--unset {key}: the file has no {key!r}, so there is nothing to remove",
                remedy=(near_miss(name, table) if isinstance(table, dict) else "") or f"remove --unset {key}",
                key=key,
                code="config.unknown_key",
            )
        table, holder = table[name], table
    del holder[last]


def _no_table(key: str, name: str, value: Any) -> ConfigError:
    is_list = isinstance(value, (list, tuple))
    return ConfigError(
        f"{key}: {name!r} is {'a list' if is_list else f'{value!r}, not a table'}",
        remedy=f"set the whole list, {name}=[...], or change it in the file" if is_list else f"set {name!r} itself",
        key=key,
        code="config.value",
    )


def merge(data: dict[str, Any], changes: Mapping[str, Any], prefix: str = "") -> None:
    """`put` every key of nested `changes`; a table that names a function (`use`, `parts`) replaces the old value. An
    empty table is one of defaults where there is none, and changes nothing where there is one.
    """
    for name, value in changes.items():
        key = f"{prefix}{name}"
        is_table = isinstance(value, Mapping) and not {"use", "parts"} & value.keys()
        if is_table and (value or isinstance(value_at(data, key), Mapping)):
            merge(data, value, f"{key}.")
        else:
            put(data, key, value)


def placed(value: Any, folder: str | Path, key: str = "") -> Any:
    """The value of a dotted key with absolute paths. A member "file.py:function" and a template's file are relative to
    `folder`. A member's options stay as they are.
    """
    if isinstance(value, Mapping):
        return {name: placed(inner, folder, f"{key}.{name}" if key else name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [placed(inner, folder, key) for inner in value]
    if not isinstance(value, str):
        return value
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(value)))
    is_member = ".py:" in value and (key in NAMING or key.endswith(".use"))
    is_file = key == "prompt.template" and ("." in value or os.sep in value or os.path.isfile(path))
    return path if is_member or is_file else value


def _explain(
    error: Any, source: str, text: str, sets: Sequence[str], given: Mapping[str, Any], data: Mapping[str, Any]
) -> ConfigError:
    """One mistake from pydantic, as a ConfigError with its place and its remedy."""
    section, form = _keys_and_form(error["loc"])
    refused = error.get("ctx", {}).get("error")
    path = [*section, *refused.key.split(".")] if isinstance(refused, RefusedValue) and refused.key else section
    path = [*path, FORM] if error["type"] == "union_tag_invalid" else path
    key = ".".join(path)
    here = key in {key_of(place) for place, _ in leaves(given)} and _set_of(key, sets) is None
    where = "" if here else _place(path, section, source, text, sets)
    match error["type"]:
        case "extra_forbidden":
            written, remedy = _suggestion(path, error["input"], data)
            unknown = ConfigError(f"unknown key {written!r}", remedy=remedy, key=written, code="config.unknown_key")
            mistake = _of_another_form(path, form) or unknown
        case "missing":
            is_member = path[-1] == "use"
            remedy = "set it to the member to which the options beside it belong" if is_member else "set it"
            mistake = ConfigError(f"{key!r} is missing", remedy=remedy, key=key, code="config.missing_key")
        case "value_error" if isinstance(refused, RefusedValue):
            mistake = ConfigError(f"{key}: {refused.problem}", remedy=refused.remedy, key=key, code=refused.code)
        case "union_tag_invalid":
            forms = " or ".join(error["ctx"]["expected_tags"].rsplit(", ", 1))
            problem = f"{key!r} is {error['ctx']['tag']!r}"
            mistake = ConfigError(problem, remedy=f"set it to {forms}", key=key, code="config.value")
        case kind:
            raw = error["input"]
            remedy = f"set it to {EXPECTED[kind]}" if kind in EXPECTED else accepted_value(error["msg"])
            if isinstance(raw, bool) and EXPECTED.get(kind) == "a table":
                remedy = f"write {key} = {{}} for its defaults" if raw else f"remove it: it is off unless {key} is set"
            mistake = ConfigError(f"{key!r} is {raw!r}", remedy=remedy, key=key, code="config.value")
    return mistake.within(where) if where else mistake


def _place(path: Sequence[str], section: Sequence[str], source: str, text: str, sets: Sequence[str]) -> str:
    """The override that set a key, the line of the key or of its table in TOML text, or the source alone."""
    line = next(filter(None, (line_of(text, keys) for keys in (path, section) if keys)), None)
    other = f"{source}, line {line}" if line else _set_below(path, sets) or source
    return _set_of(".".join(path), sets) or other


def _of_another_form(path: Sequence[str], form: str | None) -> ConfigError | None:
    """The error about a key that a section has in other forms than the configured one; None for any other key."""
    table, key = ".".join(path[:-1]), ".".join(path)
    having = [form_of(section) for section in _sections_at(path[:-1]) if path[-1] in section.model_fields]
    if form is None or not having:
        return None
    return ConfigError(
        f"unknown key {key!r} under {table}.{FORM} = {form!r}",
        remedy=f"remove it, or set {table}.{FORM} = {' or '.join(map(repr, having))}",
        key=key,
        code="config.unknown_key",
    )


def _suggestion(path: Sequence[str], value: Any, data: Mapping[str, Any]) -> tuple[str, str]:
    """The unknown key as it is in the file, and the remedy: winnow's key for the name in another program, a key of the
    same name in another table, or a similar key.
    """
    key, (*table, _) = ".".join(path), path
    own = (own_name(key) or "").rpartition(".")[2]
    if table and own in _fields_at(table) and ".".join((*table, own)) != own_name(key):
        return key, f"use {'.'.join((*table, own))!r}"  # the key of this name in the table that has the unknown one
    for written, setting in _keys_below(key, value):
        remedy = remedy_for_key(written, setting, functools.partial(_setting, data))
        if remedy is not None:
            return written, remedy
    elsewhere = [known for known in _all_keys() if known.rpartition(".")[2] == path[-1]]
    fewest = min((known.count(".") for known in elsewhere), default=0)
    candidates = [known for known in elsewhere if known.count(".") == fewest]
    if candidates and path[-1] not in _fields_at(path[:-1]):
        return key, f"did you mean {' or '.join(map(repr, candidates))}?"
    return key, near_miss(path[-1], _fields_at(path[:-1])) or "remove it"


def _keys_below(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A key and those of the tables in its value, with their values."""
    yield key, value
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _keys_below(f"{key}.{name}", inner)


def _setting(data: Mapping[str, Any], key: str) -> Any:
    """The value of a key in a configuration as nested data, or its default."""
    value = value_at(data, key)
    return value_at(dump(Config.model_validate({})), key) if value is None else value


def value_at(data: Any, key: str) -> Any:
    """The value of a dotted key in nested data; None where a table on its path is absent."""
    for name in key.split("."):
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _all_keys(path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every key, except those of tables in lists."""
    for name in _fields_at(path):
        yield ".".join((*path, name))
        fields = [section.model_fields[name] for section in _sections_at(path) if name in section.model_fields]
        if not any(typing.get_origin(field.annotation) is tuple for field in fields):
            yield from _all_keys((*path, name))


def _set_of(key: str, sets: Sequence[str]) -> str | None:
    """The last override of a key or of a table around it, which is the effective one."""
    named = (s for s in reversed(sets) if key and f"{key}.".startswith(f"{s.partition('=')[0].strip()}."))
    last = next(named, None)
    return None if last is None else f"--set {last}"


def _set_below(path: Sequence[str], sets: Sequence[str]) -> str | None:
    """The last override of a key below `path`, or below the table around it: it made a table that the file lacks."""
    keys = [part for part in path if not part.isdigit()]
    tables_around = tuple(".".join(keys[:depth]) + "." for depth in (len(keys), len(keys) - 1) if depth)
    last = next((s for s in reversed(sets) if s.strip().startswith(tables_around)), None)
    return None if last is None else f"--set {last}"


def _keys_and_form(location: Sequence[Any]) -> tuple[list[str], str | None]:
    """The keys of pydantic's location, and the form of the innermost section that has several, whose keys follow it."""
    keys, form, parts = list[str](), None, [part for part in map(str, location) if not _UNION_ARM.fullmatch(part)]
    for place, part in enumerate(parts):
        if len(_sections_at(parts[:place])) > 1:
            form = part
        else:
            keys.append(part)
    return keys, form


def _fields_at(path: Sequence[str]) -> list[str]:
    """Keys of the table at `path`, in any of its forms."""
    return list(dict.fromkeys(name for section in _sections_at(path) for name in section.model_fields))


def _sections_at(path: Sequence[str]) -> list[type[pydantic.BaseModel]]:
    """The forms of the table at `path`: one for most tables, none for a key that is no table."""
    sections: list[type[pydantic.BaseModel]] = [Config]
    for name in path:
        if not name.isdigit():
            fields = [section.model_fields[name] for section in sections if name in section.model_fields]
            sections = list(dict.fromkeys(inner for field in fields for inner in sections_in(field.annotation)))
    return sections


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line at which a key of valid TOML begins; None when the text does not contain it."""
    lines, begin = text.split("\n"), 0  # as tomllib counts lines; `splitlines` also ends one at a Unicode separator
    for end in range(1, len(lines) + 1):
        with contextlib.suppress(tomllib.TOMLDecodeError):  # the end of a line within a value
            if _contains(tomllib.loads("\n".join(lines[:end])), path):
                return begin + 1
            begin = end
    return None


def _contains(data: Any, path: Sequence[str]) -> bool:
    """Whether nested data has a key. A table that may be in a list is also found without its place, and vice versa."""
    if not path:
        return True
    if isinstance(data, list) and not path[0].isdigit():
        return any(_contains(item, path) for item in data)
    if isinstance(data, list):
        return int(path[0]) < len(data) and _contains(data[int(path[0])], path[1:])
    if isinstance(data, Mapping):  # the dots of a quoted key separate names, as in a sweep file
        parts = ((".".join(path[:end]), path[end:]) for end in range(1, len(path) + 1))
        if any(name in data and _contains(data[name], rest) for name, rest in parts):
            return True
    return path[0].isdigit() and _contains(data, path[1:])
