"""What `train` would refuse before it reads a weight, found without a run folder and without the network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from winnow.config import Section
from winnow.memory.plan import FreeBytes, MemoryPlan, assumed, free
from winnow.models.device import planned_device
from winnow.models.load import has_tokenizer
from winnow.models.model_folder import cached_folder, named_by, on_hub, settings_folder, weight_files
from winnow.tasks.stream import PromptStream
from winnow.training.critic_folders import check_start, check_value_model
from winnow.training.device_plan import plan_devices
from winnow.training.first_prompt import FirstPrompt
from winnow.training.members import Members
from winnow.training.prompts import run_prompts

_NEITHER = "neither as a folder nor in the hub's cache"


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
    path, critic, data = members.config.model.path, members.config.critic, _hub_data(members)
    folder = _folder(path)
    readable = folder is not None and (not on_hub(path) or has_tokenizer(folder))
    own = folder if critic is None or critic.path is None else _own_folder(critic.path)
    device = planned_device(members.config.device)
    first, longest_prompt, plan = None, None, None
    members = _reading(members, folder, own)
    if data is None and readable:
        first, longest_prompt = _check_prompts(members, values=own is not None)
    elif data is None:
        _check_problems(members)
    if folder is not None and own is not None:
        plan = plan_devices(members, device, longest_prompt=longest_prompt, memory=memory, planned_ranks=ranks)
    notes = (*_about_data(data), *(() if readable else _about_model(path, folder)))
    if critic is not None and critic.path is not None and own is None:
        notes += (f"critic.path = {critic.path!r} is not on this machine, {_NEITHER}, so no memory was planned",)
    return DryRun(first, plan, free if memory is None else assumed(memory, device.type), notes)


def _folder(path: str) -> Path | None:
    """Where a model's settings are; None where the hub's cache has none of it."""
    folder = cached_folder(path) if on_hub(path) else settings_folder(path)
    if folder is not None:
        weight_files(folder)
    return folder


def _own_folder(path: str) -> Path | None:
    """Of a value model, with its tokenizer, which is to be the policy's."""
    with named_by("critic.path"):
        folder = _folder(path)
    return folder if folder is None or not on_hub(path) or has_tokenizer(folder) else None


def _about_data(on_hub: str | None) -> list[str]:
    return [f"{on_hub} is not on this machine, so no problem was looked at"] if on_hub else []


def _about_model(hub_id: str, folder: Path | None) -> list[str]:
    what, lost = ("the tokenizer of ", "") if folder else ("", " and no memory planned")
    return [f"{what}model.path = {hub_id!r} is not on this machine, {_NEITHER}, so no prompt was rendered{lost}"]


def _reading(members: Members, folder: Path | None, own: Path | None) -> Members:
    """The same members, with their models in folders of the hub's cache."""
    config, changed = members.config, dict[str, Section]()
    if folder is not None and on_hub(config.model.path):
        changed["model"] = config.model.model_copy(update={"path": str(folder)})
    if config.critic is not None and config.critic.path is not None and own is not None and on_hub(config.critic.path):
        changed["critic"] = config.critic.model_copy(update={"path": str(own)})
    return dataclasses.replace(members, config=config.model_copy(update=changed))


def _check_prompts(members: Members, *, values: bool) -> tuple[FirstPrompt, int]:
    """The first prompt, and the tokens of the longest one; a value model that is to read them, where it is here."""
    config = members.config
    asked = run_prompts(members)
    training, tokenizer = asked.training, asked.tokenizer
    if config.critic is not None and values:
        check_value_model(config, tokenizer)
        check_start(config)
    PromptStream(training.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    first = FirstPrompt.of(training.prompts[0], tokenizer, config)
    return first, asked.longest


def _check_problems(members: Members) -> None:
    members.task("train")
    members.task(members.config.evaluate.split)
    for task in members.further_tasks:
        task("test")


def _hub_data(members: Members) -> str | None:
    """What the task would read from the hub: the first of its paths that is a hub id, given or by default; as TOML."""
    paths = {name: members.task.options.get(name) for name in ("path", "test_path")}
    found = (
        f"task.{name} = {path!r}"
        for name, path in paths.items()
        if isinstance(path, str) and not path.endswith(".jsonl") and _on_hub(path)
    )
    return next(found, None)


def _on_hub(path: str) -> bool:
    """Is it "owner/name", and nothing of that name here?"""
    there = Path(path).exists() or Path(path).parent.is_dir()
    return path.count("/") == 1 and path[0] not in "./~" and not path.endswith("/") and not there
