"""Memory plans of configurations, without and with a value model, and their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from winnow.config_file import validate
from winnow.memory.plan import MemoryPart, MemoryPlan, Phase
from winnow.training.budget import demand_of, plan_demand
from winnow.training.resolve import resolve_members

LORA = {"rank": 2}
STEP = {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 30}
FORMS: dict[str | None, dict[str, Any]] = {"shared": {}, "adapter": {"model": {"lora": LORA}}, "model": {}}


def planned(
    *,
    longest_prompt: int = 20,
    device: str = "cpu",
    memory: int | None = None,
    ranks_of: int | None = None,
    **keys: Any,
) -> MemoryPlan:
    """The plan of a configuration, with one rank or `ranks_of` on this machine."""
    members = resolve_members(validate(keys), base=Path())
    return plan_demand(
        members,
        demand_of(members, torch.device(device), longest_prompt=longest_prompt, memory=memory, planned_ranks=ranks_of),
    )


def planned_with(form: str | None = None, *, critic: dict[str, Any] | None = None, **keys: Any) -> MemoryPlan:
    """The plan of a small step with a value model of a form, or without one."""
    evaluate = {"problems": 1, "rollouts_per_prompt": 1}
    made = {"rollout": STEP, "evaluate": evaluate, "select": "all", **FORMS.get(form, {}), **keys}
    return planned(**({"advantage": "gae", **made, "critic": {"form": form, **(critic or {})}} if form else made))


def part(plan: MemoryPlan, name: str) -> MemoryPart:
    """The only part of a name."""
    (found,) = [part for part in plan.parts if part.name == name]
    return found


def sizes(plan: MemoryPlan, phase: Phase) -> dict[str, int]:
    """Bytes of a phase's parts by name."""
    return {part.name: part.bytes for part in plan.parts if part.phase == phase}


def of_value_model(plan: MemoryPlan, phase: Phase) -> dict[str, int]:
    """As `sizes`, of the value model alone."""
    return {name: size for name, size in sizes(plan, phase).items() if "value model" in name}
