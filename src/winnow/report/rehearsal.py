"""What `train` would refuse before it reads a weight, found without a run folder and without the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winnow.build import held_out_prompts, longest, training_prompts
from winnow.devices import plan_devices
from winnow.learner.device import planned_device
from winnow.members import Members
from winnow.memory_plan import MemoryPlan
from winnow.registry import resolve
from winnow.tasks.stream import PromptStream


@dataclass(frozen=True)
class Rehearsal:
    """What came out."""

    plan: MemoryPlan | None  # None where the model's settings are not on this machine
    notes: tuple[str, ...]  # a sentence per thing that only the network could show


def rehearse(members: Members) -> Rehearsal:
    """Load the problems, render the prompts of both splits, and plan the devices.

    Raises ConfigError or DataError as a run would.
    """
    data, model = _hub_data(members), _hub_model(members)
    longest_prompt = None
    if model is None and data is None:
        longest_prompt = _check_prompts(members)
    elif data is None:
        _check_problems(members)
    notes = (
        *([f"task.path = {data!r} is not on this machine, so no problem was looked at"] if data else []),
        *([f"model.path = {model!r} is not on this machine, so no prompt was rendered"] if model else []),
    )
    return Rehearsal(None if model else _plan(members, longest_prompt), notes)


def _plan(members: Members, longest_prompt: int | None) -> MemoryPlan:
    plan = plan_devices(members, planned_device(members.config.device), longest_prompt=longest_prompt)
    plan.check()
    return plan


def _check_prompts(members: Members) -> int:
    """Tokens of the longest prompt."""
    config = members.config
    training, held_out = training_prompts(members).prompts, held_out_prompts(members).prompts
    PromptStream(training, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    return longest([*training, *held_out])


def _check_problems(members: Members) -> None:
    members.task("train")
    members.task(members.config.evaluate.split)


def _hub_model(members: Members) -> str | None:
    path = members.config.model.path
    return path if path != "bundled" and _on_hub(path) else None


def _hub_data(members: Members) -> str | None:
    """The data set that the task would read from the hub: its option `path`, given or by default."""
    task = members.config.task
    option = resolve("task", task.use, base=members.base).options.get("path")
    path = task.options.get("path", option.default if option else None)
    return path if isinstance(path, str) and not path.endswith(".jsonl") and _on_hub(path) else None


def _on_hub(path: str) -> bool:
    """Is it "owner/name", and nothing of that name here?"""
    return path.count("/") == 1 and path[0] not in "./~" and not path.endswith("/") and not Path(path).exists()
