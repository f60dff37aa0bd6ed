"""A run in two parts: what is fixed for it, and what moves with its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winnow.config import Config
from winnow.core.draw import PromptPool
from winnow.core.members import Members
from winnow.core.progress import Ahead, Phases, Saving, TrainingClock
from winnow.core.protocols import (
    AlarmJudge,
    MemoryGauge,
    PolicyLearner,
    SavedCheckpoint,
    SizePlan,
    StepLog,
    ValueLearner,
    Verifier,
)
from winnow.engines.base import Engine
from winnow.records import Prompt, Sampling
from winnow.state.history import History


@dataclass(frozen=True)
class Run:
    """What is fixed for a run: its members, prompts and components. The weights in learner and engine change."""

    members: Members
    folder: Path
    sampling: Sampling
    prompts: PromptPool
    held_out: Mapping[str | None, Sequence[Prompt]]  # by the task of `evaluate.tasks`; None: the run's task
    engine: Engine
    verifiers: Verifier
    learner: PolicyLearner
    critic: ValueLearner | None  # a separate value model; a value head on the policy's backbone is part of the learner
    logbook: StepLog
    gauge: Callable[[], MemoryGauge]  # makes one for a step
    files: Mapping[str, bytes]  # tokenizer and generation settings of the model, for its checkpoints

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def seed(self) -> int:
        return self.members.config.seed

    @property
    def taken(self) -> int:
        """Updates by this process, of the policy and of a separate value model."""
        return self.learner.taken + (self.critic.taken if self.critic else 0)


@dataclass
class Progress:
    """What moves with the steps of a run, apart from tensors."""

    history: History  # results of the prompts, and the plan: which prompts are next, and their rollouts
    clock: TrainingClock
    alarms: AlarmJudge
    phases: Phases = field(default_factory=Phases)  # events about the current phase
    saving: Saving = field(default_factory=Saving)  # a checkpoint that a thread writes
    ahead: Ahead = field(default_factory=Ahead)  # the rollouts of the next step, with rollout.ahead
    sizes: SizePlan | None = None  # of a run that chooses the sizes of its steps
    saved: SavedCheckpoint | None = None  # the newest checkpoint that is known to be whole
    failed_saves: int = 0  # the latest saves in a row that failed while training went on
    written: int = -1  # the last step whose updates are taken and whose rows are in the log


def training_sampling(config: Config) -> Sampling:
    """The sampling settings of training: the whole vocabulary at the training temperature.

    A truncated distribution (top-p, top-k) would differ from the policy whose log-probs are trained.
    """
    rollout = config.rollout
    return Sampling(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature, stop=rollout.stop)


def evaluation_sampling(config: Config) -> Sampling:
    """The sampling settings of evaluation: those of training unless `evaluate` has others.

    The distribution may be truncated, as nothing is trained on it.
    """
    evaluate, rollout = config.evaluate, config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens,
        temperature=evaluate.temperature or rollout.temperature,
        top_p=evaluate.top_p,
        top_k=evaluate.top_k,
        min_p=evaluate.min_p,
        stop=rollout.stop,
    )
