"""From names to functions: looks up every member of a configuration once, and binds its options.

Mistakes are reported here, before data, model or device are used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

import torch

from winnow import ranks
from winnow.algos.chunks import credit_in_chunks, select_in_chunks
from winnow.algos.objective import Objective, Term, ValueLoss
from winnow.algos.plain_groups import pairs
from winnow.algos.selectors import chain
from winnow.config import Config, Member, RewardSection, SharedCritic, Use, optimizers
from winnow.config_file import load, located
from winnow.core.members import Critic, Members
from winnow.errors import ConfigError, combine_errors, conflict
from winnow.families import (
    ADVANTAGE,
    ALLOCATOR,
    CORRECTION,
    CUT,
    ENGINE,
    ENVIRONMENT,
    LOSS,
    REWARD,
    ROUND,
    SAMPLER,
    SELECTOR,
    TASK,
    TERM,
    TRACKER,
    WEIGHTING,
    AdvantageTraits,
    AllocatorTraits,
    CorrectionTraits,
    Family,
    LossTraits,
    RewardTraits,
    TermTraits,
    Traits,
)
from winnow.installed import is_installed, unsuitable_version
from winnow.metrics import RATIOS, VALUE_LOSSES, distinct
from winnow.options import Bound, bind
from winnow.recipes import recipe_at
from winnow.registry import resolve, resolve_at
from winnow.training.combinations import check_combinations
from winnow.training.undeclared import check_needs
from winnow.user_code import with_named_errors

T = TypeVar("T", bound=Traits)
P = ParamSpec("P")
R = TypeVar("R")

# The engine of `auto` where a second CUDA device exists: vLLM, which uses that device alone.
SECOND_DEVICE = {"use": "vllm", "process": "own", "device": "cuda:1", "gpu_memory_utilization": 0.9}


def resolve_file(
    path: Path,
    sets: Sequence[str] = (),
    unset: Sequence[str] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    critic: Critic | None = None,
) -> Members:
    """The members of a configuration file, changed as by `load`. Raises ConfigError."""
    config = load(path, sets, unset, changes)
    try:
        return resolve_members(config, base=path.parent, recipe=recipe_at(path), critic=critic)
    except ConfigError as error:
        raise located(error, path, sets, unset, changes) from error


def resolve_members(config: Config, base: Path, *, recipe: str | None = None, critic: Critic | None = None) -> Members:
    """Look up every name and bind every option; `auto` becomes an engine, or a precision.

    Raises ConfigError with the mistakes of all members, and for members that do not fit together.

    `recipe` is the name of the recipe that the configuration is from. `critic` is a function that returns values, in
    place of the value model of a table [critic].
    """
    config = with_engine(with_dtype(config))
    attempt, reward = _Attempts(), reward_spec(config)
    task = attempt(_bound, TASK, config.task, base)
    further = _all_bound(attempt, TASK, config.evaluate.tasks, base, "evaluate.tasks")
    rewards = _rewards(attempt, config.reward, base)
    environment = None if config.environment is None else attempt(_bound, ENVIRONMENT, config.environment, base)
    sample, rounds = attempt(_bound, SAMPLER, config.sample, base), attempt(_bound, ROUND, config.rounds, base)
    selectors = _all_bound(attempt, SELECTOR, config.select, base)
    advantage = attempt(_bound, ADVANTAGE, config.advantage, base)
    allocate = attempt(_allocator, config, base, advantage)
    cut, weighting = attempt(_bound, CUT, config.cut, base), attempt(_bound, WEIGHTING, config.weighting, base)
    loss, terms = attempt(_bound, LOSS, config.loss, base), _all_bound(attempt, TERM, config.terms, base)
    correction = attempt(_bound, CORRECTION, config.correction, base)
    engine = attempt(_bound, ENGINE, config.rollout.engine, base)
    trackers = _all_bound(attempt, TRACKER, config.track, base)
    attempt.check()
    selectors = tuple(
        _in_chunks(bound, select_in_chunks, each.chunk) for bound, each in zip(selectors, config.select, strict=True)
    )
    members = Members(
        config=config,
        base=base,
        recipe=recipe,
        task=task,
        further_tasks=further,
        reward=reward,
        rewards=rewards,
        environment=environment,
        sample=sample,
        allocate=allocate,
        rounds=rounds,
        cut=cut,
        selectors=selectors,
        advantage=_in_chunks(advantage, credit_in_chunks, config.advantage.chunk),
        weighting=weighting,
        loss=loss,
        correction=correction,
        terms=terms,
        engine=engine,
        trackers=trackers,
        critic=None if critic is None else with_named_errors("the critic", critic, critic),
        select=chain(selectors),
        objective=_objective(config, loss, correction, terms),
        needs=_needs(config, loss, terms),
    )
    check_combinations(members)
    check_needs(members)
    return members


def with_engine(config: Config, *, cuda_devices: int | None = None, vllm: bool | None = None) -> Config:
    """The configuration with an engine instead of `auto`.

    It is vLLM on the second CUDA device, if that exists and a suitable vLLM is installed and accepts the configuration.
    It is `native` otherwise, with several ranks, and where the policy is not on the first CUDA device. By default,
    devices and vLLM are looked for on this machine.
    """
    engine = config.rollout.engine
    if engine.use != "auto":
        return config
    if engine.options:
        raise conflict(
            f"rollout.engine.{next(iter(engine.options))}: 'auto' has no options",
            remedy="name the engine that they are for",
            key=f"rollout.engine.{next(iter(engine.options))}",
        )
    devices = torch.cuda.device_count() if cuda_devices is None else cuda_devices
    installed = is_installed("vllm") and unsuitable_version("vllm") is None if vllm is None else vllm
    two = devices >= 2 and installed and config.device in ("auto", "cuda") and ranks.launched_count() == 1
    on_second = _sampled_by(config, SECOND_DEVICE)
    return on_second if two and _fits(on_second) else _sampled_by(config, {"use": "native"})


def _sampled_by(config: Config, engine: Mapping[str, Any]) -> Config:
    rollout = config.rollout.model_copy(update={"engine": Member.model_validate(engine)})
    return config.model_copy(update={"rollout": rollout})


def _fits(config: Config) -> bool:
    """Whether the engine accepts the configuration on CUDA: `auto` must not choose an engine that refuses it."""
    engine = resolve(ENGINE, config.rollout.engine.use)
    try:
        if engine.traits.fits is not None:
            engine.traits.fits(with_dtype(config, cuda=True))
    except ConfigError:
        return False
    return True


def with_dtype(config: Config, *, cuda: bool | None = None) -> Config:
    """The configuration with a precision instead of `auto`.

    It is bfloat16 where the policy is trained on CUDA, and float32 on the CPU or on a GPU that only emulates bfloat16.
    By default, a CUDA device is looked for on this machine.
    """
    if config.model.dtype != "auto":
        return config
    available = torch.cuda.is_available() if cuda is None else cuda
    on_cuda = config.device == "cuda" or (config.device == "auto" and available)
    if cuda is None and available and on_cuda:
        on_cuda = torch.cuda.is_bf16_supported(including_emulation=False)
    model = config.model.model_copy(update={"dtype": "bfloat16" if on_cuda else "float32"})
    return config.model_copy(update={"model": model})


def check_installed(members: Members) -> None:
    """Raise ConfigError where the engine, a precision, the log or a tracker needs a package that is not installed."""
    for tracker in members.trackers:
        if (package := tracker.traits.requires) is not None:
            own = tracker.entry.origin == "winnow"
            what = f"'winnow-rl[{package}]'" if own else package
            remedy = f"pip install {what}, or remove the tracker"
            _check_package("track", f"track = {tracker.name!r}", package, package if own else None, remedy)
    if (package := members.engine.traits.requires) is not None:
        own = members.engine.entry.origin == "winnow"
        what = f"winnow-rl[{package}] (docs/engines.md describes how, also without a GPU)" if own else "it"
        remedy, named = f"install {what}, or choose the engine 'native'", f"rollout.engine = {members.engine.name!r}"
        _check_package("rollout.engine", named, package, package if own else None, remedy)
    few_bits = [f"{key}.moments" for key, of in optimizers(members.config).items() if of.moments == "8bit"]
    few_bits += ["model.quantization"] if members.config.model.quantization is not None else []
    for key in few_bits:
        _check_package(key, key, "bitsandbytes", "bnb", "install winnow-rl[bnb], or remove the key")
    if members.config.log.rollouts != "none":
        remedy = 'pip install pyarrow, or write none of them (log.rollouts = "none")'
        _check_package("log.rollouts", "log.rollouts", "pyarrow", None, remedy)


def _check_package(key: str, what: str, package: str, extra: str | None, remedy: str) -> None:
    """Raise ConfigError for a package that is not installed, and for one of winnow's `extra` in another version."""
    if not is_installed(package):
        problem = f"the package {package!r} is not installed here"
    elif extra is not None and (versions := unsuitable_version(package)) is not None:
        problem = f"{package} {versions[0]} is installed here, and winnow needs {versions[1]}"
        remedy = f"pip install 'winnow-rl[{extra}]' '{package}{versions[1]}'"
    else:
        return
    raise ConfigError(f"{what}: {problem}", remedy=remedy, key=key, code="config.not_installed")


def reward_spec(config: Config) -> dict[str, Any]:
    """The reward or the environment as plain data, the form in which a worker gets it."""
    reward, environment = config.reward, config.environment
    if environment is not None:
        return {
            "environment": environment.use,
            "options": environment.options,
            "max_turns": environment.max_turns,
            "recorded": environment.recorded,
        }
    assert reward is not None, "a configuration without an environment has a reward"
    if reward.use is not None:
        return {"use": reward.use, "options": reward.options}
    parts = [{"use": p.use, "weight": p.weight, "options": p.options} for p in reward.parts]
    return {"parts": parts, "shaping": reward.shaping}


class _Attempts:
    """Calls whose ConfigErrors are raised together, so that one look at a configuration finds every mistake."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def __call__(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """The result; after an error a value that nothing may read, as `check` raises before."""
        try:
            return call(*arguments, **named)
        except ConfigError as error:
            self.errors += error.parts or (error,)
            return cast(R, None)

    def check(self) -> None:
        if self.errors:
            raise combine_errors(self.errors)


def _bound(family: Family[T], member: Member | RewardSection, base: Path, key: str | None = None) -> Bound[T]:
    """The member with its options. Raises ConfigError also for an option whose name is a key of the same table."""
    key = key or family.key
    entry = resolve_at(key, family, cast(Use, member.use), base=base)
    for name in sorted(entry.options.keys() & type(member).model_fields.keys()):
        raise ConfigError(
            f"{key}.{name} is a key of winnow, so the option {name!r} of the {entry.family.name} {entry.name!r} cannot "
            f"be set",
            remedy="rename the option in the function",
            key=f"{key}.{name}",
            code="config.registration",
        )
    return bind(entry, member.options, key=key)


def _all_bound(
    attempt: _Attempts, family: Family[T], members: Sequence[Member], base: Path, key: str | None = None
) -> tuple[Bound[T], ...]:
    """The members of a list. An error about one of several names its place in the list."""
    key = key or family.key
    keys = [f"{key}.{place}" for place in range(len(members))] if len(members) > 1 else [key]
    return tuple(attempt(_bound, family, each, base, own) for each, own in zip(members, keys, strict=False))


def _rewards(attempt: _Attempts, reward: RewardSection | None, base: Path) -> tuple[Bound[RewardTraits], ...]:
    """The parts of the reward; none for an environment. Raises for a wrong one here, and not first in a worker."""
    if reward is None or reward.use is not None:
        return () if reward is None else (attempt(_bound, REWARD, reward, base),)
    return tuple(
        attempt(_bound, REWARD, part, base, f"{REWARD.key}.parts.{place}") for place, part in enumerate(reward.parts)
    )


def _allocator(config: Config, base: Path, advantage: Bound[AdvantageTraits] | None) -> Bound[AllocatorTraits]:
    """The allocator. Under a group baseline the `minimum` of winnow's is at least 2 by default, as a single rollout has
    the advantage 0. An advantage with a mistake is None.
    """
    entry = resolve_at(ALLOCATOR.key, ALLOCATOR, config.allocate.use, base=base)
    group = advantage is not None and advantage.traits.baseline == "group"
    return bind(entry, {**(pairs(entry) if group else {}), **config.allocate.options}, key=ALLOCATOR.key)


def _objective(
    config: Config, loss: Bound[LossTraits], correction: Bound[CorrectionTraits], terms: Sequence[Bound[TermTraits]]
) -> Objective:
    names = distinct([term.name for term in terms], taken=(*RATIOS, *VALUE_LOSSES))
    shared = config.critic if isinstance(config.critic, SharedCritic) else None
    return Objective(
        loss=loss.call,
        correction=None if correction.name == "none" else correction.call,
        old=config.correction.old,
        value_loss=None if shared is None else ValueLoss(shared.clip_range, shared.coefficient),
        terms=tuple(
            Term(name, member.coefficient, term.call)
            for name, member, term in zip(names, config.terms, terms, strict=True)
        ),
    )


def _in_chunks(
    member: Bound[T], wrap: Callable[[Callable[..., Any], int], Callable[..., Any]], chunk: int | None
) -> Bound[T]:
    return member if chunk is None else dataclasses.replace(member, call=wrap(member.call, chunk))


def _needs(config: Config, loss: Bound[LossTraits], terms: Sequence[Bound[TermTraits]]) -> frozenset[str]:
    """What the learner must compute. Old log-probs that no member declares are needed for a second update alone: before
    the first one they are the policy's output. None are computed where the engine's take their place.
    """
    declared: frozenset[str] = frozenset((*loss.traits.needs, *(need for term in terms for need in term.traits.needs)))
    if isinstance(config.critic, SharedCritic):
        declared |= {"values"}
    single = config.update.epochs * config.update.updates_per_step == 1
    if config.correction.old == "engine":
        return declared - {"old_logprobs"}
    return declared if single else declared | {"old_logprobs"}
