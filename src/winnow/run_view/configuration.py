"""A run's configuration: in one line, the changes that resumes made to it, and the keys in which several differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from winnow.config import key_of, leaves
from winnow.registry import members
from winnow.state.resume import evaluated_since, within
from winnow.view.text import shorten

LONGEST = 40  # characters of a name
LATEST = 10**15  # larger than any number of steps

Change = Mapping[str, Any]  # step, key, was, now
# Keys that do not affect the results of a run, apart from the seed's noise.
NO_NUMBER = ("seed", "output", "threads", "checkpoint", "log", "verify.workers", "alarms", "track")
HOW_FAR = ("steps", "max_hours")  # these affect a step's results only through a schedule of the learning rate

Keys = Mapping[str, Any]


def heading(config: Mapping[str, Any]) -> str:
    """ "bundled, LoRA 16, clip + kl on grpo, 16 -> 4 rollouts of 32 prompts per step"; unknown parts are omitted."""
    return ", ".join(_parts(config))


def program(manifest: Mapping[str, Any]) -> str:
    """ "a run of TRL" for the manifest of another trainer's run (`describe`); empty for winnow's."""
    return f"a run of {manifest['program']}" if "program" in manifest else ""


def _parts(config: Mapping[str, Any]) -> Iterator[str]:
    if model := at(config, "model", "path"):
        yield "/".join(PurePath(str(model)).parts[-2:])
    if rank := at(config, "model", "lora", "rank"):
        yield f"LoRA {rank}"
    loss, advantage = at(config, "loss", "use"), at(config, "advantage", "use")
    if loss and advantage:
        terms = [_name(term.get("use")) for term in _tables(config.get("terms"))]
        yield f"{' + '.join([_name(loss), *terms])} on {_name(advantage)}"
    if form := at(config, "critic", "form"):
        yield f"value model ({_name(form)})"
    rollouts, prompts = (at(config, "rollout", key) for key in ("rollouts_per_prompt", "prompts_per_step"))
    if rollouts and prompts:
        yield f"{rollouts} -> {_kept(config, rollouts)} rollouts of {prompts} prompt{'s' * (prompts != 1)} per step"
    if (sample := at(config, "sample", "use")) not in (None, "uniform"):
        yield f"prompts by {_name(sample)}"
    if (allocate := at(config, "allocate", "use")) not in (None, "uniform"):
        yield f"{_name(allocate)} allocation"


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
    import winnow.algos.selectors  # noqa: F401  (registers them)

    entry = members("selector").get(use) if isinstance(use, str) else None
    option = entry.options.get("keep_per_prompt") if entry else None
    return option.default if option else None


def _tables(value: Any) -> list[Mapping[str, Any]]:
    return [table for table in value if isinstance(table, Mapping)] if isinstance(value, list) else []


def _name(value: Any) -> str:
    return shorten(str(value), LONGEST)


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The evaluations of a run that can be compared with each other: those from step `since` on."""

    since: int = 0
    held_out: bool = True  # whether their problems are not training problems

    @property
    def of(self) -> str:
        """The split of the problems, in words."""
        return "held out" if self.held_out else "training split"

    @property
    def since_when(self) -> str:
        """ "; evaluated so from step 12 on", as the end of a sentence; empty if all evaluations are comparable."""
        return f"; evaluated so from step {self.since} on" * bool(self.since)

    def rows(self, rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
        """The rows that may contain one of these evaluations."""
        return [row for row in rows if row["step"] >= self.since]


EVALUATIONS = Evaluations()


def changes_in(manifest: Mapping[str, Any]) -> list[Change]:
    """The changes that a manifest lists, oldest first."""
    changes = manifest.get("changes")
    return [change for change in changes if _is_change(change)] if isinstance(changes, list) else []


def evaluations(manifest: Mapping[str, Any]) -> Evaluations:
    """The evaluations that were made with the settings of a run's manifest."""
    return Evaluations(evaluated_since(changes_in(manifest)), at(manifest, "config", "evaluate", "split") != "train")


def _is_change(change: Any) -> bool:
    if not isinstance(change, Mapping) or not isinstance(change.get("key"), str):
        return False
    step = change.get("step")
    return isinstance(step, int) and not isinstance(step, bool) and 0 <= step < LATEST


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """A value that names files, or a function of one. Two are equal if the contents are equal, whatever the path."""

    text: str = field(compare=False)  # as the configuration has it
    contents: str  # a digest of all files and the function's name

    def __str__(self) -> str:
        return self.contents


def keys_of(config: Mapping[str, Any], inputs: Any = None) -> dict[str, Any]:
    """Dotted key -> value of every key that affects the results, in the configuration's order.

    Keys of a list's first entry have no index: "select.keep_per_prompt". With the `inputs` of a run's manifest, a value
    that names files is a `NamedFiles`: a relative and an absolute path, or the paths of two machines, are then equal.
    """
    constant = all(at(config, *of, "optimizer", "schedule") in (None, "constant") for of in ((), ("critic",)))
    ignored = (*NO_NUMBER, *(HOW_FAR if constant else ()))
    pairs = (
        (".".join(str(name) for name in path if name != 0), _by_contents(value, at(inputs, key_of(path))))
        for path, value in leaves(config)
    )
    return {key: value for key, value in pairs if not within(key, ignored)}


def _by_contents(value: Any, digests: Any) -> Any:
    """The value as `NamedFiles` if it names some of these files; else the value itself."""
    if not isinstance(value, str) or not isinstance(digests, Mapping) or not digests:
        return value
    file, _, function = value.rpartition(":") if ".py:" in value else (value, "", "")
    own = {"": digests[file]} if file in digests else {} if function else digests
    named = json.dumps([function, own], sort_keys=True)
    return NamedFiles(value, f"contents {sha256(named.encode()).hexdigest()[:8]}") if own else value


def at(config: Any, *path: str) -> Any:
    """The value of a key; None if it is absent, or if a table above it is none: a manifest may come from anyone."""
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def differing(configurations: Sequence[Keys]) -> list[str]:
    """The keys that do not have the same value in all configurations, in their order."""
    texts = [{k: json.dumps(v, sort_keys=True, default=str) for k, v in of.items()} for of in configurations]
    names = dict.fromkeys(key for of in texts for key in of)
    return [name for name in names if len({of.get(name) for of in texts}) > 1]


def labels(configurations: Sequence[Keys]) -> list[str]:
    """A label for each configuration ("select.keep_per_prompt = 4"), from all keys in which any of them differ."""
    keys = differing(configurations)

    def label(of: Keys, *, contents: bool) -> str:
        return ", ".join(f"{key} = {shown(of[key], contents=contents)}" for key in keys if key in of) or "the others"

    short = [label(of, contents=False) for of in configurations]
    return [
        label(of, contents=True) if short.count(text) > 1 else text
        for of, text in zip(configurations, short, strict=True)
    ]


def shown(value: Any, *, contents: bool = False) -> str:
    """A value as JSON, but a string, or what names files, without quotes. With `contents`, files have their digest."""
    if isinstance(value, NamedFiles):
        return f"{value.text} ({value.contents})" if contents else value.text
    return value if isinstance(value, str) else json.dumps(value)
