"""Options of members that are named like a secret, such as `api_key`: records of a run and printed text contain
`HIDDEN` instead.

No part of the value is kept, and no digest, because a short secret can be guessed from its digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from winnow.families import FAMILIES

HIDDEN = "***"

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_ALWAYS = {"password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"}
_AT_THE_END = {"key", "keys", "apikey", "token"}  # `api_key` and `hf_token`, not `key_value_mb` or `max_new_tokens`


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


def hidden(options: Any) -> Any:
    """Options of a member, including tables in them, with `HIDDEN` for each secret."""
    if isinstance(options, Mapping):
        return {name: HIDDEN if is_secret(name, value) else hidden(value) for name, value in options.items()}
    return [hidden(value) for value in options] if isinstance(options, (list, tuple)) else options


def with_secrets_hidden(config: Any) -> Any:
    """A configuration as plain data, with `HIDDEN` for the secrets of its members (the tables with `use`)."""
    if isinstance(config, Mapping):
        return hidden(config) if "use" in config else {name: with_secrets_hidden(v) for name, v in config.items()}
    return [with_secrets_hidden(value) for value in config] if isinstance(config, (list, tuple)) else config


def with_dotted_secrets_hidden(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The same for {dotted key: value}, where the options of members are below the keys of their families."""
    families = tuple(f"{family.key}." for family in FAMILIES.values())
    return {
        key: HIDDEN
        if key.startswith(families) and is_secret(key.rpartition(".")[2], value)
        else with_secrets_hidden(value)
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
