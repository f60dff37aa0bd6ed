"""What `train` would refuse before it reads a weight, found without a run folder and without the network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from winnow.memory.plan import FreeBytes, MemoryPlan, assumed, free
from winnow.models.device import planned_device
from winnow.models.load import has_tokenizer
from winnow.models.model_folder import cached_folder, on_hub, settings_folder, weight_files
from winnow.tasks.stream import PromptStream
from winnow.training.device_plan import plan_devices
from winnow.training.first_prompt import FirstPrompt
from winnow.training.members import Members
from winnow.training.prompts import run_prompts


@dataclass(frozen=True)
class DryRun:
    """What came out."""

    first: FirstPrompt | None  # None where none could be rendered
    plan: MemoryPlan | None  # None where the model's settings are not on this machine
    room: FreeBytes  # what the plan is to fit into
    notes: tuple[str, ...]  # a sentence per thing that only the network could show


def dry_run(members: Members, *, memory: int | None = None, ranks: int = 1) -> DryRun:
    """Load the problems, render the prompts of both splits, and plan the devices of `ranks` processes; a model of the
    hub is looked for in its cache. `memory` are the bytes of the policy's device, where it is not the one of this
    machine.

    Raises ConfigError or DataError as a run would, but not for a plan that does not fit: `plan.check` does.
    """
    path, data = members.config.model.path, _hub_data(members)
    hub = on_hub(path)
    folder = cached_folder(path) if hub else settings_folder(path)
    readable = folder is not None and (not hub or has_tokenizer(folder))
    device = planned_device(members.config.device)
    first, longest_prompt, plan = None, None, None
    if folder is not None:
        weight_files(folder)
        members = _reading(members, folder) if hub else members
    if data is None and readable:
        first, longest_prompt = _check_prompts(members)
    elif data is None:
        _check_problems(members)
    if folder is not None:
        plan = plan_devices(members, device, longest_prompt=longest_prompt, memory=memory, planned_ranks=ranks)
    notes = (*_about_data(data), *(() if readable else _about_model(path, folder)))
    return DryRun(first, plan, free if memory is None else assumed(memory, device.type), notes)


def _about_data(hub_id: str | None) -> list[str]:
    return [f"task.path = {hub_id!r} is not on this machine, so no problem was looked at"] if hub_id else []


def _about_model(hub_id: str, folder: Path | None) -> list[str]:
    what, lost = ("the tokenizer of ", "") if folder else ("", " and no memory planned")
    return [
        f"{what}model.path = {hub_id!r} is not on this machine, neither as a folder nor in the hub's cache, so no "
        f"prompt was rendered{lost}"
    ]


def _reading(members: Members, folder: Path) -> Members:
    """The same members, with their model in a folder of the hub's cache."""
    config = members.config
    model = config.model.model_copy(update={"path": str(folder)})
    return dataclasses.replace(members, config=config.model_copy(update={"model": model}))


def _check_prompts(members: Members) -> tuple[FirstPrompt, int]:
    """The first prompt, and the tokens of the longest one."""
    config = members.config
    asked = run_prompts(members)
    training, tokenizer = asked.training, asked.tokenizer
    PromptStream(training.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    first = FirstPrompt.of(training.prompts[0], tokenizer, config)
    return first, asked.longest


def _check_problems(members: Members) -> None:
    members.task("train")
    members.task(members.config.evaluate.split)
    for task in members.further_tasks:
        task("test")


def _hub_data(members: Members) -> str | None:
    """The data set that the task would read from the hub: its option `path`, given or by default."""
    path = members.task.options.get("path")
    return path if isinstance(path, str) and not path.endswith(".jsonl") and _on_hub(path) else None


def _on_hub(path: str) -> bool:
    """Is it "owner/name", and nothing of that name here?"""
    there = Path(path).exists() or Path(path).parent.is_dir()
    return path.count("/") == 1 and path[0] not in "./~" and not path.endswith("/") and not there
