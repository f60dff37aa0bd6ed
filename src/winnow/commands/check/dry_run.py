"""The checks that `train` makes before it reads a weight, without a run folder and without the network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from winnow.config import Section
from winnow.memory.plan import FreeBytes, MemoryPlan, assume_free, free_on_device
from winnow.models.device import planned_device
from winnow.models.load import has_tokenizer
from winnow.models.model_folder import cached_folder, is_hub_id, relabel_errors, settings_folder, weight_files
from winnow.tasks.stream import PromptStream
from winnow.training.critic_folders import check_start, check_value_model
from winnow.training.device_plan import plan_devices
from winnow.training.first_prompt import FirstPrompt
from winnow.training.members import Members
from winnow.training.prompts import run_prompts

_NEITHER = "neither as a folder nor in the hub's cache"


@dataclass(frozen=True)
class DryRun:
    """The result of the checks."""

    first: FirstPrompt | None  # None where no prompt could be rendered
    plan: MemoryPlan | None  # None where the model's settings are not on this machine
    room: FreeBytes  # the free memory for which the plan is checked
    notes: tuple[str, ...]  # one sentence for each check that needs the network


def dry_run(members: Members, *, memory: int | None = None, ranks: int = 1) -> DryRun:
    """Load the problems, render the prompts of both splits, and plan the devices of `ranks` processes. A model of the
    hub is read from its cache only. `memory` is the bytes of the policy's device on another machine than this one.

    Raises ConfigError or DataError as a run would. A plan that does not fit raises only in `plan.check`.
    """
    path, critic, data = members.config.model.path, members.config.critic, _hub_data(members)
    folder = _folder(path)
    readable = folder is not None and (not is_hub_id(path) or has_tokenizer(folder))
    critic_folder = folder if critic is None or critic.path is None else _critic_folder(critic.path)
    device = planned_device(members.config.device)
    first, longest_prompt, plan = None, None, None
    members = _with_folders(members, folder, critic_folder)
    if data is None and readable:
        first, longest_prompt = _check_prompts(members, values=critic_folder is not None)
    elif data is None:
        _check_problems(members)
    if folder is not None and critic_folder is not None:
        plan = plan_devices(members, device, longest_prompt=longest_prompt, memory=memory, planned_ranks=ranks)
    notes = (*_about_data(data), *(() if readable else _about_model(path, folder)))
    if critic is not None and critic.path is not None and critic_folder is None:
        notes += (f"critic.path = {critic.path!r} is not on this machine, {_NEITHER}, so no memory was planned",)
    return DryRun(first, plan, free_on_device if memory is None else assume_free(memory, device.type), notes)


def _folder(path: str) -> Path | None:
    """The folder with a model's settings; None where the hub's cache does not contain the model."""
    folder = cached_folder(path) if is_hub_id(path) else settings_folder(path)
    if folder is not None:
        weight_files(folder)
    return folder


def _critic_folder(path: str) -> Path | None:
    """The critic's model folder; None where it, or the tokenizer to compare with the policy's, is not here."""
    with relabel_errors("critic.path"):
        folder = _folder(path)
    return folder if folder is None or not is_hub_id(path) or has_tokenizer(folder) else None


def _about_data(hub_id: str | None) -> list[str]:
    return [f"{hub_id} is not on this machine, so no problem was checked"] if hub_id else []


def _about_model(hub_id: str, folder: Path | None) -> list[str]:
    what, also = ("the tokenizer of ", "") if folder else ("", " and no memory was planned")
    return [f"{what}model.path = {hub_id!r} is not on this machine, {_NEITHER}, so no prompt was rendered{also}"]


def _with_folders(members: Members, folder: Path | None, critic_folder: Path | None) -> Members:
    """The same members, with hub ids of models replaced by folders of the hub's cache."""
    config, changed = members.config, dict[str, Section]()
    if folder is not None and is_hub_id(config.model.path):
        changed["model"] = config.model.model_copy(update={"path": str(folder)})
    critic = config.critic
    if critic is not None and critic.path is not None and critic_folder is not None and is_hub_id(critic.path):
        changed["critic"] = critic.model_copy(update={"path": str(critic_folder)})
    return dataclasses.replace(members, config=config.model_copy(update=changed))


def _check_prompts(members: Members, *, values: bool) -> tuple[FirstPrompt, int]:
    """The first prompt, and the number of tokens of the longest one; with `values`, also check the value model."""
    config = members.config
    prompts = run_prompts(members)
    training, tokenizer = prompts.training, prompts.tokenizer
    if config.critic is not None and values:
        check_value_model(config, tokenizer)
        check_start(config)
    # Made only for its check: it refuses fewer prompts than a step needs.
    PromptStream(training.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    first = FirstPrompt.of(training.prompts[0], tokenizer, config)
    return first, prompts.longest


def _check_problems(members: Members) -> None:
    members.task("train")
    members.task(members.config.evaluate.split)
    for task in members.further_tasks:
        task("test")


def _hub_data(members: Members) -> str | None:
    """The first of the task's paths, given or default, that is a hub id; as TOML. None without one."""
    paths = {name: members.task.options.get(name) for name in ("path", "test_path")}
    hub_paths = (
        f"task.{name} = {path!r}"
        for name, path in paths.items()
        if isinstance(path, str) and not path.endswith(".jsonl") and _on_hub(path)
    )
    return next(hub_paths, None)


def _on_hub(path: str) -> bool:
    """Whether a path has the form "owner/name", and neither it nor its parent folder exists here."""
    exists = Path(path).exists() or Path(path).parent.is_dir()
    return path.count("/") == 1 and path[0] not in "./~" and not path.endswith("/") and not exists
