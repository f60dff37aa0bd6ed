"""What judges the rollouts of a run, from plain data: a reward, or an environment.

judge = make_judge({"environment": "game.py:guess", "options": {"turns": 7}, "max_turns": 16})
judge(prompt, rollout)  # an Outcome, or the environment's Reply

A specification with the key "environment" is an environment, any other one a reward (`rewards.compose.make_reward`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from winnow.environments.replay import make_environment
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.registry import resolve
from winnow.rewards.compose import make_reward

Judge = Callable[[Prompt, Rollout], Outcome | Reply]
JudgeSpec = Mapping[str, Any]

KEY = "environment"


def make_judge(spec: JudgeSpec, *, base: Path | None = None) -> Judge:
    """The reward or the environment that `spec` describes, as a function. Raises ConfigError for an invalid one."""
    if KEY in spec:
        return make_environment(
            spec[KEY], spec["options"], max_turns=spec["max_turns"], recorded=spec.get("recorded", False), base=base
        )
    return make_reward(spec, base=base)


def warm(spec: JudgeSpec, *, base: Path | None = None) -> None:
    """Prepare the first verdict: call the trait `warm(options)` of every member, which may raise ConfigError."""
    for (family, use), part in zip(named_members(spec), spec.get("parts", [spec]), strict=True):
        entry = resolve(family, use, base=base)
        if entry.traits.warm is not None:
            entry.traits.warm({**entry.defaults, **part.get("options", {})})


def reads(spec: JudgeSpec, *, base: Path | None = None) -> frozenset[str]:
    """The fields of a rollout that a reward reads besides tokens and text (its trait `reads`). Raises ConfigError."""
    rewards = [] if KEY in spec else named_members(spec)
    return frozenset(name for family, use in rewards for name in resolve(family, use, base=base).traits.reads)


def named_members(spec: JudgeSpec) -> list[tuple[str, Any]]:
    """(family, use) of every member in a specification."""
    if KEY in spec:
        return [(KEY, spec[KEY])]
    return [("reward", part["use"]) for part in spec.get("parts", [spec])]
