"""A run's configuration from its manifest in one line, for example as the subtitle of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from winnow.registry import members
from winnow.view.text import shorten

LONGEST = 40  # characters of a name


def heading(config: Mapping[str, Any]) -> str:
    """ "bundled, LoRA 16, clip + kl on grpo, 16 -> 4 rollouts of 32 prompts per step"; unknown parts are omitted."""
    return ", ".join(_parts(config))


def _parts(config: Mapping[str, Any]) -> Iterator[str]:
    if model := _at(config, "model", "path"):
        yield "/".join(PurePath(str(model)).parts[-2:])
    if rank := _at(config, "model", "lora", "rank"):
        yield f"LoRA {rank}"
    loss, advantage = _at(config, "loss", "use"), _at(config, "advantage", "use")
    if loss and advantage:
        yield f"{' + '.join([_name(loss), *_terms(config)])} on {_name(advantage)}"
    if form := _at(config, "critic", "form"):
        yield f"value model ({_name(form)})"
    rollouts, prompts = (_at(config, "rollout", key) for key in ("rollouts_per_prompt", "prompts_per_step"))
    if rollouts and prompts:
        yield f"{rollouts} -> {_kept(config, rollouts)} rollouts of {prompts} prompt{'s' * (prompts != 1)} per step"
    if (allocate := _at(config, "allocate", "use")) not in (None, "uniform"):
        yield f"{_name(allocate)} allocation"


def _terms(config: Mapping[str, Any]) -> list[str]:
    return [_name(term.get("use")) for term in _tables(config.get("terms"))]


def _kept(config: Mapping[str, Any], rollouts: Any) -> str:
    """The number that the last selector with `keep_per_prompt` keeps; without one, the names of the selectors (without
    "all"); without names, `rollouts`.
    """
    chain = _tables(config.get("select"))
    for member in reversed(chain):
        kept = member.get("keep_per_prompt", _default_kept(member.get("use")))
        if kept is not None:
            return _name(kept)
    others = [_name(m.get("use")) for m in chain if m.get("use") != "all"]
    return " and ".join(others) or _name(rollouts)


def _default_kept(use: Any) -> Any:
    """The default of `keep_per_prompt` of a selector of winnow, else None. A user's file in a manifest is never
    imported.
    """
    import winnow.algos.selection  # noqa: F401  (registers them)

    entry = members("selector").get(use) if isinstance(use, str) else None
    option = entry.options.get("keep_per_prompt") if entry else None
    return option.default if option else None


def _tables(value: Any) -> list[Mapping[str, Any]]:
    return [table for table in value if isinstance(table, Mapping)] if isinstance(value, list) else []


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _name(value: Any) -> str:
    return shorten(str(value), LONGEST)
