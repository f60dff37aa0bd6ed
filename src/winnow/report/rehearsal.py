"""What `train` would refuse before it reads a weight, found without a run folder and without the network."""

from __future__ import annotations

from pathlib import Path

from winnow.build import held_out_prompts, training_prompts
from winnow.members import Members
from winnow.models.load import describe
from winnow.registry import resolve
from winnow.tasks.stream import PromptStream


def rehearse(members: Members) -> list[str]:
    """Load the problems and render the prompts of both splits; a sentence per thing that only the network could show.

    Raises ConfigError or DataError as a run would.
    """
    data, model = _hub_data(members), _hub_model(members)
    if model is None and data is None:
        _check_prompts(members)
    elif data is None:
        _check_problems(members)
    elif model is None:
        describe(members.config.model.path)
    return [
        *([f"task.path = {data!r} is not on this machine, so no problem was looked at"] if data else []),
        *([f"model.path = {model!r} is not on this machine, so no prompt was rendered"] if model else []),
    ]


def _check_prompts(members: Members) -> None:
    config = members.config
    training = training_prompts(members).prompts
    PromptStream(training, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    held_out_prompts(members)


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
