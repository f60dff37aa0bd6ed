"""What can be named in a configuration, read from the registry, so that it is never stale."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from winnow.commands.config_keys import keys
from winnow.errors import ConfigError, did_you_mean
from winnow.metrics import METRICS
from winnow.registry import Entry, aliases, members
from winnow.report.text import wrapped

# Importing the module registers the family. Losses and engines import torch; the others must not, so each goes alone.
REGISTERED_BY: Mapping[str, str] = MappingProxyType(
    {
        "task": "winnow.tasks",
        "reward": "winnow.rewards",
        "allocator": "winnow.algos.allocation",
        "selector": "winnow.algos.selection",
        "advantage": "winnow.algos.advantage",
        "weighting": "winnow.algos.weighting",
        "loss": "winnow.algos.loss",
        "term": "winnow.algos.terms",
        "engine": "winnow.engines",
    }
)
KINDS = ("losses", *(f"{family}s" for family in REGISTERED_BY if family != "loss"), "keys", "metrics")


def catalog(kind: str) -> Iterator[str]:
    """One block per member: call, aliases, and what it does. Singular or plural. Raises ConfigError."""
    if kind in ("metric", "metrics"):
        yield from (f"{name}\n    {wrapped(meaning)}" for name, meaning in METRICS.items())
        return
    if kind in ("key", "keys"):
        yield from (f"{key.name}{' = ' * bool(key.default)}{key.default}\n    {wrapped(key.meaning)}" for key in keys())
        return
    family = _family(kind)
    importlib.import_module(REGISTERED_BY[family])
    known_as = aliases(family)
    for name, entry in members(family).items():
        yield "\n".join(_lines(entry, [alias for alias, own in known_as.items() if own == name]))


def _family(kind: str) -> str:
    for family in REGISTERED_BY:
        if kind in (family, f"{family}s", f"{family}es"):
            return family
    raise ConfigError(f"there is nothing called {kind!r} to list{did_you_mean(kind, KINDS)}")


def _lines(entry: Entry, also: list[str]) -> Iterator[str]:
    yield f"{entry.name}({', '.join(_option(p) for p in entry.options.values())})"
    if also:
        yield f"    also called {', '.join(also)}"
    yield f"    {entry.summary}"


def _option(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name} = {parameter.default!r}"
