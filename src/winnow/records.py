"""The records of a training step: problems, prompts, rollouts, groups, batches.

Shapes used everywhere:

    G  prompts of a step          L  tokens of one completion       B  sequences that are trained together
    N  rollouts of one prompt     P  tokens of one prompt           T  completion tokens of one micro-batch
    V  vocabulary

Per-rollout numbers (rewards, advantages, weights) are float64 numpy arrays; per-token numbers of a micro-batch are
torch tensors on the policy's device. Log-probabilities are natural-log. This module imports no torch.

Records are frozen. The fields of a `Group` and of a `TrainingSequence` are filled one by one, each once, as a step
proceeds. The examples in the docstrings below continue each other.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
PerSequence = Mapping[tuple[int, int], FloatArray]  # key of a TrainingSequence -> [L]

Finish = Literal["stop", "length", "cut"]  # cut: by the rule `cut`, while it was sampled
Kind = Literal["correct", "wrong", "unparsable", "failed", "cut"]
NO_VERDICT: tuple[Kind, ...] = ("failed", "cut")  # neither right nor wrong
Cause = Literal["timeout", "memory", "crash", "sandbox", "raised", "malformed"]
CAUSES: tuple[Cause, ...] = ("timeout", "memory", "crash", "sandbox", "raised", "malformed")
Metrics = dict[str, float]  # number by name; metrics.py has every name
Matrix = Literal["embedding", "output_head"]  # whose gradient norms an allocator may read


class Message(NamedTuple):
    """One message of a conversation."""

    role: str  # system, user or assistant
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One item of a task, before it is rendered and tokenized.

    >>> problem = Problem(id="p7", question="What is 40 + 2?", answer="42", task="jsonl")
    """

    id: str  # stable across epochs, runs and resumes
    question: str  # as the task states it, without a template
    answer: Any  # the gold answer as the task's rewards expect it: text, a list of texts, or a JSON value
    task: str  # name of the task
    meta: dict[str, Any] = field(default_factory=dict)  # further fields, as JSON
    earlier: tuple[Message, ...] = ()  # the messages before the question, such as a system message
    where: str = field(default="", compare=False)  # its place in the user's file, "train.jsonl:17", for messages

    @property
    def asked(self) -> str:
        """The question, after the texts of the earlier messages without the system message."""
        return asked((*self.earlier, Message("user", self.question))) if self.earlier else self.question


def asked(messages: Sequence[Message]) -> str:
    """The texts of a conversation without its system message."""
    return "\n\n".join(content for role, content in messages if role != "system")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A problem rendered for the policy.

    >>> prompt = Prompt(id="p7", tokens=np.array([11, 4, 7]), text="What is 40 + 2?\\n", answer="42", task="jsonl")
    """

    id: str  # the problem's
    tokens: IntArray  # [P]
    text: str  # the decoded tokens, special tokens included
    answer: Any  # the problem's
    task: str  # the problem's
    meta: dict[str, Any] = field(default_factory=dict)  # the problem's

    @classmethod
    def of(cls, problem: Problem, text: str, tokens: IntArray) -> Self:
        """The prompt of a problem that was rendered."""
        meta = problem.meta
        return cls(id=problem.id, tokens=tokens, text=text, answer=problem.answer, task=problem.task, meta=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an engine samples. temperature 0 is greedy."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    stop: tuple[str, ...] = ()  # a rollout stops once its text contains one; a special token here is a stop token


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """One sampled answer: its tokens exactly as the engine produced them, and the text that rewards read.

    The token that completes a stop string may contain more characters (`">\\n"` after `</answer`). It is kept in
    `tokens` and trained as sampled, and the text ends with the stop string.

    >>> tokens, logprobs = np.array([8, 2]), np.array([-0.1, -0.4])
    >>> right = Rollout(index=0, tokens=tokens, logprobs=logprobs, text="42", finish="stop", version=3)
    >>> wrong = Rollout(index=1, tokens=tokens[:1], logprobs=logprobs[:1], text="4", finish="length", version=3)
    """

    index: int  # position among the rollouts of its prompt, from 0; part of its id
    tokens: IntArray  # [L] as sampled, the stop token included when one was sampled
    logprobs: FloatArray  # [L] under the distribution from which the engine sampled
    # the decoded tokens of the policy's turns, without special tokens, up to the first stop string; empty if cut
    text: str
    finish: Finish
    version: int  # version of the weights that sampled it
    rank: int = 0  # rank of the process that sampled it
    trainable: BoolArray | None = None  # [L] whether the policy sampled the token; None: all tokens
    turns: tuple[str, ...] | None = None  # texts of the policy and an environment, alternating; None: a single turn
    round: int = 0  # the round of its step, of those in which its prompt was sampled; not logged
    beyond: int = 0  # tokens that the engine sampled beyond a cut, which were dropped; not logged

    @property
    def sampled(self) -> BoolArray:
        """[L] Whether the policy sampled the token."""
        return np.ones(len(self.tokens), dtype=np.bool_) if self.trainable is None else self.trainable

    @property
    def length(self) -> int:
        """Number of tokens that the policy sampled."""
        return len(self.tokens) if self.trainable is None else int(self.trainable.sum())

    def up_to(self, end: int) -> Self:
        """The rollout with its first `end` tokens. The text is not shortened."""
        trainable = None if self.trainable is None else self.trainable[:end]
        return dataclasses.replace(self, tokens=self.tokens[:end], logprobs=self.logprobs[:end], trainable=trainable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verifier's result. If the verifier failed, the kind is "failed" and never "wrong". If the rollout was cut
    while it was sampled, the kind is "cut".

    >>> paid = Outcome(reward=1.0, correct=True, kind="correct", answer="42")
    >>> unpaid = Outcome(reward=0.0, correct=False, kind="wrong", answer="4")
    >>> Outcome(reward=float("nan"), correct=None, kind="failed", cause="timeout").failed
    True
    """

    reward: float  # NaN without a verdict
    correct: bool | None  # None without a verdict
    kind: Kind
    parts: dict[str, float] = field(default_factory=dict)  # the named summands before weighting
    answer: str | None = None  # as extracted from the text
    cause: Cause | None = None  # only when failed
    detail: str = ""  # the reason, as text
    seconds: float = 0.0  # duration of the verdict
    late: bool = False  # whether it depends on a wall-clock limit, and so may differ in another run

    @property
    def failed(self) -> bool:
        """Whether the verifier failed."""
        return self.kind == "failed"

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: the verifier did not fail, and the rollout was not cut."""
        return self.kind not in NO_VERDICT


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """An environment's answer to one call of a tool, which an environment may yield in the place of a text."""

    text: str
    name: str  # of the tool; "error" where the call had none
    call_id: str  # that connects call and answer, in templates that write it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An environment's text, which the policy answers with its next turn."""

    text: str
    seconds: float = 0.0
    answers: tuple[ToolAnswer, ...] = ()  # that the text consists of; empty for any other text


class Draw(NamedTuple):
    """How a prompt came into a step.

    >>> Draw(probability=0.02, prompts=100).share
    0.5
    """

    probability: float  # that the step has this prompt
    prompts: int  # of the task

    @property
    def share(self) -> float:
        """1 / (P probability): the weight in a sum over the step that estimates the mean over the task's P prompts
        without bias (Horvitz and Thompson 1952); 1 / G for G prompts of equal probability.
        """
        return 1.0 / (self.prompts * self.probability)


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """One prompt and its N rollouts.

    From `outcomes` on, each field is filled once, in this order. Values and returns are NaN for a rollout that no
    value model has read.

    >>> group = Group(prompt=prompt, rollouts=(right, wrong)).fill(outcomes=(paid, unpaid))
    >>> group = group.fill(keep=np.array([True, True])).fill(advantages=np.array([0.5, -0.5]))
    >>> group.ids
    ['p7#0', 'p7#1']
    >>> group.rewards
    array([1., 0.])
    >>> group.take(group.correct).lengths
    array([2])
    """

    prompt: Prompt  # of all rollouts
    rollouts: tuple[Rollout, ...]  # [N] in the order of their index
    outcomes: tuple[Outcome, ...] | None = None  # [N] results of the verifier
    drawn: Draw | None = None  # of the prompt; None if its probability is unknown, or equal for all prompts
    keep: BoolArray | None = None  # [N] whether the selectors keep the rollout
    token_rewards: tuple[FloatArray, ...] | None = None  # N x [L]; None: the reward is on the last token
    values: tuple[FloatArray, ...] | None = None  # N x [L], with a critic only: the values before each token
    returns: tuple[FloatArray, ...] | None = None  # N x [L], with a value model only: the targets of its values
    advantages: FloatArray | tuple[FloatArray, ...] | None = None  # [N] of whole rollouts, or N x [L] of tokens

    def fill(self, **fields: Any) -> Self:
        """A copy with more fields set. Raises ValueError if a field is already set, or has a wrong length.

        It shares the arrays that are computed already: no field that they depend on is filled twice.
        """
        _check_fill(self, fields, length=len(self.rollouts))
        filled = object.__new__(type(self))
        vars(filled).update(vars(self), **fields)
        return filled

    def take(self, places: Sequence[int] | IntArray | BoolArray) -> Group:
        """The group with some of its rollouts, given by positions or a mask, and their part of every filled field."""
        index = np.asarray(places)
        if index.dtype == np.bool_:
            if len(index) == len(self.rollouts) and index.all():
                return self
            index = np.flatnonzero(index)
        if index.tolist() == list(range(len(self.rollouts))):
            return self
        index = index.astype(np.int64)
        per_rollout = [of.name for of in dataclasses.fields(self) if of.name not in ("prompt", "drawn")]
        return dataclasses.replace(self, **{name: _pick(getattr(self, name), index) for name in per_rollout})

    @property
    def ids(self) -> list[str]:
        """[N] the id of each rollout within a step."""
        return [rollout_id(self.prompt.id, rollout.index) for rollout in self.rollouts]

    @cached_property
    def rewards(self) -> FloatArray:
        """[N], NaN without a verdict. Like the arrays below, it is computed once and is read-only."""
        return _fixed([outcome.reward for outcome in self._outcomes()], np.float64)

    @cached_property
    def correct(self) -> BoolArray:
        """[N], False without a verdict."""
        return _fixed([bool(outcome.correct) for outcome in self._outcomes()], np.bool_)

    @cached_property
    def valid(self) -> BoolArray:
        """[N], whether there is a verdict: the verifier did not fail, and the rollout was not cut."""
        return _fixed([outcome.judged for outcome in self._outcomes()], np.bool_)

    @cached_property
    def timed_out(self) -> BoolArray:
        """[N], True where the outcome depends on a wall-clock limit."""
        return _fixed([outcome.late for outcome in self._outcomes()], np.bool_)

    @cached_property
    def lengths(self) -> IntArray:
        """[N] number of tokens that the policy sampled."""
        return _fixed([rollout.length for rollout in self.rollouts], np.int64)

    @cached_property
    def sizes(self) -> IntArray:
        """[N] number of all tokens, the environment's included: L, the length of every per-token array."""
        return _fixed([len(rollout.tokens) for rollout in self.rollouts], np.int64)

    def _outcomes(self) -> tuple[Outcome, ...]:
        if self.outcomes is None:
            raise ValueError(f"group {self.prompt.id!r} has not been verified yet: its outcomes are not filled")
        return self.outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStats:
    """Statistics of G prompts before they are sampled; an unknown number is NaN."""

    ids: tuple[str, ...]  # [G] of the prompts
    pass_rate: FloatArray  # [G] correct / trials
    gradient_norm: FloatArray  # [G] mean over correct rollouts of the norm of the gradient of log P(rollout | prompt)
    trials: FloatArray  # [G] number of verified rollouts; older ones may count for less than 1
    correct: FloatArray  # [G] number of correct ones among these


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRollouts:
    """The input of a weighting: every kept rollout of a step, including those of advantage zero, and their groups.

    Three kept rollouts of the first prompt and one of the second, with 4 rollouts sampled for each:

    >>> kept = KeptRollouts(
    ...     planned=2,
    ...     lengths=np.array([5, 7, 6, 9]),
    ...     group=np.array([0, 0, 0, 1]),
    ...     correct=np.array([True, False, True, True]),
    ...     generated=np.array([4, 4]),
    ...     valid=np.array([4, 3]),
    ...     accepted=np.array([2, 1]),
    ...     pass_rate=np.array([0.5, np.nan]),
    ...     max_new_tokens=64,
    ... )
    >>> kept.valid[kept.group]
    array([4, 4, 4, 3])
    """

    planned: int  # number of prompts in the step's plan, with or without a kept rollout; dynamic sampling adds none
    lengths: IntArray  # [B] trainable tokens
    group: IntArray  # [B] index into the per-group arrays below
    correct: BoolArray  # [B] whether the rollout is right
    generated: IntArray  # [G] number of sampled rollouts, for each group that has a kept one
    valid: IntArray  # [G] number of verified ones among these
    accepted: IntArray  # [G] number of correct ones among these
    pass_rate: FloatArray  # [G] from the plan (measured before these rollouts), NaN if unknown
    max_new_tokens: int  # the limit of a rollout
    share: FloatArray | None = None  # [G] of the prompt in the mean over the task's prompts; None: 1 / planned each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSequence:
    """One kept rollout on its way through one optimizer step.

    >>> sequence = TrainingSequence(prompt=prompt, rollout=right, group=0, advantage=0.5, weight=0.25)
    >>> sequence.key
    (0, 0)
    >>> sequence.fill(old_logprobs=np.array([-0.1, -0.4])).old_logprobs
    array([-0.1, -0.4])
    """

    prompt: Prompt
    rollout: Rollout
    group: int  # position of its group in the step
    advantage: float | FloatArray  # scalar or [L]
    weight: float  # multiplies every token's loss; the loss itself never divides
    old_logprobs: FloatArray | None = None  # [L] under the weights at the start of the step
    ref_logprobs: FloatArray | None = None  # [L] under the reference policy
    values: FloatArray | None = None  # [L] of the value model at the start of the step
    returns: FloatArray | None = None  # [L] the targets of its values

    def fill(self, **fields: Any) -> Self:
        """A copy with more fields set. Raises ValueError if a field is already set, or has a wrong length."""
        _check_fill(self, fields, length=len(self.rollout.tokens))
        return dataclasses.replace(self, **fields)

    @property
    def key(self) -> tuple[int, int]:
        """The identity of the rollout in the step, the same in all epochs."""
        return self.group, self.rollout.index

    @property
    def teaches(self) -> bool:
        """Whether the advantage differs from zero at any token."""
        return bool(self.advantage != 0.0 if isinstance(self.advantage, float) else np.any(self.advantage))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The weighted sequences of one optimizer step, without those whose advantage is zero at every token."""

    epoch: int
    sequences: tuple[TrainingSequence, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Some sequences of a batch, as flat tensors of their completion tokens on the policy's device.

    A sequence of 2 completion tokens and one of 1:

    >>> micro_batch = MicroBatch(
    ...     sequences=(sequence, dataclasses.replace(sequence, rollout=wrong, advantage=-0.5)),
    ...     sequence_index=torch.tensor([0, 0, 1]),
    ...     advantages=torch.tensor([0.5, 0.5, -0.5]),
    ...     weights=torch.tensor([0.25, 0.25, 0.25]),
    ...     behaviour_logprobs=torch.tensor([-0.1, -0.4, -0.1]),
    ... )
    >>> micro_batch.advantages[micro_batch.sequence_index == 1]
    tensor([-0.5000])
    """

    sequences: tuple[TrainingSequence, ...]  # each with its prompt, rollout, advantage and weight
    sequence_index: Tensor  # [T] int64, the position of each token's sequence in `sequences`
    advantages: Tensor  # [T] of the token's rollout, or of the token
    weights: Tensor  # [T] factor of the loss of each token
    behaviour_logprobs: Tensor  # [T] as the engine reported them
    old_logprobs: Tensor | None = None  # [T] under the weights at the start of the step
    ref_logprobs: Tensor | None = None  # [T] under the reference policy
    values: Tensor | None = None  # [T] before the update
    returns: Tensor | None = None  # [T] the targets of a value model
    # [K] int64, the positions of the trained tokens; None: all. No mask, because the host must know the size
    trained: Tensor | None = None
    layout: Literal["padded", "shared", "packed", "joined"] | None = None  # of all ranks; None: as the policy reads it

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens."""
        return len(self.sequence_index if self.trained is None else self.trained)

    def of_trained(self, values: Tensor) -> Tensor:
        """The values [K] of the trained tokens, from those of all tokens [T]."""
        return values if self.trained is None else values.index_select(0, self.trained)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOutput:
    """The policy's output for a micro-batch, in the micro-batch's token order."""

    logprobs: Tensor  # [T] at the sampling temperature
    entropy: Tensor | None = None  # [T] over the whole vocabulary, on request
    values: Tensor | None = None  # [T] of a value head on the policy's backbone, on request


class PromptAndRollout(NamedTuple):
    """A sequence that is read and not trained on."""

    prompt: Prompt
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Result of one update."""

    grad_norm: float  # before clipping, over all parameters
    learning_rate: float
    skipped: bool  # True when the parameters did not change
    products: tuple[float, float] | None = None  # of the gradient with the mean of the earlier ones, and with itself


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that was raised; `text` contains all of it in sentences."""

    step: int  # the first at which it held
    name: str
    text: str
    evidence: Mapping[str, float] = field(default_factory=dict)  # numbers by name; a metric under its own name
    keys: Mapping[str, Any] = field(default_factory=dict)  # to check, with present values; None: not known
    last: int = -1  # the last step at which it held; `step` while the run continues


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One finished step: its metrics by name."""

    step: int
    metrics: dict[str, float]


def as_array(answer: object) -> npt.NDArray[Any]:
    """The return value of a user's function as an array; one of dtype object where that is impossible."""
    try:
        return np.asarray(answer)
    except ValueError:  # rows of unequal lengths
        return np.array(None, dtype=np.object_)


def joined(arrays: Sequence[npt.NDArray[Any]], dtype: Any = np.float64) -> npt.NDArray[Any]:
    """The arrays one after another; an empty one of `dtype` for none."""
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)


def packed(array: Any, dtype: str) -> str:
    """The bytes of an array as text; `dtype` has a byte order, such as "<f8"."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode("ascii")


def unpacked(text: str, dtype: str) -> npt.NDArray[Any]:
    """[n] the numbers of `packed`, as float64 or int64."""
    numbers = np.frombuffer(base64.b64decode(text), dtype=dtype)
    return numbers.astype(np.int64 if np.issubdtype(numbers.dtype, np.integer) else np.float64)


def rollout_id(prompt_id: str, index: int) -> str:
    """The id of a rollout within a step: `rollout_id("p7", 0) == "p7#0"`."""
    return f"{prompt_id}#{index}"


def _fixed(values: Sequence[Any], kind: Any) -> npt.NDArray[Any]:
    """The values as an array that cannot be changed, as others read the same one."""
    array = np.array(values, dtype=kind)
    array.flags.writeable = False
    return array


def _pick(values: Any, index: IntArray) -> Any:
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else values[index]
    return tuple(values[i] for i in index)


def _check_fill(record: Group | TrainingSequence, fields: Mapping[str, Any], *, length: int) -> None:
    kind = "group" if isinstance(record, Group) else "training sequence"
    for name, value in fields.items():
        if name not in record.__dataclass_fields__:
            raise ValueError(f"a {kind} has no field {name!r}")
        if getattr(record, name) is not None:
            raise ValueError(f"{name!r} of this {kind} is already filled; fields are written once")
        if name != "drawn" and (value is None or len(value) != length):
            got = "None" if value is None else str(len(value))
            raise ValueError(f"{name!r} of this {kind} needs {length} entries, got {got}")
