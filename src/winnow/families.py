"""The extension points, one `Family` each: what a member is called with, where a configuration names it, which modules
bring winnow's own, what a member may declare about itself, and the contract that it is held to. Imports no torch.

A new extension point is a `Family` here and a check of its contract; nothing else lists them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

Baseline = Literal["group", "batch", "values", "none"]  # what a reward is compared with
Source = Literal["none", "history", "probe"]
Read = Literal["logprobs"]
Need = Literal["old_logprobs", "ref_logprobs", "entropy", "values", "token_rewards", "pass_rates"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a member of any family may declare."""

    instead_of: Mapping[str, str] = field(default_factory=dict)  # a name people look for -> what this member is instead

    def named_options(self) -> Mapping[str, Sequence[str]]:
        """The member's options that a trait names, by that trait; each has to exist."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TaskTraits(Traits):
    """How a task is evaluated where nothing else says so."""

    evaluation: Mapping[str, Any] = field(default_factory=dict)  # keys of a configuration: its prompt, limits, reward


@dataclass(frozen=True, kw_only=True)
class RewardTraits(Traits):
    """How a reward reads answers, and what it has to do before it judges."""

    example: Callable[[Any], str] | None = None  # gold -> a completion that is right
    example_meta: Callable[[Any], dict[str, Any]] | None = None  # gold -> the prompt's meta, where golds stand there
    example_options: Mapping[str, Any] = field(default_factory=dict)  # with which the example is right
    best: float = 1.0  # what the example earns, and no text more
    asks: Sequence[Sequence[str]] = ()  # alternatives, each with the marks without which no answer is read
    check: Callable[[Mapping[str, Any]], None] | None = None  # of its options; raises ConfigError
    warm: Callable[[Mapping[str, Any]], None] | None = None  # called before the first worker is forked
    correct_at: float = 1.0  # a bare number is correct from here on
    reads: Sequence[Read] = ()  # what it reads of a rollout besides tokens and text; it is sent to no other reward
    own_limit: str | None = None  # the option that limits its seconds; an answer that takes longer is wrong

    def named_options(self) -> Mapping[str, Sequence[str]]:
        """See `Traits`."""
        return {} if self.own_limit is None else {"own_limit": (self.own_limit,)}


@dataclass(frozen=True, kw_only=True)
class AllocatorTraits(Traits):
    """Where an allocator's knowledge of the prompts comes from."""

    source: Source = "history"


@dataclass(frozen=True, kw_only=True)
class SelectorTraits(Traits):
    """How many rollouts of a group a selector keeps: `keep_per_prompt`, all, or as many as fit its rule."""

    size: Literal["exact", "all", "varies"] = "exact"


@dataclass(frozen=True, kw_only=True)
class AdvantageTraits(Traits):
    """What a rollout's reward is compared with. Under "group", a flat group and a single rollout teach nothing."""

    baseline: Baseline = "group"
    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class WeightingTraits(Traits):
    """What the weights of all tokens add up to, and whether every prompt has an equal share of them."""

    total: Literal["one", "constant", "prompts"] | None = None
    share: Literal["equal"] | None = None
    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class LossTraits(Traits):
    """Whether the derivative by a token's log-prob is -A at ratio 1; "positive": where A > 0, and 0 elsewhere."""

    policy_gradient: bool | Literal["positive"] = False
    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class TermTraits(Traits):
    """What a term reads beyond log-probs."""

    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class EngineTraits(Traits):
    """What must be known of an engine before it is made. The functions take a `memory.demand.Demand`."""

    requires: str | None = None  # a package that has to be installed
    fits: Callable[[Any], None] | None = None  # of a Config; raises ConfigError for what it cannot do
    memory: Callable[[Any], Iterable[Any]] | None = None  # its memory parts, for the plan
    job: Callable[[Any], str] | None = None  # where it samples and with which weights, in a sentence of the plan
    may_change: Sequence[str] = ()  # its options that a resume may change, because no number depends on them

    def named_options(self) -> Mapping[str, Sequence[str]]:
        """See `Traits`."""
        return {"may_change": self.may_change}


@dataclass(frozen=True, kw_only=True)
class TrackerTraits(Traits):
    """What a tracker needs."""

    requires: str | None = None  # a package that has to be installed


T_co = TypeVar("T_co", bound=Traits, covariant=True)


@dataclass(frozen=True)
class Family(Generic[T_co]):
    """An extension point. Its members are plain functions: the options are their keyword-only parameters."""

    name: str
    positional: tuple[str, ...]  # what a member is called with
    key: str  # where a configuration names its members
    modules: tuple[str, ...]  # importing these registers winnow's own
    traits: type[T_co]
    contract: str  # "module:function", the check that every member has to pass

    @property
    def plural(self) -> str:
        return f"{self.name}es" if self.name.endswith("s") else f"{self.name}s"

    @property
    def is_table(self) -> bool:
        """Whether its key is a table of the configuration, for which a bare name may stand."""
        return self.key not in ("rollout.engine", "terms")

    def load(self) -> None:
        """Register winnow's own members."""
        for module in self.modules:
            importlib.import_module(module)

    def check(self) -> Callable[..., None]:
        """The contract as a function."""
        module, _, name = self.contract.partition(":")
        check: Callable[..., None] = getattr(importlib.import_module(module), name)
        return check


TASK = Family("task", ("split",), "task", ("winnow.tasks",), TaskTraits, "winnow.testing:check_task")
REWARD = Family(
    "reward",
    ("prompt", "rollout"),
    "reward",
    ("winnow.rewards", "winnow.verify.code_tests"),
    RewardTraits,
    "winnow.rewards.contract:check_reward",
)
ALLOCATOR = Family(
    "allocator",
    ("stats", "budget"),
    "allocate",
    ("winnow.algos.allocation",),
    AllocatorTraits,
    "winnow.testing:check_allocator",
)
SELECTOR = Family(
    "selector",
    ("group", "rng"),
    "select",
    ("winnow.algos.selection",),
    SelectorTraits,
    "winnow.testing:check_selector",
)
ADVANTAGE = Family(
    "advantage",
    ("groups",),
    "advantage",
    ("winnow.algos.advantage", "winnow.algos.gae"),
    AdvantageTraits,
    "winnow.testing:check_advantage",
)
WEIGHTING = Family(
    "weighting",
    ("kept",),
    "weighting",
    ("winnow.algos.weighting",),
    WeightingTraits,
    "winnow.testing:check_weighting",
)
LOSS = Family("loss", ("out", "mb"), "loss", ("winnow.algos.loss",), LossTraits, "winnow.testing:check_loss")
TERM = Family("term", ("out", "mb"), "terms", ("winnow.algos.terms",), TermTraits, "winnow.testing:check_term")
ENGINE = Family(
    "engine", ("context",), "rollout.engine", ("winnow.engines",), EngineTraits, "winnow.testing:check_engine"
)
TRACKER = Family("tracker", ("run",), "track", ("winnow.trackers",), TrackerTraits, "winnow.testing:check_tracker")

FAMILIES: Mapping[str, Family[Traits]] = MappingProxyType(
    {
        family.name: family
        for family in (TASK, REWARD, ALLOCATOR, SELECTOR, ADVANTAGE, WEIGHTING, LOSS, TERM, ENGINE, TRACKER)
    }
)
