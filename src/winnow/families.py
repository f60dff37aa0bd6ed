"""The extension points, one `Family` each. Imports no torch.

A family defines the arguments of its members, the key that names them, and the modules with winnow's own members. It
also defines the traits that a member may declare, and the contract that a member must pass. A new extension point is a
`Family` here and a check of its contract; nothing else lists them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import pydantic
from pydantic import TypeAdapter

from winnow.errors import ConfigError, accepted_value, near_miss

Baseline = Literal["group", "batch", "values", "none"]  # the baseline of a reward
Source = Literal["none", "history", "probe"]
Read = Literal["logprobs"]
# What members can need, by who gets it
NeedOfLoss = Literal["old_logprobs", "ref_logprobs", "entropy"]
NeedOfAdvantage = Literal["values", "token_rewards"]
NeedOfWeighting = Literal["pass_rates"]

OPTION_TRAITS = ("own_limit", "may_change", "label", "least")  # each names one of the member's options, or several


def unfit(problem: str, *, remedy: str) -> ConfigError:
    """The error for a function, or its declaration, that does not match its family."""
    return ConfigError(problem, remedy=remedy, code="config.registration")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of members of all families. The text under each trait is its meaning in docs/reference.md."""

    check: Callable[[Mapping[str, Any]], None] | None = None
    """Called with all options before a run. It raises ConfigError for an invalid combination, with a key that is
    relative to their table.
    """


@dataclass(frozen=True, kw_only=True)
class TaskTraits(Traits):
    """The default settings of a task's evaluation."""

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """Sections of a configuration: the prompt, limits and reward with which `winnow eval` evaluates its problems."""


@dataclass(frozen=True, kw_only=True)
class RewardTraits(Traits):
    """How a reward reads answers, and how it is checked and prepared."""

    example: Callable[[Any], str] | None = None
    """Gold answer -> a correct completion, which the contract check requires."""
    example_meta: Callable[[Any], dict[str, Any]] | None = None
    """Gold answer -> the prompt's `meta`, for a reward that reads the gold answer there."""
    solution: str | None = None
    """The field of `meta` from which the example is made, if the gold is tests instead of an answer."""
    example_options: Mapping[str, Any] = field(default_factory=dict)
    """The options with which the example is correct."""
    best: float = 1.0
    """The reward of the example, which no text exceeds."""
    asks: Sequence[Sequence[str]] = ()
    """Alternatives, each with the marks that an answer requires. `winnow check` searches the prompt for them."""
    warm: Callable[[Mapping[str, Any]], None] | None = None
    """Slow initialisation: called with the options before the first worker is forked."""
    correct_at: float = 1.0
    """A number of at least this value counts as correct."""
    reads: Sequence[Read] = ()
    """`("logprobs",)`: it reads `rollout.logprobs`, which no other reward receives."""
    check_gold: Callable[[Any], object] | None = None
    """Raises ValueError for a gold that the reward cannot read. A run calls it for some golds before its first step."""
    own_limit: str | None = None
    """The option that limits the reward's own seconds. An answer that takes longer is wrong, not failed."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentTraits(Traits):
    """How the result of an environment becomes a verdict, and how it is checked."""

    correct_at: float = 1.0
    """A number of at least this value counts as correct."""
    example: Callable[[Any], Sequence[str]] | None = None
    """Gold answer -> the policy's turns of a correct rollout, which the contract check requires."""
    best: float = 1.0
    """The reward of that rollout, which no other exceeds."""
    tools: tuple[str, ...] = ()
    """The tools that the policy may call. Their calls are counted."""
    warm: Callable[[Mapping[str, Any]], None] | None = None
    """Prepares the first answer: called with the options before workers are forked."""
    schemas: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None = None
    """A problem's `meta` -> the schemas of its tools, for the chat template."""
    opening: Callable[[Any, Mapping[str, Any]], str | None] | None = None
    """Problem, options -> text at the end of the question, or None."""


@dataclass(frozen=True, kw_only=True)
class SamplerTraits(Traits):
    """Whether a sampler reads the results of training, the probability of its draws, and the labels of the data."""

    source: Literal["none", "history"] = "history"
    """Whether it reads the results of training: "none" or "history"."""
    probability: Literal["equal", "known", "unknown"] = "unknown"
    """The probability that a prompt is drawn: "equal" for all, "known" (in `Drawn.probability`, above 0 for all) or
    "unknown".
    """
    label: str | None = None
    """The option that names the field of a problem's meta with its difficulty."""


@dataclass(frozen=True, kw_only=True)
class AllocatorTraits(Traits):
    """The source of an allocator's statistics of the prompts, and the estimator that it was derived for."""

    source: Source = "history"
    """The source of its statistics: "none", "history" or "probe"."""
    gradient_norms: bool = True
    """Whether it reads gradient norms, which cost a pass for each correct rollout."""
    assumes: Mapping[Literal["advantage", "select", "weighting"], Sequence[str]] = field(default_factory=dict)
    """The members for which it was derived, such as `{"advantage": ("rloo",)}`. winnow's others are refused with it,
    and a user's own are not checked.
    """
    least: str | None = None
    """The option with the fewest rollouts of each prompt. A budget with fewer is refused."""


@dataclass(frozen=True, kw_only=True)
class RoundTraits(Traits):
    """Whether the number of a prompt's rollouts depends on their verdicts, which biases what is estimated from both."""

    reads_verdicts: bool = True
    """Whether the number of a prompt's rollouts depends on their verdicts."""


@dataclass(frozen=True, kw_only=True)
class CutTraits(Traits):
    """Whether a rule cuts any rollout, and the fields of rollouts that it reads besides their lengths."""

    cuts: bool = True
    """Whether it cuts any rollout."""
    reads: Sequence[Read] = ()
    """`("logprobs",)`: it receives the log-probs of the rollouts."""


@dataclass(frozen=True, kw_only=True)
class SelectorTraits(Traits):
    """The number of rollouts of a group that a selector keeps."""

    size: Literal["exact", "all", "varies"] = "exact"
    """How many rollouts it keeps: "exact" (`keep_per_prompt`), "all", or "varies" with the group."""


@dataclass(frozen=True, kw_only=True)
class AdvantageTraits(Traits):
    """The baseline of a reward, and further inputs."""

    baseline: Baseline = "group"
    """The baseline of a reward: "group", "batch", "values" or "none". With "group", a flat group and a single rollout
    have the advantage 0.
    """
    needs: Sequence[NeedOfAdvantage] = ()
    """"values": a value for each token. "token_rewards": the reward of each token."""


@dataclass(frozen=True, kw_only=True)
class WeightingTraits(Traits):
    """The sum of the weights of all tokens, and whether every prompt has an equal share of it."""

    total: Literal["one", "constant", "prompts"] | None = None
    """The sum of the weights of all tokens: "one", "constant" or "prompts"."""
    share: Literal["equal"] | None = None
    """"equal": every prompt has the same total weight."""
    needs: Sequence[NeedOfWeighting] = ()
    """"pass_rates": the pass rate of each prompt."""


@dataclass(frozen=True, kw_only=True)
class LossTraits(Traits):
    """The slope of a loss, and its inputs besides log-probs."""

    policy_gradient: bool | Literal["positive"] = False
    """Whether the loss's derivative by a token's log-prob is -A at ratio 1. "positive": only if A > 0, else 0."""
    needs: Sequence[NeedOfLoss] = ()
    """Inputs that are computed only on request: "old_logprobs", "ref_logprobs", "entropy"."""


@dataclass(frozen=True, kw_only=True)
class CorrectionTraits(Traits):
    """The policy that a correction compares with the engine's."""

    compares: Literal["old", "present"] | None = None
    """The policy that it compares with the engine's: "old" (before the step's updates) or "present". "old" is refused
    under `correction.old = "engine"`.
    """


@dataclass(frozen=True, kw_only=True)
class TermTraits(Traits):
    """The inputs of a term besides log-probs."""

    needs: Sequence[NeedOfLoss] = ()
    """Inputs that are computed only on request: "old_logprobs", "ref_logprobs", "entropy"."""


@dataclass(frozen=True, kw_only=True)
class EngineTraits(Traits):
    """Properties of an engine that are needed before it is made. The functions take a `memory.demand.Demand`."""

    requires: str | None = None
    """A required package. If it is not installed, the run is refused before anything is loaded."""
    fits: Callable[[Any], None] | None = None
    """Called with the configuration. It raises ConfigError for unsupported settings."""
    memory: Callable[[Any], Iterable[Any]] | None = None
    """A `winnow.memory.demand.Demand` -> its parts of the memory plan, each with a way to reduce it."""
    job: Callable[[Any], str] | None = None
    """The same argument -> its device and weights, a sentence in the line `devices` of `winnow check`."""
    may_change: Sequence[str] = ()
    """Options that a resume may change, because they affect no rollout."""
    ahead: Callable[[Any], None] | None = None
    """Called with the configuration. It raises ConfigError if the engine cannot sample while the policy is trained.
    Without it, `rollout.ahead = 1` is refused.
    """


@dataclass(frozen=True, kw_only=True)
class TrackerTraits(Traits):
    """Requirements of a tracker."""

    requires: str | None = None
    """A required package. If it is not installed, the run is refused before anything is loaded."""


T_co = TypeVar("T_co", bound=Traits, covariant=True)


@dataclass(frozen=True)
class Family(Generic[T_co]):
    """An extension point. Its members are plain functions: the options are their keyword-only parameters."""

    name: str
    positional: tuple[str, ...]  # the arguments of a member
    key: str  # the key of a configuration that names its members
    modules: tuple[str, ...]  # importing these registers winnow's own
    traits: type[T_co]
    contract: str = ""  # "module:function", the check that every member has to pass; "": that of winnow.testing
    of_class: str = ""  # "module:function", which makes a member of a class; "": a class is called like a function

    @property
    def plural(self) -> str:
        return f"{self.name}es" if self.name.endswith("s") else f"{self.name}s"

    @property
    def is_table(self) -> bool:
        """Whether its key is a table of the configuration, and a bare name is short for that table."""
        return self.key not in ("rollout.engine", "terms")

    def load(self) -> None:
        """Register winnow's own members."""
        for module in self.modules:
            importlib.import_module(module)

    def declare(self, traits: Mapping[str, Any]) -> T_co:
        """The traits of a member, the default of each that is not given. Raises ConfigError."""
        known = [each.name for each in dataclasses.fields(self.traits)]
        for trait in traits:
            if trait not in known:
                raise unfit(f"the family {self.name} has no trait {trait!r}", remedy=near_miss(trait, known))
        try:
            return self._declared.validate_python(dict(traits))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            trait = ".".join(map(str, first["loc"]))
            raise unfit(
                f"the trait {trait!r} of the family {self.name} is {first['input']!r}",
                remedy=accepted_value(first["msg"]),
            ) from error

    @functools.cached_property
    def _declared(self) -> TypeAdapter[T_co]:
        return TypeAdapter(self.traits)

    def check(self) -> Callable[..., None]:
        """The contract as a function."""
        contract: Callable[..., None] = pkgutil.resolve_name(self.contract or f"winnow.testing:check_{self.name}")
        return contract

    def member_of(self, given: Callable[..., Any]) -> Callable[..., Any]:
        """The member that a user gives: a function, or what `of_class` makes of a class."""
        if not (self.of_class and isinstance(given, type)):
            return given
        made: Callable[..., Any] = pkgutil.resolve_name(self.of_class)(given)
        return made

    def traits_of(self, member: Callable[..., Any]) -> T_co:
        """The traits of a member that was made from classes; the default ones of any other."""
        traits = getattr(member, "traits", None)
        return traits if isinstance(traits, self.traits) else self.traits()


def _modules_of(package: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{package}.{name}" for name in names)


TASK = Family(
    "task",
    ("split",),
    "task",
    _modules_of(
        "winnow.tasks",
        *("arithmetic", "code", "guess_number", "ifbench", "instructions"),
        *("jsonl", "mathematics", "reasoning_gym", "verifiers"),
    ),
    TaskTraits,
)
REWARD = Family(
    "reward",
    ("prompt", "rollout"),
    "reward",
    (*_modules_of("winnow.rewards", "answers", "format", "gym", "verifiable"), "winnow.verify.code_tests"),
    RewardTraits,
    contract="winnow.rewards.contract:check_reward",
)
ENVIRONMENT = Family(
    "environment",
    ("prompt", "reply", "rng"),
    "environment",
    _modules_of("winnow.environments", "calculator", "guess_number", "verifiers"),
    EnvironmentTraits,
    contract="winnow.environments.contract:check_environment",
    of_class="winnow.environments.tool_class:of_class",
)
OF_BUDGET = ("winnow.algos.budget_members",)
SAMPLER = Family("sampler", ("table", "state", "rng", "count"), "sample", OF_BUDGET, SamplerTraits)
ALLOCATOR = Family("allocator", ("stats", "budget"), "allocate", OF_BUDGET, AllocatorTraits)
ROUND = Family("round", ("seen",), "rounds", OF_BUDGET, RoundTraits)
CUT = Family("cut", ("sampled",), "cut", OF_BUDGET, CutTraits)
SELECTOR = Family("selector", ("group", "rng"), "select", ("winnow.algos.selectors",), SelectorTraits)
ADVANTAGE = Family(
    "advantage", ("groups",), "advantage", ("winnow.algos.advantage", "winnow.algos.gae"), AdvantageTraits
)
WEIGHTING = Family("weighting", ("kept",), "weighting", ("winnow.algos.weighting",), WeightingTraits)
LOSS = Family("loss", ("out", "mb"), "loss", ("winnow.algos.loss",), LossTraits)
CORRECTION = Family("correction", ("out", "mb"), "correction", ("winnow.algos.correction",), CorrectionTraits)
TERM = Family("term", ("out", "mb"), "terms", ("winnow.algos.kl",), TermTraits)
ENGINE = Family(
    "engine",
    ("context",),
    "rollout.engine",
    _modules_of("winnow.engines", "hf", "native.engine", "scripted", "vllm.engine"),
    EngineTraits,
)
TRACKER = Family(
    "tracker",
    ("run",),
    "track",
    _modules_of("winnow.trackers", "mlflow", "tensorboard", "trackio", "wandb"),
    TrackerTraits,
)

FAMILIES: Mapping[str, Family[Traits]] = MappingProxyType(
    {
        family.name: family
        for family in (
            *(TASK, REWARD, ENVIRONMENT, SAMPLER, ALLOCATOR, ROUND, CUT, SELECTOR, ADVANTAGE),
            *(WEIGHTING, LOSS, CORRECTION, TERM, ENGINE, TRACKER),
        )
    }
)
