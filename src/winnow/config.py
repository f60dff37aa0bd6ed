"""Every key of a configuration with its type, default and meaning, as one validated `Config`. Imports no torch.

config_file.py reads one from TOML. The options of a member (`[select] keep_per_prompt = 4`) belong to the function that
it names; they are checked against the function itself (options.py), still before any model is loaded.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from winnow.errors import near_miss
from winnow.families import FAMILIES
from winnow.hidden_options import with_secrets_hidden
from winnow.registry import name_of

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Use = str | Callable[..., Any]


class RefusedValue(ValueError):
    """What a section's validator refuses: pydantic collects it, and config_file.py makes a ConfigError of it.

    `key` is relative to the section or the field that is validated.
    """

    def __init__(self, problem: str, *, remedy: str, key: str = "", code: str = "config.combination") -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy, self.key, self.code = problem, remedy, key, code


class Section(BaseModel):
    """Strict: an unknown key (unless it says otherwise) or a wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the text under a field is its meaning in docs/reference.md
    )


class Member(Section):
    """A function by name, by "file.py:function", or itself; every other key is one of its options."""

    model_config = ConfigDict(extra="allow")
    use: Use
    """A name, "file.py:function", or (from Python) the function itself."""

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
                "dropout is not supported: an update would compute log-probs with other adapters than the rollouts "
                "were sampled with, and the ratio would not start at 1",
                remedy="remove the key: adapters are trained without dropout",
                key="dropout",
                code="config.unknown_key",
            )
        return data


class ModelSection(Section):
    path: str = "bundled"
    """A folder, a hub id, or "bundled": the small policy that comes with the package."""
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """The precision that the policy computes in and is saved in; "auto": bfloat16 on CUDA, float32 on the CPU."""
    tf32: bool = False
    """Whether float32 matrix products on a GPU may round their inputs to TF32, of 11 significant bits."""
    lora: LoraSection | None = None
    """Train low-rank adapters instead of the weights; absent: train the weights."""
    quantization: Literal["nf4"] | None = None
    """Keep the frozen linear layers below an adapter in 4 bits, "nf4" (QLoRA); needs bitsandbytes."""
    gradient_checkpointing: Literal["none", "selective", "full"] = "none"
    """What backward computes again, for less memory: "selective" all but matrix products, "full" whole layers."""
    pad_token: str | None = None
    """Fills the space beside shorter rows; absent: the tokenizer's own, else its eos token."""


class PromptSection(Section):
    template: str = "chat"
    """How a problem becomes a prompt: "chat", "r1_zero", "question_only", or a text file with one {question}."""
    system: str | None = None
    """The system message of a chat template."""
    suffix: str | None = None
    """Text right after the question, in the user's turn of a chat template: begin it with a space or a line break."""
    template_options: dict[str, bool | int | float | str] = {}
    """Variables of the model's own chat template, such as enable_thinking = false of Qwen3."""
    max_prompt_tokens: Positive = 512
    """Problems with a longer prompt are left out, and counted."""

    @pydantic.field_validator("template_options")
    @classmethod
    def _are_what_they_seem(cls, options: dict[str, Any]) -> dict[str, Any]:
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
    """What samples; "auto" is native, or vllm on a second CUDA device."""
    prompts_per_step: Positive = 32
    """Prompts sampled in a step."""
    rollouts_per_prompt: Positive = 16
    """Rollouts of a prompt; where an allocator divides them, on average."""
    max_new_tokens: Positive = 64
    """A completion ends here at the latest."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits, in sampling and in the policy's log-probs."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; stays 1, as a cut would bias every ratio."""
    top_k: NonNegative = 0
    """Sample from so many most probable tokens; stays 0 (off), for the same reason."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Leave out tokens below this share of the most probable one's probability; stays 0 (off), too."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A rollout ends at the first of these in its text."""
    max_rollouts_at_once: Positive = 512
    """Sampled side by side: the memory the engine may take."""
    dynamic_sampling_rounds: NonNegative = 0
    """More prompts, at most so often per step, while too few groups carry a signal."""
    max_ratio_outside: float = Field(0.01, ge=0, le=1)
    """An alarm when more tokens than this share have p_policy / p_engine outside [0.8, 1.25]."""

    @pydantic.field_validator("temperature", mode="before")
    @classmethod
    def _sampled(cls, value: Any) -> Any:
        if value == 0 and not isinstance(value, bool):
            raise RefusedValue(
                "0 is greedy decoding: every rollout of a prompt would be the same, and nothing could be compared",
                remedy="use 1.0 (evaluations decode greedily, too, with evaluate.greedy = true)",
                code="config.value",
            )
        return value


class RewardPart(Member):
    weight: float = 1.0
    """Multiplies this part in the sum."""


class RewardSection(Section):
    """One reward, or a weighted sum of `parts` of which the first decides what is correct."""

    model_config = ConfigDict(extra="allow")
    use: Use | None = None
    """The reward, where there is one."""
    parts: tuple[RewardPart, ...] = ()
    """The rewards of a weighted sum; the first decides what is correct."""
    shaping: Literal["always", "if_wrong"] = "always"
    """Whether the other parts count for right answers too, or only for wrong ones."""

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
                "`shaping` is for a reward of several `parts`",
                remedy="remove it, or set `parts` instead of `use`",
                key="shaping",
            )
        return self


class SelectSection(Member):
    chunk: Positive | None = None
    """Select from so many rollouts of a prompt at a time, in the order of their index; absent: from all of them."""


class AdvantageSection(Member):
    chunk: Positive | None = None
    """Compare so many rollouts of a prompt with each other, in the order of their index; absent: all of them."""
    kl_reward: float = Field(0.0, ge=0)
    """Times log(p / p_reference), taken off the reward of every token; for an advantage that reads token rewards."""


class TermSection(Member):
    coefficient: float
    """Multiplies this term, which is added to the loss."""


class ProbeSection(Section):
    every: Positive = 8
    """How many steps one probe plans the rollouts of."""
    rollouts_per_prompt: Positive = 8
    """Sampled by the probe, and not trained on."""
    gradient_norm: Literal["embedding", "output_head", "none"] = "embedding"
    """The parameters whose gradient norm is measured; "none": every norm counts as 1."""
    outer_reset: Literal["none", "optimizer", "reference", "both"] = "none"
    """What starts anew at each window: the optimizer, the KL term's reference, or both."""
    decay: float = Field(0.9, gt=0, le=1)
    """What a visit still counts for at the next one; without a probe."""


class UpdateSection(Section):
    epochs: Positive = 1
    """Passes over the kept rollouts of a step."""
    updates_per_step: Positive = 1
    """Optimizer updates per epoch, each from its share of the step's prompts."""
    tokens_per_micro_batch: Positive = 16384
    """Prompt, completion and padding of one forward and backward pass."""
    layout: Literal["padded", "packed"] = "padded"
    """Sequences of like length side by side, padded; or one behind the other in a row, without padding."""
    max_trained_tokens: Positive | None = None
    """Only so many tokens of a rollout are trained, its first; absent: all."""
    max_importance: float = Field(0.0, ge=0)
    """Truncates p_policy / p_engine per token, at 1 or more; 0: no correction."""
    max_skipped: NonNegative = 10
    """Updates in a row without a finite gradient that end the run; 0: none do."""

    @pydantic.field_validator("max_importance")
    @classmethod
    def _no_shrinking(cls, value: float) -> float:
        if 0 < value < 1:
            raise RefusedValue(
                f"{value} would also shrink the gradient of every token on which policy and engine agree",
                remedy="use 1 or more, for example 2, or 0 for no correction",
                code="config.value",
            )
        return value


class OptimizerSection(Section):
    learning_rate: float = Field(1e-4, gt=0)
    """The step size of AdamW after the warm-up. Absent: 1e-4 for the bundled policy; for another model 1e-5 for an
    adapter, 1e-6 for all weights, and 1e-5 for a value model.
    """
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of AdamW's second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Times the learning rate, the share that weights shrink by at each update (decoupled)."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A larger gradient is scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes over the run's updates."""
    warmup_steps: NonNegative = 0
    """Steps over which the learning rate rises to its full value."""
    master_weights: bool = True
    """Keep a float32 copy of bfloat16 weights, and change that: no update is rounded away."""
    stochastic_rounding: bool = False
    """Instead of master weights: round each update of bfloat16 weights up or down at random, right on average."""
    moments: Literal["float32", "8bit"] = "float32"
    """What AdamW's moments are kept in; "8bit" needs bitsandbytes."""


class CriticSection(Section):
    form: Literal["shared", "adapter", "model"] = "model"
    """A value head on the policy's backbone, or with its own adapter on the policy's base, or on a model of its own."""
    path: str | None = None
    """A folder or a hub id, with the policy's vocabulary, for form "model"; absent: that of model.path."""
    lora: LoraSection | None = None
    """The adapter of form "adapter"; with form "model", train an adapter instead of the weights."""
    start: str | None = None
    """A checkpoint whose value model this one starts as; absent: the weights of its model, and a head of zeros."""
    train_on: Literal["kept", "all"] = "kept"
    """The rollouts that it reads and learns from: those that were kept, or all that were verified."""
    gamma: float = Field(1.0, gt=0, le=1)
    """The discount per token of the returns that it is taught; that of the advantage, too."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of the returns that it is taught; 1: Monte-Carlo returns."""
    clip_range: float = Field(0.2, ge=0)
    """An update may not gain from moving a value farther than this; 0: it may."""
    coefficient: float = Field(0.5, gt=0)
    """Multiplies the value loss, which is added to the policy's, under form "shared"."""
    epochs: Positive = 1
    """Passes over its rollouts of a step; not under form "shared"."""
    updates_per_step: Positive = 1
    """Its optimizer updates per epoch; not under form "shared"."""
    pretraining_steps: NonNegative = 0
    """First steps in which it alone learns, from Monte-Carlo returns; not under form "shared"."""
    optimizer: OptimizerSection = OptimizerSection()
    """Of its own form."""


class EvaluateSection(Section):
    every: NonNegative = 0
    """Steps between evaluations; 0: only before the first and after the last."""
    every_minutes: float = Field(0.0, ge=0)
    """Minutes of training between evaluations, which `every` may add to; 0: off."""
    problems: Positive = 256
    """How many held-out problems, at most."""
    rollouts_per_prompt: Positive = 8
    """How many rollouts are sampled of each problem."""
    split: Literal["train", "validation", "test"] = "validation"
    """Where the problems come from."""
    tasks: tuple[Member, ...] = ()
    """Further tasks, of which the test problems are asked, with the prompt and the reward of training."""
    greedy: bool = True
    """Also answer each problem once at temperature 0."""
    temperature: float | None = Field(None, gt=0)
    """The temperature of the sampled rollouts; absent: the training temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; 1: off."""
    top_k: NonNegative = 0
    """Sample from so many most probable tokens; 0: off."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Leave out tokens below this share of the most probable one's probability; 0: off."""

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
    """Steps between checkpoints; 0: only after the last, and where something ends the run."""
    every_minutes: float = Field(0.0, ge=0)
    """Minutes of training between checkpoints, on top of those by `every`; 0: off."""
    keep_last: Positive = 2
    """So many newest checkpoints are kept."""
    background: bool = True
    """Write beside the next step, up to its first update; false: training stands still meanwhile."""
    on_signal: Literal["step", "now"] = "step"
    """What a signal that ends the run does: finish the step under way, or leave it unless it is being learned from."""


class VerifySection(Section):
    workers: NonNegative = 1
    """Processes of a machine, whatever its ranks, that run rewards; 0: the trainer, where none can be stopped."""
    timeout_seconds: float = Field(5.0, gt=0)
    """How long one verdict may take."""
    memory_mb: Positive = 2048
    """How much memory one worker may take."""
    max_failure_share: float = Field(0.05, gt=0, le=1)
    """The run ends when more of the last verdicts than this share are failures."""


class RanksSection(Section):
    learner: Literal["replicated", "sharded"] = "replicated"
    """Among several ranks: each holds the whole policy, or a share of every matrix, gathered layer by layer (FSDP2)."""
    timeout_seconds: float = Field(1800.0, gt=0)
    """A rank that waits for another one longer than this ends the run."""


class LogSection(Section):
    rollouts: Literal["all", "kept", "none"] = "all"
    """Which are written down with text, tokens and log-probs; "kept": of the others only their numbers."""
    every: Positive = 1
    """Steps between those whose rollouts are written down; their metrics always are."""


class AlarmsSection(Section):
    """Limits of the alarms (docs/alarms.md)."""

    off: tuple[str, ...] = ()
    """Alarms that are switched off, by name."""
    steps: Positive = 5
    """Steps over which most alarms are judged."""
    clear_steps: Positive = 20
    """An alarm that held is told again only after so many steps without it."""
    standard_errors: float = Field(4.0, gt=0)
    """What is more than noise: for a drop, a swing, a change of length, a growing gap."""
    flat_share: float = Field(0.95, gt=0, le=1)
    """all_flat: share of the groups whose rewards are all alike."""
    untrained_steps: Positive = 3
    """nothing_trained: steps in a row without an update."""
    unparsable_share: float = Field(0.9, gt=0, le=1)
    """unparsable: share of the rollouts without a readable answer."""
    failed_share: float = Field(0.01, gt=0, le=1)
    """verifier_failures: share of the verdicts that fail."""
    failed_verdicts: Positive = 5
    """verifier_failures: so many of them, at least."""
    truncated_share: float = Field(0.5, gt=0, le=1)
    """all_truncated: share of the rollouts that hit max_new_tokens."""
    length_factor: float = Field(2.0, gt=1)
    """length_explosion and length_collapse: by which the mean length changes within 20 steps."""
    entropy_floor: float = Field(0.02, ge=0)
    """entropy_collapse: nats a token, while fewer than 80% of the answers are right."""
    entropy_rise: float = Field(1.0, gt=0)
    """entropy_explosion: nats a token above those of the first steps."""
    kl: float = Field(0.5, gt=0)
    """kl_drift: nats a token from the reference."""
    ratio: float = Field(0.1, gt=0)
    """ratio_drift: distance of the mean of p_now / p_old from 1."""
    clip_fraction: float = Field(0.3, gt=0, le=1)
    """clip_fraction: share of the trained tokens at which the clip acts."""
    gradient_factor: float = Field(10.0, gt=1)
    """gradient_spike: times the median norm of the last 20 steps."""
    no_learning_steps: Annotated[int, Field(ge=6)] = 100
    """no_learning: steps after which a gain is looked for, the last third against the first; a smaller one from half of
    them on."""
    no_learning_gain: float = Field(0.1, ge=0)
    """no_learning: the gain that has to be excluded, in standard deviations of the rewards."""
    drop: float = Field(0.25, gt=0)
    """sudden_drop and oscillation: the least change, in standard deviations of the rewards."""
    swings: Positive = 4
    """oscillation: changes of direction within 40 steps, or within 12 evaluations."""
    gap: float = Field(0.1, gt=0)
    """overfitting, held_out_above_training: by which training accuracy is above held-out accuracy, or below it."""
    values_steps: Positive = 20
    """values_explain_nothing: steps in a row in which values explain less than a constant."""


class TrackSection(Member):
    rollouts: NonNegative = 16
    """At most so many rollouts of a step go to the tracker, as a table or as traces; 0: none."""
    wait_seconds: float = Field(30.0, ge=0)
    """At the end of a run the tracker has so long to take what is left; after a signal, 5 seconds at most."""


class Config(Section):
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    """The seed of every random number of the run."""
    steps: Positive = 100
    """Training steps of the run, and the length of the learning rate's schedule."""
    max_hours: float = Field(0.0, ge=0)
    """The run ends before its last step after so many hours of training, evaluations left out; 0: off."""
    output: str = "runs/winnow"
    """The run folder."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the policy is trained; "auto": CUDA where there is one."""
    threads: NonNegative = 0
    """CPU threads of a rank for torch; 0: every core, of which a control group may leave fewer, shared by the ranks of
    a machine.
    """
    deterministic: bool = False
    """On a GPU, compute the same bits at every launch, which takes more time; a CPU always does."""
    model: ModelSection = ModelSection()
    task: Member = Member(use="arithmetic")
    """Where problems come from."""
    prompt: PromptSection = PromptSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection = RewardSection(use="r1_zero")
    """What an answer earns."""
    allocate: Member = Member(use="uniform")
    """How many rollouts each prompt gets."""
    select: tuple[SelectSection, ...] = (SelectSection.model_validate({"use": "max_variance", "keep_per_prompt": 4}),)
    """Which rollouts are trained on; a list is applied in its order."""
    advantage: AdvantageSection = AdvantageSection(use="grpo")
    """The credit of each rollout."""
    weighting: Member = Member(use="token")
    """The weight of each sequence in the loss."""
    loss: Member = Member(use="clip")
    """The policy loss."""
    terms: tuple[TermSection, ...] = ()
    """Added to the loss: KL to a reference, entropy."""
    critic: CriticSection | None = None
    """A value model that is trained beside the policy; absent: none is."""
    probe: ProbeSection = ProbeSection()
    update: UpdateSection = UpdateSection()
    optimizer: OptimizerSection = OptimizerSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    verify: VerifySection = VerifySection()
    ranks: RanksSection = RanksSection()
    log: LogSection = LogSection()
    alarms: AlarmsSection = AlarmsSection()
    track: tuple[TrackSection, ...] = ()
    """Where the run can be watched besides its folder; a name, a table, or a list of them."""

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
                "top_p, top_k and min_p must stay off while training: the policy's log-probs are over the whole "
                "vocabulary, so every ratio would be biased by the mass that was cut",
                remedy=f"remove it; evaluations have evaluate.{cut}",
                key=f"rollout.{cut}",
            )
        if not self.select:
            raise RefusedValue(
                "no selector is named",
                remedy="name at least one; 'all' keeps every rollout",
                key="select",
                code="config.missing_key",
            )
        return self


SHORTHANDS = tuple(family.key for family in FAMILIES.values() if family.is_table)  # a name for {use = name}


def trained_tokens(config: Config) -> int:
    """Of one rollout, at most."""
    most = config.rollout.max_new_tokens
    return min(most, config.update.max_trained_tokens or most)


def dump(config: Config, *, secrets: bool = False) -> dict[str, Any]:
    """The resolved configuration as JSON-ready data; a function passed as an object appears by its name.

    Options that are named like a secret are hidden (hidden_options.py), unless `secrets` are wanted: for what a run is
    launched with, never for what is written down about it.
    """
    plain = _plain(config.model_dump(mode="python"))
    return typing.cast(dict[str, Any], plain if secrets else with_secrets_hidden(plain))


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """(path, value) of every value in nested data that is no table and no list with entries; a place in a list is an
    integer.
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
    """The dotted key of a leaf; one in a list has the list's key."""
    first_place = next((depth for depth, name in enumerate(path) if isinstance(name, int)), None)
    return ".".join(map(str, path[:first_place]))


def _expand(data: Mapping[str, Any]) -> dict[str, Any]:
    """One selector, tracker, and task, for a list of one, tuples for arrays, `tables`, and the default member where a
    table has options alone.
    """
    out = tables(data)
    for key in SHORTHANDS:
        section, default = out.get(key), Config.model_fields[key].default
        if isinstance(section, Mapping) and not {"use", "parts"} & section.keys() and default:
            out[key] = {"use": (default[0] if isinstance(default, tuple) else default).use, **section}
    for key in ("select", "track"):
        if key in out:
            out[key] = _members(out[key])
    _fill_learning_rates(out)
    evaluate = out.get("evaluate")
    if isinstance(evaluate, Mapping) and "tasks" in evaluate:
        out["evaluate"] = {**evaluate, "tasks": _members(evaluate["tasks"])}
    return typing.cast(dict[str, Any], _tuples(out))


def _fill_learning_rates(data: dict[str, Any]) -> None:
    """Give each optimizer without a learning rate the one that suits what it trains.

    1e-4 is what the bundled policy of half a million parameters is trained with in configs/. For all weights of another
    model 1e-6 is the default of TRL and verl, and what GVM trains with; an adapter takes about ten times as much, and
    PODS 5e-6. A value model's is the default of verl's critic.
    """
    model, critic = _plain_table(data.get("model", {})), data.get("critic")
    if model is None:
        return
    bundled = model.get("path", "bundled") == "bundled"
    on_policy = 1e-4 if bundled else 1e-6 if model.get("lora") is None else 1e-5
    data["optimizer"] = _with_rate(data.get("optimizer", {}), on_policy)
    if isinstance(critic, Mapping) and critic.get("form", CriticSection.model_fields["form"].default) != "shared":
        own = critic.get("path") or model.get("path", "bundled")
        rate = 1e-4 if own == "bundled" else 1e-5
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


def tables(data: Mapping[str, Any]) -> dict[str, Any]:
    """`loss = {use = "clip"}` for `loss = "clip"`, a function wherever a name may stand."""
    out = dict(data)
    for key in SHORTHANDS:
        if key in out and (isinstance(out[key], str) or callable(out[key])):
            out[key] = {"use": out[key]}
    rollout = out.get("rollout")
    engine = rollout.get("engine") if isinstance(rollout, Mapping) else None
    if isinstance(engine, str) or callable(engine):
        out["rollout"] = {**out["rollout"], "engine": {"use": engine}}
    if isinstance(out.get("model"), (str, Path)):
        out["model"] = {"path": str(out["model"])}
    return out


def _tuples(value: Any) -> Any:
    """TOML arrays as tuples: strict pydantic takes no list for a tuple, and a frozen config should hold none."""
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
    """The sections named in a field's annotation, unions and lists looked into."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation):
        for argument in typing.get_args(annotation):
            yield from sections_in(argument)
