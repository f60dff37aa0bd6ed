"""The only place where names become objects: a `Config` into `Members`, and those into a `Run`.

`resolve_members` looks every name up and binds every option; a mistake ends there, before data, model or device are
touched. `build` then loads in the order in which things are cheap to refuse: problems, tokenizer, prompts, model,
engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import winnow.algos.advantage  # importing a family's module registers its members
import winnow.algos.allocation
import winnow.algos.loss
import winnow.algos.terms
import winnow.algos.weighting
import winnow.engines
import winnow.rewards
import winnow.tasks  # noqa: F401
from winnow.algos.objective import Objective, Term
from winnow.algos.selection import Selector, chain
from winnow.config import Config, Member, Update
from winnow.engines.base import Engine, EngineContext
from winnow.errors import ConfigError
from winnow.learner.lora import add_lora, load_adapter
from winnow.learner.optim import Optimizer
from winnow.learner.policy import Policy
from winnow.learner.reference import FrozenCopy, Reference, StartingAdapter
from winnow.models.load import Loaded, describe, load, load_tokenizer
from winnow.records import FloatArray, Group, IntArray, Problem, Prompt, PromptStats, Sampling, Shape
from winnow.registry import Entry, bind, resolve
from winnow.rewards.compose import make_reward
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.history import History
from winnow.state.logbook import Logbook
from winnow.tasks.stream import PromptStream
from winnow.tasks.templates import Rendered, check_context, render
from winnow.verify import Verifiers

# Where in the configuration the members of a family are named, where that is not the family's own name.
KEYS = {"allocator": "allocate", "selector": "select", "engine": "rollout.engine", "term": "terms"}

Advantage = Callable[[Sequence[Group]], Sequence[FloatArray]]
Weighting = Callable[[Shape], FloatArray]
Allocator = Callable[[PromptStats, int], IntArray]
Critic = Callable[[Sequence[Group]], Sequence[Sequence[FloatArray]]]  # per group: N x [L]
Source = Literal["none", "history", "probe"]

REFERENCE = "reference/"  # what a checkpoint's tensors of the reference policy are called, before their own names


@dataclass(frozen=True)
class Members:
    """Every member a configuration names, with its options bound. Nothing has been loaded."""

    config: Config
    base: Path  # what "file.py:function" is relative to
    task: Callable[[str], list[Problem]]
    reward: Mapping[str, Any]  # plain data: a verify worker builds its own
    allocate: Allocator
    source: Source  # where the allocator's knowledge comes from
    select: Selector
    advantage: Advantage
    weighting: Weighting
    objective: Objective
    engine: Callable[[EngineContext], Engine]
    critic: Critic | None
    needs: frozenset[str]  # what loss and terms want beyond log-probs

    @property
    def output(self) -> Path:
        return Path(self.config.output).expanduser()


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
    weighting: Weighting
    objective: Objective
    critic: Critic | None
    policy: Policy
    optimizer: Optimizer
    logbook: Logbook
    tokenizer: Any
    notices: tuple[str, ...]  # what a person should know before the first step

    def gradient_norms(self, groups: Sequence[Group]) -> FloatArray | None:
        """[G] for an allocator that learns from training; None where nobody would read them."""
        of = self.config.probe.gradient_norm
        if self.source != "history" or of == "none":
            return None
        return self.policy.prompt_gradient_norms(groups, of=of)

    def close(self) -> None:
        """End the verify workers."""
        self.verifiers.close()


def resolve_members(config: Config, base: Path, *, critic: Critic | None = None) -> Members:
    """Look every name up and bind every option. Raises ConfigError naming the key.

    `critic` gives the values that some advantages want; it comes from Python, as winnow trains none itself.
    """
    member = _Resolver(base)
    loss, advantage = member.entry("loss", config.loss), member.entry("advantage", config.advantage)
    allocator = member.entry("allocator", config.allocate)
    _check_presumed(loss, config)
    _check_keep(config)
    _check_values(advantage, critic)
    reward = reward_spec(config)
    make_reward(reward, base=base)  # a wrong reward ends here, not in a worker
    terms = [member.entry("term", term) for term in config.terms]
    return Members(
        config=config,
        base=base,
        task=member.bound("task", config.task, key="task"),
        reward=reward,
        allocate=bind(allocator, _allocator_options(config, allocator, advantage), key="allocate"),
        source=allocator.traits.get("source", "history"),
        select=chain([member.bound("selector", m, key="select") for m in config.select]),
        advantage=member.bound("advantage", config.advantage, key="advantage"),
        weighting=member.bound("weighting", config.weighting, key="weighting"),
        objective=Objective(
            loss=member.bound("loss", config.loss, key="loss"),
            terms=tuple(
                Term(term.label, term.coefficient, member.bound("term", term, key="terms")) for term in config.terms
            ),
        ),
        engine=member.bound("engine", config.rollout.engine, key="rollout.engine"),
        critic=critic,
        needs=_needs(config, [loss, *terms]),
    )


def build(members: Members, *, folder: Path, device: torch.device, saved: Checkpoint | None = None) -> Run:
    """Load data, tokenizer, model and engine, cheapest refusals first; continue from `saved` where there is one."""
    config = members.config
    train, held_out = training_prompts(members), held_out_prompts(members)
    prompts = PromptStream(train.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    loaded = load_model(config, device, saved)
    policy = Policy(
        loaded.model,
        temperature=config.rollout.temperature,
        pad_token=loaded.tokenizer.pad_token_id,
        tokens_per_micro_batch=config.update.tokens_per_micro_batch,
        gradient_checkpointing=config.model.gradient_checkpointing,
        max_importance=config.update.max_importance,
        reference=make_reference(config, loaded, device, members.needs, resumed=saved is not None),
    )
    verifiers = Verifiers(members.reward, **config.verify.model_dump(), base=members.base)
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
        history=History(decay=config.probe.decay),
        engine=members.engine(engine_context(config, loaded)),
        verifiers=verifiers,
        select=members.select,
        advantage=members.advantage,
        weighting=members.weighting,
        objective=members.objective,
        critic=members.critic,
        policy=policy,
        optimizer=make_optimizer(config, policy),
        logbook=Logbook(folder, seed=config.seed),
        tokenizer=loaded.tokenizer,
        notices=(*_dropped(train, "training"), *_dropped(held_out, "evaluation"), *verifiers.notices),
    )
    if saved is not None:
        restore(run, saved)
    return run


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
    return render(problems, load_tokenizer(config.model.path), **config.prompt.model_dump(), base=members.base)


def training_sampling(config: Config) -> Sampling:
    rollout = config.rollout
    return Sampling(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature, stop=rollout.stop)


def engine_context(config: Config, loaded: Loaded) -> EngineContext:
    return EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=config.rollout.max_rollouts_at_once,
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


def reward_spec(config: Config) -> dict[str, Any]:
    """The reward as plain data, the form in which it travels to a worker."""
    reward = config.reward
    if reward.use is not None:
        return {"use": reward.use, "options": reward.options}
    parts = [{"use": p.use, "weight": p.weight, "options": p.options} for p in reward.parts]
    return {"parts": parts, "shaping": reward.shaping}


@dataclass(frozen=True)
class _Resolver:
    base: Path

    def entry(self, family: str, member: Member) -> Entry:
        try:
            return resolve(family, member.use, base=self.base)
        except ConfigError as error:
            raise ConfigError(f"{KEYS.get(family, family)}: {error}") from error

    def bound(self, family: str, member: Member, *, key: str) -> Any:
        return bind(self.entry(family, member), member.options, key=key)


def _needs(config: Config, entries: Sequence[Entry]) -> frozenset[str]:
    """What forward and annotate must provide. With a single optimizer update per step the ratio is 1, and old log-probs
    would be computed for nothing, unless they correct for the engine.
    """
    declared = frozenset(need for entry in entries for need in entry.traits.get("needs", ()))
    single = config.update.epochs * config.update.updates_per_step == 1
    return declared if single and not config.update.max_importance else declared | {"old_logprobs"}


def _allocator_options(config: Config, allocator: Entry, advantage: Entry) -> dict[str, Any]:
    """Under a group baseline one rollout teaches nothing: who gets any gets at least 2, unless told otherwise."""
    pairs = {"minimum": 2} if advantage.traits.get("baseline") == "group" and "minimum" in allocator.options else {}
    return {**pairs, **config.allocate.options}


def _check_values(advantage: Entry, critic: Critic | None) -> None:
    if "values" in advantage.traits.get("needs", ()) and critic is None:
        raise ConfigError(
            f"advantage = {advantage.name!r} needs values, and there is no critic; give one from Python "
            f"(winnow.train(critic=...)), or choose an advantage with another baseline"
        )


def _check_presumed(entry: Entry, config: Config) -> None:
    for key, name in entry.traits.get("presumes", {}).items():
        chosen = getattr(config, key).label
        if chosen != name:
            raise ConfigError(
                f"loss = {config.loss.label!r} presumes {key} = {name!r}, but {key} is {chosen!r}; "
                f"set {key} = {name!r}, or name the loss {entry.name!r}"
            )


def _check_keep(config: Config) -> None:
    rollouts = config.rollout.rollouts_per_prompt
    for member in config.select if config.allocate.use == "uniform" else ():
        keep = member.options.get("keep_per_prompt")
        if isinstance(keep, int) and keep > rollouts:
            raise ConfigError(
                f"select.keep_per_prompt = {keep} is above rollout.rollouts_per_prompt = {rollouts}: nothing would "
                f"ever be dropped; lower it to at most {rollouts}, or sample more"
            )


def _dropped(rendered: Rendered, purpose: str) -> list[str]:
    if not rendered.dropped:
        return []
    total = rendered.dropped + len(rendered.prompts)
    return [
        f"{rendered.dropped} of {total} {purpose} prompts are longer than prompt.max_prompt_tokens and were dropped"
    ]
