"""What a step needs of the parts of a run that are outside this package.

A part may be replaced by anything with these methods. Each class names the one that a run has. Engines have a protocol
of their own, which users implement: `winnow.engines.base.Engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from winnow.records import (
    Alarm,
    Batch,
    FloatArray,
    Group,
    Matrix,
    MicroBatch,
    PerSequence,
    PolicyOutput,
    Prompt,
    PromptAndRollout,
    Rollout,
    StepReport,
    TrainingSequence,
    UpdateResult,
)

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Trainable(Protocol):
    """A model with its optimizer, on every rank. An update is `micro_batches`, a forward and `backward` for each of
    them, and `step`; or `skip` for an empty batch.
    """

    @property
    def taken(self) -> int:
        """Updates that this process started, without skipped ones. While it is unchanged, so are the tensors."""

    @property
    def not_finite(self) -> int:
        """Latest consecutive updates that were skipped, as a gradient was not finite."""

    def micro_batches(self, batch: Batch) -> Iterator[MicroBatch]:
        """This rank's share of a batch."""

    def backward(self, scalar: Tensor) -> None:
        """Add the scalar's gradient to that of the batch's earlier micro-batches."""

    def step(self) -> UpdateResult:
        """Make one update from the gradients of all ranks."""

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""

    def values(self, sequences: Sequence[TrainingSequence]) -> PerSequence:
        """Values [L] of each sequence by its key, under the present weights."""

    def move_metrics(self, prefix: str) -> dict[str, float]:
        """How far the weights in use have followed the optimizer since the start."""

    def counts(self) -> dict[str, Any]:
        """The state besides tensors, for JSON."""

    def state(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint besides the policy's parameters. They are not copied."""

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue from `state` and `counts`. Raises RunFolderError."""


class PolicyLearner(Trainable, Protocol):
    """The trained policy with optimizer and reference: `winnow.learner.learner.Learner`."""

    def compute_logprobs(self, batches: Sequence[Batch], needs: Collection[str]) -> list[Batch]:
        """The batches with the old and reference log-probs that `needs` contains."""

    def logprobs(self, sequences: Sequence[TrainingSequence]) -> PerSequence:
        """Log-probs [L] of each sequence by its key, under the present weights."""

    def reference_logprobs(self, sequences: Sequence[TrainingSequence]) -> PerSequence:
        """Log-probs [L] of each sequence by its key, under the reference model."""

    def forward(self, mb: MicroBatch, needs: Collection[str] = ()) -> PolicyOutput:
        """Log-probs [T] of the completion tokens; entropy [T] and values [T] if in `needs`."""

    def gradient_norms(self, sequences: Sequence[PromptAndRollout], *, of: Matrix) -> FloatArray:
        """[n] norms || d log P(rollout | prompt) / d matrix ||_2 under the present weights."""

    def weights(self) -> Mapping[str, Tensor]:
        """The trained parameters by name, which an engine copies; `ReadByAllRanks` of a sharded policy."""

    def reset(self, what: Literal["none", "optimizer", "reference", "both"]) -> None:
        """Discard the optimizer's moments, make the present policy the reference, or both."""

    def shares(self, more: Mapping[str, Tensor]) -> Shares:
        """The tensors that a checkpoint of the present policy reads: parameters, `state`, and `more`."""

    def write_model(self, path: Path, files: Mapping[str, bytes], read: Callable[[str], Tensor]) -> Mapping[str, str]:
        """Write the policy as a model folder with `Shares.read`; the digests of its large files."""

    def on_side_stream(self) -> AbstractContextManager[object]:
        """A context in which another thread may read the tensors as they are now."""


class ValueLearner(Trainable, Protocol):
    """A separate value model with its optimizer: `winnow.learner.value_model.Critic`."""

    def forward(self, mb: MicroBatch) -> Tensor:
        """Values [T] before each completion token."""


@runtime_checkable
class ReadByAllRanks(Protocol):
    """Weights of which each read is an exchange of all ranks: `winnow.learner.sharding.GatheredWeights`."""

    def finish(self) -> None:
        """Read every weight that has not been read: the other ranks wait for a rank whose engine failed."""


class Shares(Protocol):
    """Tensors that may be divided among ranks: `winnow.learner.sharding.SharesToWriter`."""

    def written(self, write: Callable[[], T]) -> T | None:
        """Run `write` on the writer and return its result, while other ranks send their shares and return None."""

    def read(self, name: str) -> Tensor:
        """On the writer: the whole tensor."""


class Verifier(Protocol):
    """Judges rollouts: `winnow.verify.verifiers.Verifiers`."""

    def submit(self, prompt: Prompt, rollout: Rollout) -> None:
        """Start to judge a rollout."""

    def collect(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their outcomes [N]."""

    def check_step(self, groups: Sequence[Group]) -> None:
        """Raise VerifierError if too many verdicts of a step failed."""

    def check_evaluation(self, groups: Sequence[Group]) -> None:
        """Raise VerifierError if too many verdicts of an evaluation failed."""

    def state_dict(self) -> dict[str, Any]:
        """The state of a checkpoint, for JSON."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""

    def close(self) -> None:
        """Stop the workers."""


class StepLog(Protocol):
    """The logs of a run: `winnow.state.logbook.Logbook`."""

    def begin(self, step: int, groups: Sequence[Group], batches: Sequence[Batch]) -> None:
        """Start to write a step's rollouts, in a thread."""

    def finish(self, step: int, metrics: Mapping[str, float]) -> StepReport:
        """Log a finished step."""

    def write_between(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an evaluation or a probe before `step`."""

    def metrics(self) -> list[dict[str, float]]:
        """The rows of the log."""

    def sync(self, step: int) -> Mapping[str, Any]:
        """Wait until every row is on the disk; the marks at the ends of the rows before `step`."""

    def decided(self, step: int) -> dict[str, Any] | None:
        """The sizes that the run chose before `step`; None if it has not chosen them yet."""

    def decide(self, step: int, decision: Mapping[str, Any]) -> None:
        """Log the sizes that the run chose before `step`, and wait until they are on the disk."""

    def truncate_from(self, step: int, *, but_evaluation: bool = False, decisions: bool = False) -> bool:
        """Remove `step` and everything after it; returns whether an evaluation before `step` stays. Decisions stay
        unless `decisions` is true.
        """

    def close(self) -> None:
        """Remove what was begun of a step that does not end."""


class SizePlan(Protocol):
    """The sizes of a run that chooses them itself: `winnow.core.size_plan.RunSizes`."""

    @property
    def sized(self) -> Any:
        """The members of the run with the sizes now."""

    def due(self, step: int) -> bool:
        """Whether to decide before a step."""

    def decide(self, step: int) -> dict[str, Any]:
        """The decision before a step. Nothing changes before `apply`."""

    def apply(self, step: int, decision: dict[str, Any]) -> str | None:
        """Continue with the sizes of a decision; a sentence if they are others."""

    def state_dict(self) -> dict[str, Any]:
        """The state of a checkpoint, for JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""


class AlarmJudge(Protocol):
    """The alarms of a run: `winnow.alarms.watch.Alarms`."""

    @property
    def begun(self) -> tuple[Alarm, ...]:
        """Raised at the newest step; these were clear before."""

    def metrics(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """1 for each alarm that holds at this step, by metric name."""

    def remember(self, rows: Iterable[dict[str, float]], *, evaluated_since: int = 0) -> None:
        """Add the log's rows of the steps before a resume."""

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Add an evaluation of the weights before the next step."""

    def at_end(self, step: int) -> tuple[Alarm, ...]:
        """The alarms that an evaluation after the last step raises."""


class SavedCheckpoint(Protocol):
    """A checkpoint that is known to be whole: `winnow.state.checkpoint.Checkpoint`."""

    @property
    def path(self) -> Path:
        """A usable model folder."""

    @property
    def step(self) -> int:
        """Steps done; the next one to run."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Checkpoints that were skipped or could not be removed, with the reason."""


class MemoryGauge(Protocol):
    """Measures memory at the end of each phase: `winnow.memory.usage.Gauge`."""

    def start(self) -> None:
        """Start a phase."""

    def read(self, phase: str) -> None:
        """Measure at the end of a phase."""

    def read_engine(self, engine: object) -> None:
        """Add an engine's latest report of the memory that it uses elsewhere."""

    def metrics(self) -> dict[str, float]:
        """All values measured so far (MiB), by metric name."""
