"""The keys in which configurations of runs differ. They decide which runs are seeds of one configuration, and what the
groups are called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.config import leaves

# Keys that do not affect the results of a run, apart from the seed's noise.
NO_NUMBER = ("seed", "output", "threads", "checkpoint", "log", "verify.workers")
HOW_FAR = ("steps", "max_hours")  # these affect a step's results only through a schedule of the learning rate
# Keys that decide what an evaluation measures, and when.
WHAT_IS_MEASURED = (
    "evaluate", "task", "prompt", "reward", "rollout.max_new_tokens", "rollout.stop", "rollout.temperature",
)  # fmt: skip
ABSENT = object()

Keys = Mapping[str, Any]


def keys_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of every key that affects the results, in the configuration's order.

    Keys of a list's first entry have no index: "select.keep_per_prompt".
    """
    constant = at(config, "optimizer", "schedule") in (None, "constant")
    ignored = (*NO_NUMBER, *(HOW_FAR if constant else ()))
    pairs = ((".".join(str(name) for name in path if name != 0), value) for path, value in leaves(config))
    return {key: value for key, value in pairs if not within(key, ignored)}


def at(config: Any, *path: str) -> Any:
    """The value of a key; None if it is absent, or if a table above it is none: a manifest may come from anyone."""
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def within(key: str, tables: Sequence[str]) -> bool:
    """Whether a key is one of these, or below one."""
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def differing(configurations: Sequence[Keys]) -> list[str]:
    """The keys that do not have the same value in all configurations, in their order."""
    names = dict.fromkeys(key for keys in configurations for key in keys)
    return [name for name in names if len({_frozen(keys.get(name, ABSENT)) for keys in configurations}) > 1]


def is_one_configuration(first: Keys, second: Keys) -> bool:
    return not differing([first, second])


def labels(configurations: Sequence[Keys]) -> list[str]:
    """A label for each configuration ("select.keep_per_prompt = 4"), from all keys in which any of them differ."""
    keys = differing(configurations)
    return [
        ", ".join(f"{key} = {shown(of[key])}" for key in keys if key in of) or "the others" for of in configurations
    ]


def shown(value: Any) -> str:
    """A value as JSON, but a string without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _frozen(value: Any) -> str:
    return "" if value is ABSENT else json.dumps(value, sort_keys=True, default=str)
