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

from winnow.algos.objective import Objective
from winnow.algos.selection import Selector
from winnow.config import Config, Update
from winnow.engines.base import Engine, EngineContext, make_engine
from winnow.engines.stopping import divide_stops
from winnow.learner.optimizer import Optimizer
from winnow.learner.policy import Policy
from winnow.learner.reference import FrozenCopy, Reference, StartingAdapter
from winnow.models.adapter import add_lora, load_adapter
from winnow.models.load import Loaded, describe, load, load_tokenizer, padding
from winnow.records import FloatArray, Group, Problem, Prompt, Sampling
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.logbook import Logbook
from winnow.state.prompt_history import History
from winnow.tasks.stream import PromptStream
from winnow.tasks.templates import Rendered, check_context, render
from winnow.training.device_plan import plan_devices
from winnow.training.members import Advantage, Allocator, Critic, Members, Source, Weighting, check_installed
from winnow.training.step_metrics import Parity
from winnow.verify import Verifiers

REFERENCE = "reference/"  # what a checkpoint's tensors of the reference policy are called, before their own names


@dataclass
class Run:
    """Everything a training step reaches for."""

    config: Config
    folder: Path
    seed: int
    sampling: Sampling
    update: Update
    needs: frozenset[str]
    prompts: PromptStream
    held_out: tuple[Prompt, ...]
    allocate: Allocator
    source: Source
    history: History
    engine: Engine
    verifiers: Verifiers
    select: Selector
    advantage: Advantage
    group_baseline: bool
    weighting: Weighting
    objective: Objective
    critic: Critic | None
    policy: Policy
    optimizer: Optimizer
    logbook: Logbook
    tokenizer: Any
    devices: tuple[str, ...]  # in lines: which does what, and what it has room for
    notices: tuple[str, ...]  # what a person should know before the first step
    written: int = -1  # the last step that was learned and whose rows are in the log

    def gradient_norms(self, groups: Sequence[Group]) -> FloatArray | None:
        """[G] for an allocator that learns from training; None where nobody would read them."""
        return measured_gradient_norms(self.config, self.policy, groups) if self.source == "history" else None

    def parity(self) -> Parity:
        """To compare this step's log-probs of engine and policy."""
        return Parity(self.engine.logprob_tolerance, self.config.rollout.max_ratio_outside)

    def close(self) -> None:
        """End the verify workers and the engine."""
        try:
            self.verifiers.close()
        finally:
            self.engine.close()


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
        engine = make_engine(members.engine, engine_context(config, loaded), name=config.rollout.engine.label)
        on_failure.callback(engine.close)
        run = Run(
            config=config,
            folder=folder,
            seed=config.seed,
            sampling=training_sampling(config),
            update=config.update,
            needs=members.needs,
            prompts=prompts,
            held_out=tuple(held_out.prompts),
            allocate=members.allocate,
            source=members.source,
            history=History(decay=config.probe.decay, remember=members.remember),
            engine=engine,
            verifiers=verifiers,
            select=members.select,
            advantage=members.advantage,
            group_baseline=members.group_baseline,
            weighting=members.weighting,
            objective=members.objective,
            critic=members.critic,
            policy=policy,
            optimizer=make_optimizer(config, policy),
            logbook=logbook,
            tokenizer=loaded.tokenizer,
            devices=devices,
            notices=(
                *_dropped(train, "training"),
                *_dropped(held_out, "evaluation"),
                *_too_few(config, held_out),
                *_imprecise(config),
                *verifiers.notices,
            ),
        )
        if saved is not None:
            restore(run, saved)
        on_failure.pop_all()
    return run


def longest(prompts: Sequence[Prompt]) -> int:
    """Tokens of the longest prompt."""
    return max(len(prompt.tokens) for prompt in prompts)


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


def training_prompts(members: Members) -> Rendered:
    """The problems to train on, rendered; no weight is read."""
    return _rendered(members, members.task("train"))


def held_out_prompts(members: Members) -> Rendered:
    """The problems to evaluate on, rendered; no weight is read."""
    evaluate = members.config.evaluate
    return _rendered(members, members.task(evaluate.split)[: evaluate.problems])


def _rendered(members: Members, problems: Sequence[Problem]) -> Rendered:
    config = members.config
    check_context(
        max_prompt_tokens=config.prompt.max_prompt_tokens,
        max_new_tokens=config.rollout.max_new_tokens,
        context_tokens=describe(config.model.path).context,
    )
    tokenizer = load_tokenizer(config.model.path)
    padding(tokenizer, config.model.pad_token)  # a name that is none is refused before any weight is read
    divide_stops(tokenizer, config.rollout.stop)  # so is a stop string that cannot be
    return render(problems, tokenizer, **config.prompt.model_dump(), base=members.base)


def training_sampling(config: Config) -> Sampling:
    rollout = config.rollout
    return Sampling(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature, stop=rollout.stop)


def evaluation_sampling(config: Config) -> Sampling:
    """As in training where nothing else is said; here the distribution may be cut, as nothing is learned from it."""
    evaluate, rollout = config.evaluate, config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens,
        temperature=evaluate.temperature or rollout.temperature,
        top_p=evaluate.top_p,
        top_k=evaluate.top_k,
        min_p=evaluate.min_p,
        stop=rollout.stop,
    )


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


def _too_few(config: Config, held_out: Rendered) -> list[str]:
    asked, found = config.evaluate.problems, held_out.dropped + len(held_out.prompts)
    if found >= asked:
        return []
    return [f"evaluate.problems = {asked}, but the task has {found} {config.evaluate.split} problems: all are used"]


def _imprecise(config: Config) -> list[str]:
    if config.model.dtype != "bfloat16" or config.model.lora is not None:
        return []
    return [
        "model.dtype = 'bfloat16' trains the weights themselves in 8 bits of precision: small updates are rounded "
        "away; use float32, or bfloat16 with model.lora"
    ]


def _dropped(rendered: Rendered, purpose: str) -> list[str]:
    if not rendered.dropped:
        return []
    total = rendered.dropped + len(rendered.prompts)
    return [
        f"{rendered.dropped} of {total} {purpose} prompts are longer than prompt.max_prompt_tokens and were dropped"
    ]
