"""`winnow list`: what a configuration can name: recipes, keys, metrics, alarms, and the members of the registry."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from winnow.commands.command_line import print_text
from winnow.config_keys import keys
from winnow.errors import ConfigError, near_miss
from winnow.families import FAMILIES, Family
from winnow.metrics import METRICS
from winnow.recipes import recipe_paths, summary
from winnow.registry import Entry, description, load_plugins, members
from winnow.view.text import wrap

KINDS = (*(family.plural for family in FAMILIES.values()), "alarms", "keys", "metrics", "recipes")


def list_members(
    kind: Annotated[str | None, typer.Argument(help="recipes, losses, selectors, rewards, tasks, alarms ...")] = None,
) -> None:
    """List the recipes, or what a configuration can name: members with their options, defaults and purpose; keys."""
    for block in KINDS if kind is None else catalog(kind):
        print_text(block)


def catalog(kind: str, *, own: bool = False) -> Iterator[str]:
    """One block per member: call, aliases, origin and purpose; with `own` only of the members that come with winnow.

    `kind` is singular or plural. Raises ConfigError for an unknown one.
    """
    if kind in ("metric", "metrics"):
        yield from (f"{name}\n    {wrap(meaning)}" for name, meaning in METRICS.items())
        return
    if kind in ("alarm", "alarms"):
        from winnow.alarms.rules import ALARMS

        yield from (f"{alarm.name}\n    {wrap(alarm.meaning)}" for alarm in ALARMS)
        return
    if kind in ("recipe", "recipes"):
        yield from (f"{name}\n    {wrap(summary(path))}" for name, path in recipe_paths().items())
        return
    if kind in ("key", "keys"):
        for key in keys():
            default = f" = {key.default}" if key.default else ""
            yield f"{key.name}{default}\n    {wrap(f'[{key.type}] {key.meaning}')}"
        return
    for entry in members(_family(kind).name).values():
        if entry.origin == "winnow" or not own:
            yield "\n".join(_lines(entry))
    for why in () if own else load_plugins():
        yield f"note: the members of an installed package are missing: {why}"


def _family(kind: str) -> Family[Any]:
    for family in FAMILIES.values():
        if kind in (family.name, family.plural):
            return family
    raise ConfigError(
        f"there is nothing called {kind!r} to list", remedy=near_miss(kind, KINDS), code="config.unknown_name"
    )


def _lines(entry: Entry[Any]) -> Iterator[str]:
    yield f"{entry.name}({', '.join(_option(p) for p in entry.options.values())})"
    if entry.aliases:
        yield f"    also called {', '.join(sorted(entry.aliases))}"
    if entry.origin != "winnow":
        yield f"    from {entry.origin or 'this process'}"
    yield f"    {description(entry)}"


def _option(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name} = {parameter.default!r}"
