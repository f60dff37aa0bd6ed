"""From names to functions: every member that a configuration names is looked up and its options are bound.

A mistake ends here, before data, model or device are touched.
"""

from __future__ import annotations

import importlib.util
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
import winnow.tasks
import winnow.verify  # noqa: F401
from winnow.algos.objective import Objective, Term
from winnow.algos.selection import Selector, chain
from winnow.config import Config, Member
from winnow.engines.base import Engine, EngineContext
from winnow.errors import ConfigError
from winnow.metrics import RATIOS, distinct
from winnow.records import FloatArray, Group, IntArray, KeptRollouts, Problem, PromptStats
from winnow.registry import Entry, bind, resolve, said_by_name
from winnow.rewards.compose import make_reward

# Where in the configuration the members of a family are named, where that is not the family's own name.
KEYS = {"allocator": "allocate", "selector": "select", "engine": "rollout.engine", "term": "terms"}

# What `auto` means where there is a second CUDA device: it is vLLM's alone.
SECOND_DEVICE = {"use": "vllm", "process": "own", "device": "cuda:1", "gpu_memory_utilization": 0.9}

Source = Literal["none", "history", "probe"]

# Which keys of `probe` an allocator reads, by where its knowledge comes from, and that in words.
_PROBE_KEYS: Mapping[Source, frozenset[str]] = {
    "none": frozenset(),
    "history": frozenset({"gradient_norm", "decay"}),
    "probe": frozenset({"every", "rollouts_per_prompt", "gradient_norm", "outer_reset"}),
}
_KNOWS: Mapping[Source, str] = {
    "none": "which needs to know nothing of the prompts",
    "history": "which knows the prompts from earlier visits and does not probe",
    "probe": "which probes anew and forgets earlier visits",
}

Advantage = Callable[[Sequence[Group]], Sequence[FloatArray]]
Weighting = Callable[[KeptRollouts], FloatArray]
Allocator = Callable[[PromptStats, int], IntArray]
Critic = Callable[[Sequence[Group]], Sequence[Sequence[FloatArray]]]  # per group: N x [L]


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
    remember: bool  # whether allocator or weighting reads what training has shown of a prompt at earlier visits
    objective: Objective
    engine: Callable[[EngineContext], Engine]
    critic: Critic | None
    group_baseline: bool  # the advantage compares rollouts of one prompt: a flat group teaches nothing
    needs: frozenset[str]  # what loss and terms want beyond log-probs

    @property
    def output(self) -> Path:
        return Path(self.config.output).expanduser()


def resolve_members(config: Config, base: Path, *, critic: Critic | None = None) -> Members:
    """Look every name up and bind every option; `auto` becomes an engine. Raises ConfigError naming the key.

    `critic` gives the values that some advantages want; it comes from Python, as winnow trains none itself.
    """
    member = _Resolver(base)
    config = with_engine(config, cuda_devices=torch.cuda.device_count(), vllm=_installed("vllm"))
    engine = member.entry("engine", config.rollout.engine)
    make_engine = bind(engine, config.rollout.engine.options, key="rollout.engine")
    if "fits" in engine.traits:
        engine.traits["fits"](config)
    loss, advantage = member.entry("loss", config.loss), member.entry("advantage", config.advantage)
    allocator = member.entry("allocator", config.allocate)
    source = allocator.traits.get("source", "history")
    _check_presumed(loss, config)
    _check_probe(config, source)
    _check_keep(config)
    _check_values(advantage, critic)
    reward = reward_spec(config)
    make_reward(reward, base=base)  # a wrong reward ends here, not in a worker
    _check_limits(config, reward, base)
    terms = [member.entry("term", term) for term in config.terms]
    needs = _needs(config, [loss, *terms])
    _check_reset(config, needs)
    names = distinct([term.name for term in terms], taken=RATIOS)
    return Members(
        config=config,
        base=base,
        task=member.bound("task", config.task, key="task"),
        reward=reward,
        allocate=bind(allocator, _allocator_options(config, allocator, advantage), key="allocate"),
        source=source,
        select=chain([member.bound("selector", m, key="select") for m in config.select]),
        advantage=member.bound("advantage", config.advantage, key="advantage"),
        weighting=member.bound("weighting", config.weighting, key="weighting"),
        remember=_remembers(allocator, member.entry("weighting", config.weighting)),
        objective=Objective(
            loss=member.bound("loss", config.loss, key="loss"),
            terms=tuple(
                Term(name, term.coefficient, member.bound("term", term, key="terms"))
                for name, term in zip(names, config.terms, strict=True)
            ),
        ),
        engine=make_engine,
        critic=None if critic is None else said_by_name("the critic", critic, critic),
        group_baseline=advantage.traits.get("baseline", "group") == "group",
        needs=needs,
    )


def with_engine(config: Config, *, cuda_devices: int, vllm: bool) -> Config:
    """The configuration with an engine instead of `auto`: vLLM on a second CUDA device where there is one and the
    policy is on the first, else `native`, which needs none.
    """
    engine = config.rollout.engine
    if engine.use != "auto":
        return config
    if engine.options:
        raise ConfigError(
            f"rollout.engine.{next(iter(engine.options))}: 'auto' has no options; name the engine that they are for"
        )
    two = cuda_devices >= 2 and vllm and config.device in ("auto", "cuda") and config.model.dtype != "float64"
    chosen = SECOND_DEVICE if two else {"use": "native"}
    rollout = config.rollout.model_copy(update={"engine": Member.model_validate(chosen)})
    return config.model_copy(update={"rollout": rollout})


def check_installed(members: Members) -> None:
    """Raise ConfigError where the engine needs a package that is not here."""
    label = members.config.rollout.engine.label
    package = resolve("engine", members.config.rollout.engine.use, base=members.base).traits.get("requires")
    if package is not None and not _installed(package):
        raise ConfigError(
            f"rollout.engine = {label!r}: the package {package!r} is not installed here; install winnow-rl[{package}] "
            f"(docs/engines.md says how, also without a GPU), or choose the engine 'native'"
        )


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


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


def _remembers(allocator: Entry, weighting: Entry) -> bool:
    """A weighting's pass rates are the plan's, which are the history's where the allocator makes no probe."""
    source = allocator.traits.get("source", "history")
    return source == "history" or (source == "none" and "pass_rates" in weighting.traits.get("needs", ()))


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


def _check_limits(config: Config, reward: Mapping[str, Any], base: Path) -> None:
    """What exceeds a reward's own time limit is wrong; what exceeds the worker's, which kills, is failed."""
    for part in reward.get("parts", [reward]):
        entry = resolve("reward", part["use"], base=base)
        name = entry.traits.get("own_limit")
        own = None if name is None else part["options"].get(name, entry.options[name].default)
        if own is not None and own >= config.verify.timeout_seconds:
            raise ConfigError(
                f"verify.timeout_seconds = {config.verify.timeout_seconds} would end the reward {entry.name!r} before "
                f"its own limit, reward.{name} = {own}, could call it wrong; raise the former above the latter"
            )


def _check_probe(config: Config, source: Source) -> None:
    """A key of `probe` that the allocator never reads would be ignored without a word."""
    for key, field in type(config.probe).model_fields.items():
        if key not in _PROBE_KEYS[source] and getattr(config.probe, key) != field.default:
            raise ConfigError(
                f"probe.{key} = {getattr(config.probe, key)!r} has no effect under allocate = "
                f"{config.allocate.label!r}, {_KNOWS[source]}; remove it, or choose "
                f"allocate = {'gvm_online' if key == 'decay' else 'gvm'!r}"
            )


def _check_reset(config: Config, needs: frozenset[str]) -> None:
    reset = config.probe.outer_reset
    if reset in ("reference", "both") and "ref_logprobs" not in needs:
        raise ConfigError(
            f"probe.outer_reset = {reset!r} restarts the reference policy, and no term compares with one; add a KL "
            f"term, or use {'optimizer' if reset == 'both' else 'none'!r}"
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
