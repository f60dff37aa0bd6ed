"""Loads the policy and a separate value model: new, or from a checkpoint, with all that a resume restores."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils import logging as transformers_logging

from winnow import ranks
from winnow.config import Config, LoraSection, ModelCritic, TrainedCritic
from winnow.core.collect import sync_weights
from winnow.core.run import Progress, Run
from winnow.engines.base import EngineContext
from winnow.errors import ConfigError, RunFolderError, VerifierError
from winnow.learner.learner import Learner
from winnow.learner.optimizer import VALUE_MODEL, split
from winnow.learner.value_model import Critic, make_critic
from winnow.models.adapter import add_lora, load_adapter, with_numbers
from winnow.models.device import keeps_value_masters
from winnow.models.folder import relabel_errors
from winnow.models.load import Loaded, load
from winnow.models.save import ADAPTER
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.folder import TENSORS
from winnow.state.pending import PENDING, PendingGroups


def restore(run: Run, progress: Progress, saved: Checkpoint) -> None:
    """Restore everything but the parameters, which `load_model` has read."""
    tensors, state = checkpoint.load(saved)
    progress.ahead.pending = restored_pending(run, state.get("pending"), tensors, saved)
    _, tensors = split(tensors, PENDING)
    if run.critic is not None:
        run.critic.restore(tensors, state.get("critic", {}))
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(VALUE_MODEL)}
    run.learner.restore(tensors, state["optimizer"])
    progress.history.load_state_dict(state["history"])
    if progress.ahead.pending is not None and not progress.history.has_draw(saved.step):
        raise RunFolderError(
            f"{saved.path} has rollouts of step {saved.step}, drawn from other prompts than the task has now",
            remedy="restore the task's data, or start a new run in another output folder",
            key="task",
            code="run_folder.changed",
        )
    run.verifiers.load_state_dict(state["verifiers"])
    if progress.ahead.pending is not None:
        try:
            run.verifiers.check_step(progress.ahead.pending.groups)
        except VerifierError:
            progress.ahead.pending = _judge_again(run, progress.ahead.pending)
        run.verifiers.load_state_dict(state["verifiers"])  # the step itself counts these verdicts
    progress.clock.load_state_dict(state.get("clock", {}))
    if progress.sizes is not None and "sizes" in state:
        progress.sizes.load_state_dict(state["sizes"])
    ranks.gather_from_all(None)  # as in `build`: a failure above raises on all ranks before tensors are exchanged
    sync_weights(run.learner, run.engine, version=saved.step)


def _judge_again(run: Run, pending: PendingGroups) -> PendingGroups:
    """The groups with new verdicts, because so many have failed that the step would only raise again, and their cause
    may be repaired. The verdicts of a recorded environment stay, because it does not answer twice.
    """
    if run.config.environment is not None and run.config.environment.recorded:
        return pending
    groups = [dataclasses.replace(group, outcomes=None) for group in pending.groups]
    outcomes = ranks.from_writer(
        lambda: [group.outcomes for group in run.verifiers.collect(groups)], doing="judging the next step again"
    )
    filled = (group.fill(outcomes=judged) for group, judged in zip(groups, outcomes, strict=True))
    return PendingGroups(pending.step, tuple(filled))


def restored_pending(
    run: Run, state: Mapping[str, Any] | None, tensors: Mapping[str, Tensor], saved: Checkpoint
) -> PendingGroups | None:
    """The rollouts of the next step from a checkpoint. Raises RunFolderError if it has none and `rollout.ahead`
    needs them, or has some that no step may train on.
    """
    ahead = run.config.rollout.ahead
    if state is None and not (ahead and saved.step < run.config.steps):
        return None
    if state is not None and ahead:
        return PendingGroups.restored(state, tensors, run.prompts.prompts)
    has = "no rollouts" if state is None else "rollouts"
    raise RunFolderError(
        f"{saved.path} has {has} of step {saved.step}, sampled with the weights before it, and rollout.ahead = {ahead}",
        remedy="resume with the rollout.ahead and at most the steps that the run was started with; a longer run, or "
        "one with another value, starts in a new output folder from this checkpoint as model.path",
        key="rollout.ahead",
        code="run_folder.changed",
    )


def load_model(
    config: Config,
    device: torch.device,
    saved: Checkpoint | None,
    tokenizer: Any,
    *,
    masters: bool = False,
    later: bool = False,
) -> Loaded:
    """The policy's module, with its adapter where one is trained: new, or as in the checkpoint `saved`.

    A full model is loaded from its checkpoint, which is a model folder. An adapter is loaded on top of its base model.
    `tokenizer` is that of `config.model.path`; a checkpoint has its own. The `masters` of a resumed model are copies of
    its rounded weights until `restore` loads the saved ones. With `later`, only an adapter is loaded, and the model is
    on the meta device; see `winnow.models.load.load`.
    """
    transformers_logging.disable_progress_bar()  # else one appears per load, and per shard of every checkpoint
    lora = config.model.lora
    path = config.model.path if saved is None or lora is not None else str(saved.path)
    loaded = load(
        path,
        dtype=config.model.dtype,
        device=str(device),
        tokenizer=tokenizer if path == config.model.path else None,
        masters=masters,
        quantization=config.model.quantization,
        later=later,
    )
    loaded = _adapted(loaded, lora, config.seed)
    if saved is not None and lora is not None:
        load_adapter(loaded.model, saved.path / ADAPTER)
    return loaded


def _adapted(loaded: Loaded, lora: LoraSection | None, seed: int) -> Loaded:
    """The model with a new adapter, if one is trained."""
    if lora is None:
        return loaded
    with with_numbers(loaded.model):
        return dataclasses.replace(loaded, model=add_lora(loaded.model, **lora.model_dump(), seed=seed))


def make_separate_critic(
    config: Config, learner: Learner, policy: Loaded, device: torch.device
) -> tuple[Loaded, Critic | None]:
    """The loaded model of a separate critic, and the critic; the policy's and None where none is configured."""
    critic = config.critic
    if not isinstance(critic, TrainedCritic):
        return policy, None
    loaded = policy
    if isinstance(critic, ModelCritic):
        with relabel_errors("critic.path" if critic.path else "model.path"):
            loaded = load(
                critic.path or config.model.path,
                dtype=config.model.dtype,
                device=str(device),
                tokenizer=policy.tokenizer,
                masters=keeps_value_masters(config),
                quantization=config.model.quantization if critic.lora is not None else None,
                later=policy.saved is not None,
            )
        loaded = _adapted(loaded, critic.lora, config.seed)
    return loaded, make_critic(config, learner, loaded)


def load_start(critic: Critic, config: Config) -> None:
    """Initialise a new run's value model from another run's checkpoint, if `critic.start` names one."""
    if not isinstance(config.critic, TrainedCritic) or config.critic.start is None:
        return
    path = Path(os.path.expanduser(config.critic.start)) / TENSORS
    with safe_open(path, framework="pt") as file:  # `check_start` has opened it before
        tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(VALUE_MODEL)}  # noqa: SIM118
    try:
        critic.start(tensors)
    except RunFolderError as error:
        raise ConfigError(
            f"critic.start = {config.critic.start!r}: {error.problem}",
            remedy=error.remedy,
            key="critic.start",
            code="config.value",
        ) from error


def divides_policy(config: Config) -> bool:
    """Whether each rank of this run has only a share of the policy."""
    return config.ranks.learner == "sharded" and ranks.count() > 1


def engine_context(
    config: Config, loaded: Loaded, cache_bytes: int | None = None, *, exact_evaluation: bool = True
) -> EngineContext:
    """What an engine needs of the policy and the configuration."""
    return EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=config.rollout.max_rollouts_at_once,
        cache_bytes=cache_bytes,
        sharded=divides_policy(config),
        saved=loaded.saved,
        context_tokens=config.prompt.max_prompt_tokens + config.rollout.max_new_tokens,
        exact_evaluation=exact_evaluation,
    )
