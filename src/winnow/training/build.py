"""From a configuration's members to a `Run`: the only place where data, model, engine and workers come to be.

Things are loaded in the order in which they are cheap to refuse: problems, tokenizer, prompts, model, engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from winnow.config import Config
from winnow.engines.base import Engine, EngineContext
from winnow.learner.optimizer import Optimizer
from winnow.learner.policy import Policy
from winnow.learner.reference import FrozenCopy, Reference, StartingAdapter
from winnow.models.adapter import add_lora, load_adapter
from winnow.models.load import Loaded, load, padding
from winnow.records import FloatArray, Group, Prompt, Sampling
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.logbook import Logbook
from winnow.state.prompt_history import History
from winnow.tasks.stream import PromptStream
from winnow.training.advice import before_training
from winnow.training.devices import plan_devices
from winnow.training.members import Members
from winnow.training.prompts import held_out_prompts, longest, training_prompts, training_sampling
from winnow.training.resolve import check_installed
from winnow.training.step_metrics import Parity
from winnow.verify import Verifiers

REFERENCE = "reference/"  # what a checkpoint's tensors of the reference policy are called, before their own names


@dataclass
class Run:
    """Everything a training step reaches for."""

    members: Members
    folder: Path
    sampling: Sampling
    prompts: PromptStream
    held_out: tuple[Prompt, ...]
    history: History
    engine: Engine
    verifiers: Verifiers
    policy: Policy
    optimizer: Optimizer
    logbook: Logbook
    tokenizer: Any
    devices: tuple[str, ...]  # in lines: which does what, and what it has room for
    notices: tuple[str, ...]  # what a person should know before the first step
    written: int = -1  # the last step that was learned and whose rows are in the log

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def seed(self) -> int:
        return self.members.config.seed

    def gradient_norms(self, groups: Sequence[Group]) -> FloatArray | None:
        """[G] for an allocator that learns from training; None where nobody would read them."""
        return measured_gradient_norms(self.config, self.policy, groups) if self.members.source == "history" else None

    def parity(self) -> Parity:
        """To compare this step's log-probs of engine and policy."""
        return Parity(self.engine.logprob_tolerance, self.config.rollout.max_ratio_outside)

    def close(self) -> None:
        """End the verify workers, and the engine where it has anything to end."""
        try:
            self.verifiers.close()
        finally:
            close_engine(self.engine)


def build(members: Members, *, folder: Path, device: torch.device, saved: Checkpoint | None = None) -> Run:
    """Load data, tokenizer, model and engine, cheapest refusals first; continue from `saved` where there is one."""
    config = members.config
    check_installed(members)
    train, held_out = training_prompts(members), held_out_prompts(members)
    prompts = PromptStream(train.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    plan = plan_devices(members, device, longest_prompt=longest([*train.prompts, *held_out.prompts]))
    plan.check()
    logbook = Logbook(folder, seed=config.seed, marks=saved.logs if saved else {})
    logbook.check(saved.path if saved else None)
    checkpoint.check(folder, plan.checkpoint if saved is None else 0)
    devices = tuple(plan.lines())  # before anything takes what is free
    loaded = load_model(config, device, saved)
    policy = Policy(
        loaded.model,
        temperature=config.rollout.temperature,
        pad_token=padding(loaded.tokenizer, config.model.pad_token),
        tokens_per_micro_batch=config.update.tokens_per_micro_batch,
        gradient_checkpointing=config.model.gradient_checkpointing,
        max_importance=config.update.max_importance,
        reference=make_reference(config, loaded, device, members.needs, resumed=saved is not None),
    )
    with contextlib.ExitStack() as on_failure:
        verifiers = Verifiers(members.reward, **config.verify.model_dump(), base=members.base)
        on_failure.callback(verifiers.close)
        engine = members.engine(engine_context(config, loaded))
        on_failure.callback(close_engine, engine)
        run = Run(
            members=members,
            folder=folder,
            sampling=training_sampling(config),
            prompts=prompts,
            held_out=tuple(held_out.prompts),
            history=History(decay=config.probe.decay, remember=members.remember),
            engine=engine,
            verifiers=verifiers,
            policy=policy,
            optimizer=make_optimizer(config, policy),
            logbook=logbook,
            tokenizer=loaded.tokenizer,
            devices=devices,
            notices=(*before_training(config, train, held_out), *verifiers.notices),
        )
        if saved is not None:
            restore(run, saved)
        on_failure.pop_all()
    return run


def close_engine(engine: Engine) -> None:
    """End the processes of an engine that has any; most have nothing to close."""
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def measured_gradient_norms(config: Config, policy: Policy, groups: Sequence[Group]) -> FloatArray | None:
    """[G] the mean gradient norm of each group's correct rollouts, where the configuration asks for it."""
    of = config.probe.gradient_norm
    return None if of == "none" else policy.prompt_gradient_norms(groups, of=of)


def restore(run: Run, saved: Checkpoint) -> None:
    """Everything but the parameters, which `load_model` has read."""
    tensors, state = checkpoint.load(saved)
    reference = {name: tensors.pop(name) for name in list(tensors) if name.startswith(REFERENCE)}
    run.optimizer.load_state(tensors, state["optimizer"])
    if run.policy.reference is not None:
        run.policy.reference.load_state({name.removeprefix(REFERENCE): value for name, value in reference.items()})
    run.history.load_state_dict(state["history"])
    run.verifiers.load_state_dict(state["verifiers"])
    run.engine.load(run.policy.weights(), version=saved.step)


def load_model(config: Config, device: torch.device, saved: Checkpoint | None) -> Loaded:
    """The policy's module, with its adapter where one is trained: at its beginning, or as it was saved.

    A full model is resumed from its checkpoint, which is a model folder; an adapter on top of the base it was trained
    on.
    """
    transformers.utils.logging.disable_progress_bar()  # one for every load, and for every shard of every checkpoint
    lora = config.model.lora
    path = config.model.path if saved is None or lora is not None else str(saved.path)
    loaded = load(path, dtype=config.model.dtype, device=str(device))
    if lora is None:
        return loaded
    model = add_lora(loaded.model, **lora.model_dump(), seed=config.seed)
    if saved is not None:
        load_adapter(model, saved.path / checkpoint.ADAPTER)
    return dataclasses.replace(loaded, model=model)


def engine_context(config: Config, loaded: Loaded) -> EngineContext:
    return EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=config.rollout.max_rollouts_at_once,
        context_tokens=config.prompt.max_prompt_tokens + config.rollout.max_new_tokens,
    )


def make_reference(
    config: Config, loaded: Loaded, device: torch.device, needs: frozenset[str], resumed: bool
) -> Reference | None:
    """What a KL term measures from: the policy that the run started with. Without such a term, none."""
    if "ref_logprobs" not in needs:
        return None
    if config.model.lora is not None:
        return StartingAdapter(loaded.model)
    start = load(config.model.path, dtype=config.model.dtype, device=str(device)).model if resumed else None
    return FrozenCopy(loaded.model, start)


def make_optimizer(config: Config, policy: Policy) -> Optimizer:
    """Steps of the configuration become updates, which is what a schedule counts."""
    per_step = config.update.epochs * config.update.updates_per_step
    options = config.optimizer.model_dump()
    warmup = options.pop("warmup_steps") * per_step
    return Optimizer(policy.parameters, **options, warmup_updates=warmup, total_updates=config.steps * per_step)
