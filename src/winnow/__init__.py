"""winnow: RL with verifiable rewards that optimises the rollout budget.

    import winnow

    result = winnow.train(task="arithmetic", steps=60, reward=my_reward, output="runs/mine")

Every key of a TOML file is a keyword argument here, and a function is accepted in place of any member's name.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import ConfigError, DataError, EngineError, RunFolderError, UpdateError, VerifierError, WinnowError
from winnow.version import __version__

if TYPE_CHECKING:
    from winnow.core.events import AlarmRaised, Ended, Evaluated, Notice, PhaseBegan, RolloutsFinished, Started, Watch
    from winnow.core.loop import Result
    from winnow.core.members import Critic, Members
    from winnow.environments.replay import OutOfTokens
    from winnow.evaluation.result import EvaluationResult
    from winnow.records import (
        Alarm,
        Batch,
        Group,
        KeptRollouts,
        MicroBatch,
        Outcome,
        PolicyOutput,
        Problem,
        Prompt,
        PromptStats,
        Rollout,
        Sampling,
        StepReport,
    )
    from winnow.registry import register
    from winnow.run_view.data import OpenRun
    from winnow.seeds import Rng
    from winnow.view.screen import Progress

__all__ = [
    "Alarm",
    "AlarmRaised",
    "Batch",
    "ConfigError",
    "DataError",
    "Ended",
    "EngineError",
    "Evaluated",
    "EvaluationResult",
    "Group",
    "KeptRollouts",
    "MicroBatch",
    "Notice",
    "OpenRun",
    "OutOfTokens",
    "Outcome",
    "PhaseBegan",
    "PolicyOutput",
    "Problem",
    "Prompt",
    "PromptStats",
    "Result",
    "Rng",
    "Rollout",
    "RolloutsFinished",
    "RunFolderError",
    "Sampling",
    "Started",
    "StepReport",
    "UpdateError",
    "VerifierError",
    "WinnowError",
    "__version__",
    "evaluate",
    "open_run",
    "register",
    "resume",
    "train",
]

# module -> its public names, imported at the first use of one: the modules import numpy, pydantic or torch.
_LATER = {
    "winnow.environments.replay": ("OutOfTokens",),
    "winnow.evaluation.result": ("EvaluationResult",),
    "winnow.records": (
        "Alarm", "Batch", "Group", "KeptRollouts", "MicroBatch", "Outcome", "PolicyOutput", "Problem", "Prompt",
        "PromptStats", "Rollout", "Sampling", "StepReport",
    ),
    "winnow.registry": ("register",),
    "winnow.run_view.data": ("OpenRun",),
    "winnow.seeds": ("Rng",),
    "winnow.core.loop": ("Result",),
    "winnow.core.events": (
        "AlarmRaised", "Ended", "Evaluated", "Notice", "PhaseBegan", "RolloutsFinished", "Started",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _LATER.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'winnow' has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(module), name))


def train(
    config: str | Path | None = None,
    *,
    resume: bool = False,
    allow_change: Sequence[str] = (),
    watch: Watch | Sequence[Watch] = (),
    progress: Progress | bool = True,
    critic: Critic | Mapping[str, Any] | None = None,
    **keys: Any,
) -> Result:
    """Train a policy; `winnow train` from Python.

        result = winnow.train(task="arithmetic", steps=60, reward=my_reward, output="runs/mine")
        result = winnow.train("arithmetic", steps=60)  # a recipe, with another number of steps

    `config` is the name of a recipe or the path of a TOML file, as for `winnow train`. A bare word is a recipe, and a
    `Path` never is. Without `config`, every key has its default.
    `keys` are the keys of a TOML file, with the same nesting: `rollout={"prompts_per_step": 32}`. A member is a name, a
    function, or a table: `loss="clip"`, `reward=my_reward`, `select={"use": "max_variance", "keep_per_prompt": 4}`.
    `resume` continues from the newest checkpoint of the output folder with the same configuration. `allow_change` lists
    the keys that differ on purpose: `["optimizer.learning_rate"]`.
    `progress` is "auto" or True (a live display in a terminal, lines elsewhere), "plain" (lines), "json" (a JSON object
    per event on standard output, docs/runs.md), or "none" or False.
    `watch` is a function, or a list of functions, called with every event:

        def watch(event):
            if isinstance(event, winnow.StepReport):  # or Started, PhaseBegan, AlarmRaised, Evaluated, Notice ...
                print(event.step, event.metrics["reward/mean"])

    `critic` is the table of a value model that is trained, such as `critic={"form": "shared"}`. It may also be a
    function that returns the values of each group's tokens, for an advantage that needs them.

    Returns a Result. Raises subclasses of WinnowError.
    """
    from winnow.user_code import check_not_importing

    check_not_importing()  # before what is slow to import
    from winnow.config_file import validate
    from winnow.recipes import find_config
    from winnow.training.resolve import resolve_file, resolve_members

    function, table = _values_from(critic)

    def members() -> Members:
        if config is None:
            return resolve_members(validate(keys | table), base=Path.cwd(), critic=function)
        return resolve_file(find_config(config), changes=keys | table, critic=function)

    return _fit(members, resume=resume, allow_change=allow_change, watch=watch, progress=progress)


def resume(
    run: str | Path,
    *,
    allow_change: Sequence[str] = (),
    watch: Watch | Sequence[Watch] = (),
    progress: Progress | bool = True,
    critic: Critic | Mapping[str, Any] | None = None,
    trust_run: bool = False,
    **changes: Any,
) -> Result:
    """Continue a run from its newest checkpoint, with the configuration in its folder.

        winnow.resume("runs/mine", steps=200, reward=my_reward)

    `changes` are keys of the configuration, nested as for `train`: keys that a resume may change, and keys in
    `allow_change`. Of functions that were passed from Python, the folder contains only the names: pass the same ones
    again. Functions that the folder names as "file.py:function" are imported only with `trust_run`, and a run of
    another user is continued only with it.

    Raises RunFolderError for a folder without a run of this user (unless `trust_run`), and for a change that a resume
    does not allow. Raises ConfigError for code of the run that is not trusted, and the errors of `train`.
    """
    from winnow.user_code import check_not_importing

    check_not_importing()
    from winnow.evaluation.settings import settings_of
    from winnow.training.resolve import resolve_members

    function, table = _values_from(critic)

    def members() -> Members:
        config, manifest = settings_of(Path(os.path.expanduser(run)), changes | table, trust_run=trust_run)
        return resolve_members(config, base=manifest.base, recipe=manifest.recipe, critic=function)

    return _fit(members, resume=True, allow_change=allow_change, watch=watch, progress=progress)


def evaluate(
    model: str | Path,
    *,
    config: str | Path | None = None,
    problems: int | None = None,
    rollouts_per_prompt: int | None = None,
    greedy: bool | None = None,
    split: str | None = None,
    temperature: float | None = None,
    trust_run: bool = False,
    **keys: Any,
) -> EvaluationResult:
    """Evaluate a model on held-out problems; `winnow eval` from Python.

        result = winnow.evaluate("runs/mine/checkpoints/step-000060", reward=my_reward)
        result.metrics["eval/accuracy_sampled"]
        winnow.evaluate("owner/name", task={"use": "gsm8k", "path": "data/gsm8k"}, reward="gsm8k", problems=200)

    `model` is a model folder, "bundled" or a hub id. A checkpoint of your own run is evaluated with the run's
    configuration and the changes in `keys`. Any other model needs a `config` or a `task`, as for `train`. All problems
    of the split (by default "test") are used, or the first `problems`. Only `trust_run` allows functions that the run
    names as "file.py:function", and the configuration of another user's run.

    Returns an EvaluationResult. Raises subclasses of WinnowError.
    """
    from winnow.user_code import check_not_importing

    check_not_importing()
    from winnow.evaluation.evaluate import run_evaluation
    from winnow.recipes import find_config

    for name in sorted({"compare", "into", "resume", "sets", "tasks"} & keys.keys()):  # of `run_evaluation`
        raise ConfigError(
            f"unknown key {name!r}",
            remedy="evaluate one model on one task per call (task=...); `winnow eval` has several, and writes a folder",
            key=name,
            code="config.unknown_key",
        )
    evaluation = run_evaluation(
        str(model),
        None if config is None else find_config(config),
        problems=problems,
        rollouts_per_prompt=rollouts_per_prompt,
        greedy=greedy,
        split=split,
        temperature=temperature,
        trust_run=trust_run,
        further=False,
        **keys,
    )
    return evaluation.tasks[0]


def open_run(path: str | Path) -> OpenRun:
    """Read a run folder: its configuration, checkpoints, metrics and rollouts. Imports no torch and no code of the run.

        run = winnow.open_run("runs/mine")
        run.config["rollout"]["rollouts_per_prompt"], run.checkpoints[60]  # the resolved configuration, a model folder
        run.metrics()["reward/mean"]  # [steps]
        run.evaluations()["eval/accuracy_sampled"]  # [evaluations]
        run.rollouts(step=3, columns=["text", "reward"])["text"]  # [rollouts of that step]
        run.frame("metrics").plot(x="step", y="reward/mean")  # the same with pandas: winnow-rl[pandas]

    The manifest is read once, and the other files at every call. Raises RunFolderError for a folder without a run.
    """
    from winnow.run_view.data import open_folder

    return open_folder(Path(path))


def _values_from(critic: Critic | Mapping[str, Any] | None) -> tuple[Critic | None, dict[str, Any]]:
    """(function, keys of the configuration): `critic` is one of them; the other is None or empty."""
    if critic is None or callable(critic):
        return critic, {}
    return None, {"critic": critic}


def _fit(
    find_members: Callable[[], Members],
    *,
    resume: bool,
    allow_change: Sequence[str],
    watch: Watch | Sequence[Watch],
    progress: Progress | bool,
) -> Result:
    from winnow.core.events import call_each
    from winnow.run_view.progress import output_for
    from winnow.run_view.progress import progress as display
    from winnow.trackers.watch import track_run
    from winnow.training.fit import fit

    watches = [watch] if callable(watch) else list(watch)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(output_for(progress))  # before a user's file is imported, which may print
        members = find_members()
        watches.insert(0, stack.enter_context(display(progress, file=output)))
        watches.append(stack.enter_context(track_run(members, notify=call_each(tuple(watches)))))
        return fit(members, resume=resume, allow_change=allow_change, watch=watches)
