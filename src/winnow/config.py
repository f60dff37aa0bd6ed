"""Every key of a configuration with its type, default and meaning, as one validated `Config`. Imports no torch.

config_file.py reads one from TOML. The options of a member (`[select] keep_per_prompt = 4`) are parameters of its
function; options.py checks them against that function, also before any model is loaded.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from winnow.bounds import RewardWeight
from winnow.errors import near_miss
from winnow.families import FAMILIES
from winnow.options import hide_secrets
from winnow.registry import name_of

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Use = str | Callable[..., Any]

FORM = "form"  # the key that selects one of a table's sections, where there are several
SHORTHANDS = tuple(family.key for family in FAMILIES.values() if family.is_table)  # name: short for {use = name}
SHORT_FOR = {
    **dict.fromkeys((*SHORTHANDS, "rollout.engine", "plan"), "use"),
    "model": "path",
}  # key of a table: its main key


class RefusedValue(ValueError):
    """Raised by a section's validator: pydantic collects these errors, and config_file.py makes a ConfigError of each.

    `key` is relative to the section or the field that is validated.
    """

    def __init__(self, problem: str, *, remedy: str, key: str = "", code: str = "config.combination") -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy, self.key, self.code = problem, remedy, key, code


class Section(BaseModel):
    """A strict table: a wrong type is an error, and so is an unknown key, unless the section accepts any."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the text under a field is its meaning in docs/reference.md
    )


class Member(Section):
    """A function by name, by "file.py:function", or as an object; every other key is one of its options."""

    model_config = ConfigDict(extra="allow")
    use: Use
    """A name, "file.py:function", or (in Python) the function itself."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        return self.use if isinstance(self.use, str) else getattr(self.use, "__name__", repr(self.use))


class LoraSection(Section):
    rank: Positive = 16
    """Rank of every adapter."""
    alpha: float = Field(32.0, gt=0)
    """The adapters' output is scaled by alpha / rank."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the linear layers that get an adapter, or "all-linear"."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _no_dropout(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "dropout" in data:
            raise RefusedValue(
                "dropout is not supported: the adapters of an update would differ from those that sampled the "
                "rollouts, and the ratio would not start at 1",
                remedy="remove the key: adapters are trained without dropout",
                key="dropout",
                code="config.unknown_key",
            )
        return data


class ModelSection(Section):
    path: str = "bundled"
    """A folder, a hub id, a small policy in the package ("bundled", or "bundled:ENVIRONMENT" for one of winnow), or
    "published": the model that scripts/published-model put into the folder WINNOW_PUBLISHED."""
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """The precision in which the policy computes and is saved; "auto": bfloat16 on CUDA, float32 on the CPU."""
    tf32: bool = False
    """Whether float32 matrix products on a GPU may round their inputs to TF32, with 11 significant bits."""
    lora: LoraSection | None = None
    """Train low-rank adapters; absent: train the weights."""
    quantization: Literal["nf4"] | None = None
    """Keep the frozen linear layers below an adapter in 4 bits, "nf4" (QLoRA); needs bitsandbytes."""
    gradient_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations in backward, to save memory: "selective" all but matrix products, "full" whole layers."""


class PromptSection(Section):
    template: str = "chat"
    """How a problem becomes a prompt: "chat", "r1_zero", "question_only", or a text file with one {question}."""
    system: str | None = None
    """The system message of a chat template, in the place of the one that a problem may have."""
    suffix: str | None = None
    """Text directly after the question, in the user's turn of a chat template: begin it with a space or line break."""
    template_options: dict[str, bool | int | float | str] = {}
    """Variables of the model's chat template, such as enable_thinking = false for Qwen3."""
    max_prompt_tokens: Positive = 512
    """Problems with a longer prompt are omitted, and counted."""

    @pydantic.field_validator("template_options")
    @classmethod
    def _no_quoted_booleans(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            if isinstance(value, str) and value.lower() in ("true", "false"):
                raise RefusedValue(
                    f"the text {value!r} counts as true in a template",
                    remedy="write true or false without quotes",
                    key=name,
                    code="config.value",
                )
        return options


class RolloutSection(Section):
    engine: Member = Member(use="auto")
    """The engine that samples; "auto" is native, or vllm on a second CUDA device."""
    prompts_per_step: Positive = 32
    """Prompts that are sampled in a step."""
    rollouts_per_prompt: Positive = 16
    """Rollouts of a prompt; with an allocator, their average."""
    max_new_tokens: Positive = 64
    """Maximum number of tokens of a completion; with an environment, its texts included."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits, in sampling and in the policy's log-probs."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; stays 1, as a cut would bias every ratio."""
    top_k: NonNegative = 0
    """Sample from this number of most probable tokens; stays 0 (off), for the same reason."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Omit tokens below this share of the most probable token's probability; stays 0 (off), for the same reason."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A rollout stops at the first of these strings in its text."""
    max_rollouts_at_once: Positive = 512
    """Rollouts that are sampled concurrently, which determines the engine's memory."""
    dynamic_sampling_rounds: NonNegative = 0
    """Maximum number of rounds per step that add prompts while too few groups carry a signal."""
    ahead: Literal[0, 1] = 0
    """Steps by which the rollouts are older than the policy: with 1, an engine with devices or cores of its own samples
    the next step's rollouts while the policy is trained on this step's."""
    max_ratio_outside: float = Field(0.02, ge=0, le=1)
    """Raise an alarm when the share of tokens with p_policy / p_engine outside [0.8, 1.25] is larger, by more than five
    standard errors."""

    @pydantic.field_validator("temperature", mode="before")
    @classmethod
    def _sampled(cls, value: Any) -> Any:
        if value == 0 and not isinstance(value, bool):
            raise RefusedValue(
                "0 is greedy decoding: every rollout of a prompt would be the same, and nothing could be compared",
                remedy="use 1.0; evaluations decode greedily in addition with evaluate.greedy = true",
                code="config.value",
            )
        return value


class RewardPart(Member):
    weight: RewardWeight = 1.0
    """Multiplies this part."""


class RewardSection(Section):
    """One reward, or a weighted sum of `parts`. The first part decides whether an answer is correct."""

    model_config = ConfigDict(extra="allow")
    use: Use | None = None
    """The reward, where there is only one."""
    parts: tuple[RewardPart, ...] = ()
    """The rewards of a weighted sum; the first decides whether an answer is correct."""
    shaping: Literal["always", "if_wrong"] = "always"
    """Whether the other parts count for all answers or only for wrong ones."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @pydantic.model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if (self.use is None) == (not self.parts):
            raise RefusedValue(
                f"{'neither `use` nor' if self.use is None else 'both `use` and'} `parts` is set",
                remedy="set `use` for one reward, or `parts` for a weighted sum",
            )
        if self.parts and self.model_extra:
            unknown = next(iter(self.model_extra))
            raise RefusedValue(
                f"unknown key {unknown!r} beside `parts`",
                remedy=near_miss(unknown, ("parts", "shaping")),
                key=unknown,
                code="config.unknown_key",
            )
        if self.use is not None and "shaping" in self.model_fields_set and self.shaping != "always":
            raise RefusedValue(
                "`shaping` requires a reward with several `parts`",
                remedy="remove it, or set `parts` instead of `use`",
                key="shaping",
            )
        return self


class EnvironmentSection(Member):
    max_turns: Positive = 16
    """Maximum number of turns of the policy; an environment that wants more of them has failed."""
    max_turn_tokens: Positive = 32
    """Maximum number of tokens that the policy samples in a turn."""
    answer_after: int = Field(2, ge=0)
    """Tokens that the native engine samples for other rollouts between the end of a turn and the environment's answer,
    for which it then waits. More of them hide a slower environment.
    """
    recorded: bool = False
    """Record each answer in the run's folder, and replay the record after a resume: for an environment that need not
    give the same answer twice.
    """


class SelectSection(Member):
    chunk: Positive | None = None
    """Rollouts of a prompt that are selected from together, in the order of their index; absent: all of them."""


class AdvantageSection(Member):
    chunk: Positive | None = None
    """Rollouts of a prompt that are compared with each other, in the order of their index; absent: all of them."""
    kl_reward: float = Field(0.0, ge=0)
    """Factor of log(p / p_reference), subtracted from every token's reward; for advantages that read token rewards."""


class CorrectionSection(Member):
    old: Literal["policy", "engine"] = "policy"
    """The denominator of the loss's ratio: the policy before the step's updates, or the log-probs that the engine
    sampled with, which need no pass.
    """


class TermSection(Member):
    coefficient: float
    """Multiplies this term, which is added to the loss."""


class ProbeSection(Section):
    every: Positive = 8
    """Number of steps whose rollouts one probe plans."""
    rollouts_per_prompt: Positive = 8
    """Rollouts of a prompt that the probe samples; they are not trained on."""
    gradient_norm: Literal["embedding", "output_head", "none"] = "embedding"
    """The parameters whose gradient norm is measured; "none": every norm counts as 1."""
    outer_reset: Literal["none", "optimizer", "reference", "both"] = "none"
    """The state that is reset at each window: the optimizer, the KL term's reference, or both."""
    decay: float = Field(0.9, gt=0, le=1)
    """Weight of a prompt's earlier visits at its next one; for members that read the results of training."""


class PlanSection(Section):
    """Whether a run chooses the sizes of its steps itself (docs/planner.md)."""

    use: Literal["fixed", "auto"] = "fixed"
    """"fixed": the sizes of a step stay as configured; "auto": the run starts with them, and chooses others from what
    it measures."""
    every: Annotated[int, Field(ge=2)] = 10
    """Steps between two decisions of "auto"; the first one is earlier if its gain is certain."""
    prompts_per_step: tuple[Positive, Positive] | None = None
    """The least and the most prompts of a step; absent: from a quarter to four times those of the configuration."""
    rollouts_per_prompt: tuple[Positive, Positive] | None = None
    """The least and the most rollouts of a prompt; absent: from 2 to four times those of the configuration."""
    keep_per_prompt: tuple[Positive, Positive] | None = None
    """The least and the most rollouts of a prompt that are trained on; absent: from 2 to four times as many."""
    costs: str | None = None
    """A file of costs in place of the seconds of the run, so that two runs make the same decisions."""

    @pydantic.model_validator(mode="after")
    def _ranges(self) -> Self:
        fields = type(self).model_fields
        given = {name for name in fields if name != "use" and getattr(self, name) != fields[name].default}
        if self.use == "fixed" and given:
            raise RefusedValue(
                "the sizes of the steps are fixed, so this key has no effect",
                remedy='set plan.use = "auto", or remove the key',
                key=min(given),
                code="config.no_effect",
            )
        for name in ("prompts_per_step", "rollouts_per_prompt", "keep_per_prompt"):
            ends = getattr(self, name)
            if ends is not None and ends[0] > ends[1]:
                raise RefusedValue(
                    f"the least, {ends[0]}, is above the most, {ends[1]}",
                    remedy="write the smaller number first",
                    key=name,
                    code="config.value",
                )
        return self


class UpdateSection(Section):
    epochs: Positive = 1
    """Passes over the kept rollouts of a step."""
    updates_per_step: Positive = 1
    """Optimizer updates per epoch, each from its share of the step's prompts."""
    tokens_per_micro_batch: Positive = 16384
    """Tokens of one forward and backward pass: prompts, completions and padding."""
    layout: Literal["padded", "packed"] = "padded"
    """"padded": sequences of similar length in rows with padding; "packed": one after another in a row, without."""
    max_trained_tokens: Positive | None = None
    """Number of first sampled tokens of a rollout that are trained; absent: all."""
    max_skipped: NonNegative = 10
    """Updates in a row without a finite gradient after which the run stops; 0: never."""


class OptimizerSection(Section):
    learning_rate: float = Field(1e-4, gt=0)
    """The step size of AdamW after the warm-up. Absent: 1e-4 for the bundled policy. For another model it is 1e-5 for
    an adapter, 1e-6 for all weights, and 1e-5 for a value model.
    """
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the square root of AdamW's second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay: weights shrink by this times the learning rate at each update."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A gradient with a larger norm is scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The shape of the learning rate over the run's updates."""
    warmup_steps: NonNegative = 0
    """Steps over which the learning rate rises to its full value."""
    master_weights: bool = True
    """Update a float32 copy of bfloat16 weights, so that rounding does not lose updates."""
    master_offset: bool = False
    """Start each float32 copy at a random place among the numbers that round to its weight, so that bfloat16 weights
    follow small updates from the first one on.
    """
    stochastic_rounding: bool = False
    """Instead of master weights: round each update of bfloat16 weights up or down at random, unbiased on average."""
    moments: Literal["float32", "8bit"] = "float32"
    """The precision of AdamW's moments; "8bit" needs bitsandbytes."""


class CriticSection(Section):
    """The keys of every form of a value model; `critic.form` selects one of the sections below."""

    description: ClassVar[str]  # what predicts the values, for displays
    policy_head: ClassVar[Literal["trained", "lent"] | None] = None
    """The value head on the policy's backbone: trained in the policy's updates, lent to a separate value model, or None
    where values are predicted by another model.
    """
    form: str
    gamma: float = Field(1.0, gt=0, le=1)
    """The discount per token of its target returns, and of the advantage."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of its target returns; 1: Monte-Carlo returns."""
    clip_range: float = Field(0.2, ge=0)
    """An update gains nothing from moving a value farther than this; 0: no clipping."""


class SharedCritic(CriticSection):
    description = "a head on the policy's backbone"
    policy_head = "trained"
    form: Literal["shared"]
    """A value head on the policy's backbone ("shared"), on its base with an adapter, or on a separate model."""
    coefficient: float = Field(0.5, gt=0)
    """Factor of the value loss, which is added to the policy's loss."""


class TrainedCritic(CriticSection):
    """The keys of a value model with parameters and an optimizer of its own, which is updated before the policy."""

    lora: LoraSection | None = None
    """The adapter of form "adapter"; with form "model", train an adapter instead of the weights."""
    start: str | None = None
    """A checkpoint with the value model to start from; absent: the weights of its model, and a head of zeros."""
    train_on: Literal["kept", "all"] = "kept"
    """The rollouts on which it is trained: the kept ones, or all verified ones."""
    epochs: Positive = 1
    """Passes over its rollouts of a step."""
    updates_per_step: Positive = 1
    """Its optimizer updates per epoch."""
    pretraining_steps: NonNegative = 0
    """First steps, in which only it is trained, on Monte-Carlo returns."""
    optimizer: OptimizerSection = OptimizerSection()
    """Its optimizer."""


class AdapterCritic(TrainedCritic):
    description = "an adapter on the policy's base"
    policy_head = "lent"
    form: Literal["adapter"]


class ModelCritic(TrainedCritic):
    description = "a separate model"
    form: Literal["model"] = "model"
    path: str | None = None
    """The critic's model: a folder or a hub id with the policy's vocabulary; absent: model.path."""


class EvaluateSection(Section):
    every: NonNegative = 0
    """Steps between evaluations; 0: only before the first and after the last."""
    every_minutes: float = Field(0.0, ge=0)
    """Minutes of training between evaluations, in addition to those by `every`; 0: off."""
    problems: Positive = 256
    """Maximum number of held-out problems."""
    rollouts_per_prompt: Positive = 8
    """Rollouts that are sampled for each problem."""
    split: Literal["train", "validation", "test"] = "validation"
    """The split with the problems."""
    tasks: tuple[Member, ...] = ()
    """Further tasks, evaluated on their test problems with the prompt and the reward of training."""
    greedy: bool = True
    """Also sample each problem once at temperature 0."""
    temperature: float | None = Field(None, gt=0)
    """The temperature of the sampled rollouts; absent: the training temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; 1: off."""
    top_k: NonNegative = 0
    """Sample from this number of most probable tokens; 0: off."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Omit tokens below this share of the most probable token's probability; 0: off."""

    @pydantic.field_validator("temperature", mode="before")
    @classmethod
    def _sampled(cls, value: Any) -> Any:
        if value == 0 and not isinstance(value, bool):
            raise RefusedValue(
                "0 is greedy decoding",
                remedy="remove the key, and set evaluate.greedy = true for greedy answers",
                code="config.value",
            )
        return value


class CheckpointSection(Section):
    every: NonNegative = 50
    """Steps between checkpoints; 0: only after the last step, and where the run is stopped."""
    every_minutes: float = Field(0.0, ge=0)
    """Minutes of training between checkpoints, in addition to those by `every`; 0: off."""
    keep_last: Positive = 2
    """Number of newest checkpoints that are kept."""
    wait_minutes: float = Field(60.0, ge=0)
    """How long a run waits for room on a full disk with a save that it would not continue without; 0: not at all."""
    background: bool = True
    """Write during the next step, up to its first update; false: training waits until a checkpoint is written."""
    on_signal: Literal["step", "now"] = "step"
    """After a signal that stops the run: finish the current step, or drop it unless its update has begun."""


class VerifySection(Section):
    workers: NonNegative = 1
    """Processes per machine, shared by its ranks, that run rewards; 0: rewards run in the trainer, without a limit."""
    timeout_seconds: float = Field(5.0, gt=0)
    """Time limit of one verdict; with an environment, of one turn."""
    memory_mb: Positive = 2048
    """Memory limit of one worker."""
    max_failure_share: float = Field(0.05, gt=0, le=1)
    """The run stops when a larger share of the last verdicts are failures."""


class RanksSection(Section):
    learner: Literal["replicated", "sharded"] = "replicated"
    """With several ranks: each has the whole policy, or a share of every matrix, gathered layer by layer (FSDP2)."""
    timeout_seconds: float = Field(1800.0, gt=0)
    """The run stops when a rank waits longer than this for another one."""


class LogSection(Section):
    rollouts: Literal["all", "kept", "none"] = "all"
    """The rollouts that are logged with text, tokens and log-probs; "kept": of the others only numbers are logged."""
    every: Positive = 1
    """Steps between logged rollouts; metrics are logged at every step."""


class AlarmsSection(Section):
    """Limits of the alarms (docs/watching.md)."""

    off: tuple[str, ...] = ()
    """Names of the alarms that are switched off."""
    steps: Positive = 5
    """Steps over which most alarms are judged."""
    clear_steps: Positive = 20
    """Steps without an alarm after which it is reported again."""
    standard_errors: float = Field(4.0, gt=0)
    """Size of a change that is more than noise, for a drop, a swing, a change of length and a growing gap."""
    flat_share: float = Field(0.95, gt=0, le=1)
    """all_flat: share of the groups whose rewards are all equal."""
    untrained_steps: Positive = 3
    """nothing_trained: steps in a row without an update."""
    unparsable_share: float = Field(0.9, gt=0, le=1)
    """unparsable: share of the rollouts without a readable answer."""
    failed_share: float = Field(0.01, gt=0, le=1)
    """verifier_failures: share of the verdicts that fail."""
    failed_verdicts: Positive = 5
    """verifier_failures: minimum number of verdicts that fail."""
    truncated_share: float = Field(0.5, gt=0, le=1)
    """all_truncated: share of the rollouts that hit max_new_tokens."""
    length_factor: float = Field(2.0, gt=1)
    """length_explosion and length_collapse: factor by which the mean length changes within 20 steps."""
    entropy_floor: float = Field(0.02, ge=0)
    """entropy_collapse: nats per token, while fewer than 80% of the answers are right."""
    entropy_rise: float = Field(1.0, gt=0)
    """entropy_explosion: nats per token above those of the first steps."""
    kl: float = Field(0.5, gt=0)
    """kl_drift: nats per token from the reference."""
    ratio: float = Field(0.1, gt=0)
    """ratio_drift: distance of the mean of p_now / p_old from 1."""
    clip_fraction: float = Field(0.3, gt=0, le=1)
    """clip_fraction: share of the trained tokens at which the clip acts."""
    engine_lag: float = Field(0.02, gt=0)
    """engine_lags: nats per rollout by which policy/engine_lag has grown since the first step."""
    stale_sample_size: float = Field(0.5, gt=0, lt=1)
    """stale_rollouts: policy/staleness_sample_size, 1 where the policy has not moved since its rollouts."""
    move_followed: float = Field(0.5, ge=0, le=1)
    """weights_lag: policy/move_followed, 1 where bfloat16 weights have made the whole move of their masters."""
    gradient_factor: float = Field(10.0, gt=1)
    """gradient_spike: multiple of the median norm of the last 20 steps."""
    no_learning_steps: Annotated[int, Field(ge=6)] = 100
    """no_learning: steps after which a gain of the last third over the first is required; from half of them on, a
    smaller gain."""
    no_learning_gain: float = Field(0.1, ge=0)
    """no_learning: the gain that has to be excluded, in standard deviations of the rewards."""
    drop: float = Field(0.25, gt=0)
    """sudden_drop and oscillation: the smallest change, in standard deviations of the rewards."""
    swings: Positive = 4
    """oscillation: changes of direction within 40 steps, or within 12 evaluations."""
    gap: float = Field(0.1, gt=0)
    """overfitting, held_out_above_training: distance of training accuracy above held-out accuracy, or below it."""
    cut_turns_share: float = Field(0.5, gt=0, le=1)
    """turns_cut_off: share of the policy's turns that hit environment.max_turn_tokens."""
    one_turn_share: float = Field(0.95, gt=0, le=1)
    """ends_in_first_turn: share of the rollouts that end in their first turn."""
    values_steps: Positive = 20
    """values_explain_nothing: steps in a row in which values explain less than a constant."""


class TrackSection(Member):
    rollouts: NonNegative = 16
    """Maximum number of rollouts per step that are sent to the tracker, as a table or as traces; 0: none."""
    wait_seconds: float = Field(30.0, ge=0)
    """Time limit for sending the rest to the tracker at the end of a run; after a signal at most 5 seconds."""


class Config(Section):
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    """The seed of every random number of the run."""
    steps: Positive = 100
    """Training steps of the run, and the length of the learning rate's schedule."""
    max_hours: float = Field(0.0, ge=0)
    """Hours of training, without evaluations, after which the run stops before its last step; 0: off."""
    output: str = "runs/winnow"
    """The run folder."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device on which the policy is trained; "auto": CUDA where it exists."""
    threads: NonNegative = 0
    """CPU threads of a rank for torch; 0: all cores, within the limit of a control group, shared by the ranks of a
    machine.
    """
    deterministic: bool = False
    """On a GPU, compute the same bits at every launch, which takes more time; a CPU always does so."""
    model: ModelSection = ModelSection()
    task: Member = Member(use="arithmetic")
    """Where problems come from."""
    prompt: PromptSection = PromptSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection | None = RewardSection(use="r1_zero")
    """The reward of an answer; absent with an environment, which returns the reward."""
    environment: EnvironmentSection | None = None
    """What answers the policy, turn by turn, and returns the reward; absent: a reward judges a single turn."""
    sample: Member = Member(use="uniform")
    """The sampler: it draws the prompts of each step."""
    allocate: Member = Member(use="uniform")
    """The allocator: it sets the number of rollouts of each prompt."""
    rounds: Member = Member(use="single")
    """The rule that decides after each round of sampling which prompts get more of their planned rollouts."""
    cut: Member = Member(use="none")
    """The rule that cuts rollouts of training while they are sampled."""
    select: tuple[SelectSection, ...] = (SelectSection.model_validate({"use": "max_variance", "keep_per_prompt": 4}),)
    """The selectors of the rollouts that are trained on; a list is applied in its order."""
    advantage: AdvantageSection = AdvantageSection(use="grpo")
    """The advantage of each rollout."""
    weighting: Member = Member(use="token")
    """The weight of each sequence in the loss."""
    loss: Member = Member(use="clip")
    """The policy loss."""
    correction: CorrectionSection = CorrectionSection(use="none")
    """The correction for an engine that samples from another policy than the trained one."""
    terms: tuple[TermSection, ...] = ()
    """Terms that are added to the loss: KL to a reference, entropy."""
    critic: Annotated[SharedCritic | AdapterCritic | ModelCritic, Field(discriminator="form")] | None = None
    """A value model that is trained in addition to the policy; absent: none."""
    probe: ProbeSection = ProbeSection()
    plan: PlanSection = PlanSection()
    update: UpdateSection = UpdateSection()
    optimizer: OptimizerSection = OptimizerSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    verify: VerifySection = VerifySection()
    ranks: RanksSection = RanksSection()
    log: LogSection = LogSection()
    alarms: AlarmsSection = AlarmsSection()
    track: tuple[TrackSection, ...] = ()
    """Trackers that get the run in addition to its folder; a name, a table, or a list of them."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _shorthands(cls, data: Any) -> Any:
        return _expand(data) if isinstance(data, Mapping) else data

    @pydantic.model_validator(mode="after")
    def _combinations(self) -> Self:
        rollout = self.rollout
        if rollout.top_p < 1 or rollout.top_k > 0 or rollout.min_p > 0:
            cut = "top_p" if rollout.top_p < 1 else "top_k" if rollout.top_k > 0 else "min_p"
            raise RefusedValue(
                "top_p, top_k and min_p must be off in training: the policy's log-probs are over the whole "
                "vocabulary, so every ratio would be biased by the mass that was cut",
                remedy=f"remove it; evaluations have evaluate.{cut}",
                key=f"rollout.{cut}",
            )
        for path, value in leaves(self.model_dump()):  # of members' options, too: a manifest is strict JSON
            plain = value is None or isinstance(value, (str, int, list, tuple)) or callable(value)
            if not (plain or (isinstance(value, float) and math.isfinite(value))):
                if isinstance(value, float):
                    remedy = "set it to a finite number"
                elif isinstance(value, (date, time)):
                    remedy = "write it in quotes, as text"
                else:
                    remedy = (
                        "pass a text, a number of Python, a list or a table, and make other objects in the function"
                    )
                raise RefusedValue(f"{value} has no form in JSON", remedy=remedy, key=key_of(path), code="config.value")
        self._check_environment()
        if not self.select:
            raise RefusedValue(
                "the list of selectors is empty",
                remedy="name at least one; 'all' keeps every rollout",
                key="select",
                code="config.missing_key",
            )
        return self

    def _check_environment(self) -> None:
        environment, most = self.environment, self.rollout.max_new_tokens
        if environment is None:
            if self.reward is None:
                raise RefusedValue(
                    "there is neither a reward nor an environment", remedy="set one of them", key="reward"
                )
            return
        if self.reward is not None:
            raise RefusedValue(
                "a reward and an environment are set, and both would judge a rollout",
                remedy="remove one of them; on the command line --unset reward removes the file's table",
                key="environment",
            )
        if self.prompt.template != "chat":
            raise RefusedValue(
                f"prompt.template = {self.prompt.template!r} has no form for a second turn",
                remedy="set it to 'chat', the tokenizer's template",
                key="prompt.template",
            )
        if environment.max_turn_tokens > most:
            raise RefusedValue(
                f"{environment.max_turn_tokens} is above rollout.max_new_tokens = {most}, the limit of all turns",
                remedy="lower it, or raise rollout.max_new_tokens",
                key="environment.max_turn_tokens",
            )


def optimizers(config: Config) -> dict[str, OptimizerSection]:
    """The optimizer of each model that a run trains, by its key."""
    separate = {"critic.optimizer": config.critic.optimizer} if isinstance(config.critic, TrainedCritic) else {}
    return {"optimizer": config.optimizer, **separate}


def policy_steps(config: Config) -> int:
    """Steps that update the policy: those after `critic.pretraining_steps`."""
    pretraining = config.critic.pretraining_steps if isinstance(config.critic, TrainedCritic) else 0
    return max(0, config.steps - pretraining)


def trained_tokens(config: Config) -> int:
    """Maximum number of tokens from a rollout's first to its last trained one."""
    most = config.rollout.max_new_tokens
    if config.environment is not None:  # its tokens are between those that are counted
        return most
    return min(most, config.update.max_trained_tokens or most)


def dump(config: Config, *, secrets: bool = False) -> dict[str, Any]:
    """The resolved configuration as JSON-ready data; a function object is replaced by its name.

    Options that are named like a secret are hidden (options.py), unless `secrets` is true. That is for the
    configuration with which a run is launched, never for a record of the run.
    """
    plain = _plain(config.model_dump(mode="python"))
    return typing.cast(dict[str, Any], plain if secrets else hide_secrets(plain))


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """(path, value) of every value in nested data that is no table and no list with entries.

    A place in a list is an integer in the path.
    """
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from leaves(value, (*path, str(name)))
    elif isinstance(data, (list, tuple)) and data:
        for place, value in enumerate(data):
            yield from leaves(value, (*path, place))
    else:
        yield path, data


def key_of(path: Sequence[str | int]) -> str:
    """The dotted key of a leaf; the list's key for a leaf in a list."""
    first_place = next((depth for depth, name in enumerate(path) if isinstance(name, int)), None)
    return ".".join(map(str, path[:first_place]))


def _expand(data: Mapping[str, Any]) -> dict[str, Any]:
    """Expand shorthands (`as_table`) and fill in learning rates.

    A single selector, tracker or task becomes a tuple of one, and an array a tuple. A table with options alone gets the
    default member, where there is one, and a value model the default form.
    """
    out = {key: as_table(key, value) for key, value in data.items()}
    if isinstance(rollout := out.get("rollout"), Mapping) and "engine" in rollout:
        out["rollout"] = {**rollout, "engine": as_table("rollout.engine", rollout["engine"])}
    if out.get("environment") is not None:
        out.setdefault("reward", None)
    for key in SHORTHANDS:
        section, default = out.get(key), Config.model_fields[key].default
        if isinstance(section, Mapping) and not {"use", "parts"} & section.keys() and default:
            out[key] = {"use": (default[0] if isinstance(default, tuple) else default).use, **section}
    for key in ("select", "track"):
        if key in out:
            out[key] = _members(out[key])
    if isinstance(out.get("critic"), Mapping):
        out["critic"] = {"form": ModelCritic.model_fields["form"].default, **out["critic"]}
    _fill_learning_rates(out)
    evaluate = out.get("evaluate")
    if isinstance(evaluate, Mapping) and "tasks" in evaluate:
        out["evaluate"] = {**evaluate, "tasks": _members(evaluate["tasks"])}
    return typing.cast(dict[str, Any], _tuples(out))


def is_bundled(path: Any) -> bool:
    """Whether a model's path names a policy in the package: "bundled", or "bundled:NAME"."""
    return isinstance(path, str) and path.partition(":")[0] == "bundled"


def _fill_learning_rates(data: dict[str, Any]) -> None:
    """Give each optimizer without a learning rate the default for what it trains.

    A bundled policy of half a million parameters is trained with 1e-4 in configs/. For all weights of another model,
    1e-6 is the default of TRL and verl, and the rate of GVM. An adapter needs about ten times as much; PODS uses 5e-6.
    For a value model that is not the bundled one, 1e-5 is the default of verl's critic.
    """
    model, critic = _plain_table(data.get("model", {})), data.get("critic")
    if model is None:
        return
    on_policy = 1e-4 if is_bundled(model.get("path", "bundled")) else 1e-6 if model.get("lora") is None else 1e-5
    data["optimizer"] = _with_rate(data.get("optimizer", {}), on_policy)
    sections = sections_in(Config.model_fields["critic"].annotation)
    separate = [form_of(section) for section in sections if issubclass(section, TrainedCritic)]
    if isinstance(critic, Mapping) and critic["form"] in separate:  # a list: the form may be a table by mistake
        path = critic.get("path") or model.get("path", "bundled")
        rate = 1e-4 if is_bundled(path) else 1e-5
        data["critic"] = {**critic, "optimizer": _with_rate(critic.get("optimizer", {}), rate)}


def _plain_table(section: Any) -> Mapping[str, Any] | None:
    """A table, or a section that is validated already, as a table; None for anything else."""
    if isinstance(section, BaseModel):
        return section.model_dump()
    return section if isinstance(section, Mapping) else None


def _with_rate(optimizer: Any, rate: float) -> Any:
    return {"learning_rate": rate, **optimizer} if isinstance(optimizer, Mapping) else optimizer


def _members(named: Any) -> tuple[Any, ...]:
    """One member or several, each by name, as a function, or as a table."""
    several = named if isinstance(named, (list, tuple)) else [named]
    return tuple({"use": m} if isinstance(m, str) or callable(m) else m for m in several)


def as_table(key: str, value: Any) -> Any:
    """`{use = "clip"}` for `loss = "clip"`, and the same for a function in place of a name; `{path = "..."}` for a
    model. Any other value is returned unchanged.
    """
    if key not in SHORT_FOR or not (isinstance(value, (str, Path)) or callable(value)):
        return value
    return {SHORT_FOR[key]: str(value) if isinstance(value, Path) else value}


def _tuples(value: Any) -> Any:
    """TOML arrays as tuples: strict pydantic accepts no list for a tuple, and a frozen config should contain none."""
    if isinstance(value, Mapping):
        return {k: _tuples(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_tuples(v) for v in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if callable(value):
        return name_of(value)
    return value


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in a field's annotation, including those inside unions and lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation):
        for argument in typing.get_args(annotation):
            yield from sections_in(argument)


def form_of(section: type[BaseModel]) -> str:
    """The value of `form` that selects this section."""
    (form,) = typing.get_args(section.model_fields[FORM].annotation)
    return str(form)
