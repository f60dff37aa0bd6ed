"""From a configuration's members to a `Run`: loads data and model, and starts engine and workers.

Only this module does so for training. The order is that of cost, so that a mistake is reported early: problems,
tokenizer, prompts, model, engine.

A rank gets its share of the machine's threads and verify workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import logging as transformers_logging

from winnow import ranks
from winnow.alarms import Alarms
from winnow.config import Config, OwnModelCritic, SeparateCritic, dump
from winnow.control_groups import cpu_quota
from winnow.engines.base import EngineContext, make_engine
from winnow.errors import ConfigError, RunFolderError
from winnow.learner.learner import Learner, make_learner, shard_learner
from winnow.learner.optimizer import VALUE_MODEL
from winnow.learner.value_model import Critic, make_critic, shard_critic
from winnow.models.adapter import add_lora, load_adapter
from winnow.models.device import keeps_masters, keeps_value_masters
from winnow.models.folder import relabel_errors
from winnow.models.load import Loaded, load
from winnow.models.save import ADAPTER
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.folder import TENSORS
from winnow.state.logbook import Logbook
from winnow.state.resume import digests
from winnow.tasks.problems import digest_of
from winnow.training.advice import before_training
from winnow.training.budget import plan_devices
from winnow.training.checks import check_start, check_value_model
from winnow.training.collect import sync_weights
from winnow.training.draw import make_history
from winnow.training.members import Members
from winnow.training.progress import TrainingClock
from winnow.training.prompts import PromptPool, run_prompts, training_sampling
from winnow.training.resolve import check_installed
from winnow.training.run import Progress, Run
from winnow.verify import Verifiers


def threads_of_rank(wanted: int) -> int:
    """CPU threads of this rank: the key `threads`, else OMP_NUM_THREADS, both of which are per process.

    Without either, it is the rank's share of torch's default, limited by the cores of the process's control groups.
    torch does not read these limits: it starts 64 threads in a container that may use two cores.
    """
    if wanted or "OMP_NUM_THREADS" in os.environ:
        return wanted or torch.get_num_threads()
    quota = cpu_quota()
    cores = torch.get_num_threads() if quota is None else min(torch.get_num_threads(), math.ceil(quota))
    return max(1, cores // ranks.local_count())


def workers_of_rank(wanted: int) -> int:
    """This rank's share of the machine's `verify.workers`: at least one, but 0 where the key is 0."""
    return max(1, wanted // ranks.local_count()) if wanted else 0


class Built(NamedTuple):
    """A run that can take its first step, and what a person should know about it before."""

    run: Run
    progress: Progress
    devices: tuple[str, ...]  # lines: the work and the memory of each device
    notices: tuple[str, ...]

    def close(self) -> None:
        """Wait for a save in progress, and stop the verify workers and the engine."""
        with contextlib.ExitStack() as each:  # calls the last one first
            each.callback(self.run.engine.close)
            each.callback(self.run.verifiers.close)
            each.callback(self.progress.saving.wait)  # first, while this process still holds the run folder's lock


def build(
    members: Members,
    *,
    folder: Path,
    device: torch.device,
    saved: Checkpoint | None = None,
    clock: TrainingClock | None = None,
) -> Built:
    """Load data, tokenizer, model and engine, with the cheapest checks first; continue from `saved` if given."""
    config = members.config
    with ranks.together("loading"):
        return _build(members, folder, device, saved, clock or TrainingClock(config))


def _build(
    members: Members, folder: Path, device: torch.device, saved: Checkpoint | None, clock: TrainingClock
) -> Built:
    """`build` on every rank."""
    config = members.config
    check_installed(members)
    rendered = run_prompts(members)
    train, held_out, tokenizer = rendered
    prompts = PromptPool(train.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    history = make_history(members, prompts)
    check_value_model(config, tokenizer)
    if saved is None:
        check_start(config)
    plan = plan_devices(members, device, longest_prompt=rendered.longest)
    plan.check()
    logbook = Logbook(folder, seed=config.seed, marks=saved.logs if saved else {}, **config.log.model_dump())
    if ranks.is_writer():
        logbook.check(saved.path if saved else None)
        checkpoint.check(folder, plan.checkpoint if saved is None else 0)
    ranks.check_same("configuration", lambda: json.dumps(dump(config), sort_keys=True, default=str))
    ranks.check_same("set of prompts", prompts.digest)
    ranks.check_same("set of held-out prompts", lambda: str([digest_of(task.prompts.prompts) for task in held_out]))
    devices = tuple(plan.lines())  # before the model is loaded, as the lines include the memory that is free
    loaded = load_model(config, device, saved, tokenizer, masters=keeps_masters(config))
    ranks.check_same("file", lambda: json.dumps([digests(config, members.base), saved and str(saved.path)]))
    learner = make_learner(config, loaded, needs=members.needs, resumed=saved is not None, reference=members.reference)
    with contextlib.ExitStack() as on_failure:
        verify = {**config.verify.model_dump(), "workers": workers_of_rank(config.verify.workers)}
        verifiers = Verifiers(members.reward, **verify, base=members.base)
        on_failure.callback(verifiers.close)
        exact = all(
            ranks.gather_from_all(plan.exact_evaluation)
        )  # the same on every rank, though machines may differ in memory
        context = engine_context(config, loaded, plan.adjusted, exact_evaluation=exact)
        engine = make_engine(members.engine, context, name=config.rollout.engine.label)
        on_failure.callback(engine.close)
        critic_model, critic = make_separate_critic(config, learner, loaded, device)
        if context.sharded:
            # A rank that failed above raises here on all ranks; tensor collectives, which follow, would hang instead
            ranks.gather_from_all(None)
            shard_learner(learner, config, loaded)
            if critic is not None:
                shard_critic(critic, config, critic_model)
        if critic is not None and saved is None:
            load_start(critic, config)
        run = Run(
            members=members,
            folder=folder,
            sampling=training_sampling(config),
            prompts=prompts,
            held_out=held_out,
            engine=engine,
            verifiers=verifiers,
            learner=learner,
            critic=critic,
            logbook=logbook,
            files=loaded.files,
        )
        progress = Progress(
            history=history,
            clock=clock,
            alarms=Alarms(dump(config)),
            saved=saved,
        )
        if saved is not None:
            restore(run, progress, saved)
        built = Built(run, progress, devices, (*before_training(config, train, held_out), *verifiers.notices))
        on_failure.pop_all()
    return built


def restore(run: Run, progress: Progress, saved: Checkpoint) -> None:
    """Restore everything but the parameters, which `load_model` has read."""
    tensors, state = checkpoint.load(saved)
    if run.critic is not None:
        run.critic.restore(tensors, state.get("critic", {}))
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(VALUE_MODEL)}
    run.learner.restore(tensors, state["optimizer"])
    progress.history.load_state_dict(state["history"])
    run.verifiers.load_state_dict(state["verifiers"])
    progress.clock.load_state_dict(state.get("clock", {}))
    ranks.gather_from_all(None)  # as in `_build`: a failure above raises on all ranks before tensors are exchanged
    sync_weights(run.learner, run.engine, version=saved.step)


def load_model(
    config: Config, device: torch.device, saved: Checkpoint | None, tokenizer: Any, *, masters: bool = False
) -> Loaded:
    """The policy's module, with its adapter where one is trained: new, or as in the checkpoint `saved`.

    A full model is loaded from its checkpoint, which is a model folder. An adapter is loaded on top of its base model.
    `tokenizer` is that of `config.model.path`; a checkpoint has its own. The `masters` of a resumed model are copies of
    its rounded weights until `restore` loads the saved ones.
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
    )
    if lora is None:
        return loaded
    model = add_lora(loaded.model, **lora.model_dump(), seed=config.seed)
    if saved is not None:
        load_adapter(model, saved.path / ADAPTER)
    return dataclasses.replace(loaded, model=model)


def make_separate_critic(
    config: Config, learner: Learner, policy: Loaded, device: torch.device
) -> tuple[Loaded, Critic | None]:
    """The loaded model of a separate critic, and the critic; the policy's and None where none is configured."""
    critic = config.critic
    if not isinstance(critic, SeparateCritic):
        return policy, None
    loaded = _load_critic(config, critic, device, policy.tokenizer) if isinstance(critic, OwnModelCritic) else policy
    return loaded, make_critic(config, learner, loaded)


def load_start(critic: Critic, config: Config) -> None:
    """Initialise a new run's value model from another run's checkpoint, if `critic.start` names one."""
    if not isinstance(config.critic, SeparateCritic) or config.critic.start is None:
        return
    path = Path(config.critic.start).expanduser() / TENSORS
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(VALUE_MODEL)}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"critic.start: {path} cannot be read: {error}",
            remedy="name another checkpoint",
            key="critic.start",
            code="config.value",
        ) from error
    try:
        critic.start(tensors)
    except RunFolderError as error:
        raise ConfigError(
            f"critic.start = {config.critic.start!r}: {error.problem}",
            remedy=error.remedy,
            key="critic.start",
            code="config.value",
        ) from error


def _load_critic(config: Config, critic: OwnModelCritic, device: torch.device, tokenizer: Any) -> Loaded:
    """A model of the critic alone, with an adapter where one is trained."""
    with relabel_errors("critic.path" if critic.path else "model.path"):
        loaded = load(
            critic.path or config.model.path,
            dtype=config.model.dtype,
            device=str(device),
            tokenizer=tokenizer,
            masters=keeps_value_masters(config),
            quantization=config.model.quantization if critic.lora is not None else None,
        )
    if critic.lora is None:
        return loaded
    return dataclasses.replace(loaded, model=add_lora(loaded.model, **critic.lora.model_dump(), seed=config.seed))


def engine_context(
    config: Config, loaded: Loaded, cache_bytes: int | None = None, *, exact_evaluation: bool = True
) -> EngineContext:
    return EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=config.rollout.max_rollouts_at_once,
        cache_bytes=cache_bytes,
        sharded=config.ranks.learner == "sharded" and ranks.count() > 1,
        context_tokens=config.prompt.max_prompt_tokens + config.rollout.max_new_tokens,
        exact_evaluation=exact_evaluation,
    )
