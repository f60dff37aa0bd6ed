"""The extension points, one `Family` each. Imports no torch.

A family defines the arguments of its members, the key that names them, and the modules with winnow's own members. It
also defines the traits that a member may declare, and the contract that a member must pass. A new extension point is a
`Family` here and a check of its contract; nothing else lists them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
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
Need = Literal["old_logprobs", "ref_logprobs", "entropy", "values", "token_rewards", "pass_rates"]

OPTION_TRAITS = ("own_limit", "may_change", "label", "least")  # each names one of the member's options, or several


def unfit(problem: str, *, remedy: str) -> ConfigError:
    """The error for a function, or its declaration, that does not match its family."""
    return ConfigError(problem, remedy=remedy, code="config.registration")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of members of all families."""

    # Checks its options together, before a run; raises ConfigError with a key that is relative to their table
    check: Callable[[Mapping[str, Any]], None] | None = None


@dataclass(frozen=True, kw_only=True)
class TaskTraits(Traits):
    """The default settings of a task's evaluation."""

    evaluation: Mapping[str, Any] = field(default_factory=dict)  # keys of a configuration: its prompt, limits, reward


@dataclass(frozen=True, kw_only=True)
class RewardTraits(Traits):
    """How a reward reads answers, and how it is checked and prepared."""

    example: Callable[[Any], str] | None = None  # gold -> a completion that is right
    example_meta: Callable[[Any], dict[str, Any]] | None = None  # gold -> the prompt's meta, for golds in meta
    solution: str | None = None  # the field of meta that the example phrases, where the gold is tests and no answer
    example_options: Mapping[str, Any] = field(default_factory=dict)  # options with which the example is right
    best: float = 1.0  # the reward of the example, and the maximum of any text
    asks: Sequence[Sequence[str]] = ()  # alternative forms, each a list of marks that an answer needs to be read
    warm: Callable[[Mapping[str, Any]], None] | None = None  # called before the first worker is forked
    correct_at: float = 1.0  # a bare number of at least this is correct
    reads: Sequence[Read] = ()  # fields of a rollout that it reads besides tokens and text; others are not sent
    own_limit: str | None = None  # the option that limits its seconds; an answer that takes longer is wrong


@dataclass(frozen=True, kw_only=True)
class EnvironmentTraits(Traits):
    """How the result of an environment becomes a verdict, and how it is checked."""

    correct_at: float = 1.0  # a result of at least this is correct; of several parts, the first decides
    example: Callable[[Any], Sequence[str]] | None = None  # gold -> the policy's turns of a rollout that is right
    best: float = 1.0  # the reward of the example, and the maximum of any rollout
    tools: tuple[str, ...] = ()  # that the policy may call (winnow.environments.tools); their calls are counted
    warm: Callable[[Mapping[str, Any]], None] | None = None  # called before the first worker is forked
    schemas: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None = None  # meta -> of the problem's tools
    opening: Callable[[Any, Mapping[str, Any]], str | None] | None = None  # problem, options -> end of the question


@dataclass(frozen=True, kw_only=True)
class SamplerTraits(Traits):
    """Whether a sampler reads the results of training, the probability of its draws, and the labels of the data.

    `probability`: "equal" for all prompts, "known" where each draw has those of its rows (`Drawn.probability`) and no
    prompt has 0, or "unknown".
    """

    source: Literal["none", "history"] = "history"
    probability: Literal["equal", "known", "unknown"] = "unknown"
    label: str | None = None  # the option that names the field of a problem's meta with its difficulty


@dataclass(frozen=True, kw_only=True)
class AllocatorTraits(Traits):
    """The source of an allocator's statistics of the prompts, and the estimator that it was derived for.

    `assumes` is for example {"advantage": ("rloo",)}. A member of winnow that is not listed there is refused; a user's
    own member is not checked.
    """

    source: Source = "history"
    gradient_norms: bool = True  # whether it reads the prompts' gradient norms, which are then measured
    assumes: Mapping[Literal["advantage", "select", "weighting"], Sequence[str]] = field(default_factory=dict)
    least: str | None = None  # the option with the fewest rollouts of each prompt, which the budget has to contain


@dataclass(frozen=True, kw_only=True)
class RoundTraits(Traits):
    """Whether the number of a prompt's rollouts depends on their verdicts, which biases what is estimated from both."""

    reads_verdicts: bool = True


@dataclass(frozen=True, kw_only=True)
class CutTraits(Traits):
    """Whether a rule cuts any rollout, and the fields of rollouts that it reads besides their lengths."""

    cuts: bool = True
    reads: Sequence[Read] = ()


@dataclass(frozen=True, kw_only=True)
class SelectorTraits(Traits):
    """The number of rollouts of a group that a selector keeps: `keep_per_prompt`, all, or a number that depends on the
    group.
    """

    size: Literal["exact", "all", "varies"] = "exact"


@dataclass(frozen=True, kw_only=True)
class AdvantageTraits(Traits):
    """The baseline of a reward. With "group", the advantages of a flat group and of a single rollout are 0."""

    baseline: Baseline = "group"
    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class WeightingTraits(Traits):
    """The sum of the weights of all tokens, and whether every prompt has an equal share of it."""

    total: Literal["one", "constant", "prompts"] | None = None
    share: Literal["equal"] | None = None
    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class LossTraits(Traits):
    """Whether the loss's derivative by a token's log-prob is -A at ratio 1; "positive": only where A > 0, else 0."""

    policy_gradient: bool | Literal["positive"] = False
    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class CorrectionTraits(Traits):
    """The policy that a correction compares with the engine's: the one before the step's updates, or the present one;
    None where it compares none.
    """

    compares: Literal["old", "present"] | None = None


@dataclass(frozen=True, kw_only=True)
class TermTraits(Traits):
    """The inputs of a term besides log-probs."""

    needs: Sequence[Need] = ()


@dataclass(frozen=True, kw_only=True)
class EngineTraits(Traits):
    """Properties of an engine that are needed before it is made. The functions take a `memory.demand.Demand`."""

    requires: str | None = None  # a package that has to be installed
    fits: Callable[[Any], None] | None = None  # checks a Config; raises ConfigError for unsupported settings
    memory: Callable[[Any], Iterable[Any]] | None = None  # its memory parts, for the plan
    job: Callable[[Any], str] | None = None  # its devices and weights, in a sentence of the plan
    may_change: Sequence[str] = ()  # options that a resume may change, because no number depends on them
    # Checks a Config; raises ConfigError where it cannot sample while the policy is trained. None: it never can
    ahead: Callable[[Any], None] | None = None


@dataclass(frozen=True, kw_only=True)
class TrackerTraits(Traits):
    """Requirements of a tracker."""

    requires: str | None = None  # a package that has to be installed


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
        return _function(self.contract or f"winnow.testing:check_{self.name}")

    def member_of(self, given: Callable[..., Any]) -> Callable[..., Any]:
        """The member that a user gives: a function, or what `of_class` makes of a class."""
        if not (self.of_class and isinstance(given, type)):
            return given
        made: Callable[..., Any] = _function(self.of_class)(given)
        return made

    def traits_of(self, member: Callable[..., Any]) -> T_co:
        """The traits of a member that was made from classes; the default ones of any other."""
        traits = getattr(member, "traits", None)
        return traits if isinstance(traits, self.traits) else self.traits()


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


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
    (
        *_modules_of("winnow.rewards", "answers", "format", "gym", "last_integer", "verifiable"),
        "winnow.verify.code_tests",
    ),
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
    of_class="winnow.environments.tool_class:tool_environment",
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
