"""A run in two parts: what is fixed for it, and what moves with its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winnow.alarms.watch import Alarms
from winnow.config import Config
from winnow.engines.base import Engine
from winnow.learner.learner import Learner
from winnow.learner.value_model import Critic
from winnow.records import Sampling
from winnow.state.checkpoint import Checkpoint
from winnow.state.history import History
from winnow.state.logbook import Logbook
from winnow.training.progress import Ahead, Phases, Saving, TrainingClock
from winnow.training.setup.members import Members
from winnow.training.setup.prompts import HeldOut, PromptPool
from winnow.verify.verifiers import Verifiers


@dataclass(frozen=True)
class Run:
    """What is fixed for a run: its members, prompts and components. The weights in learner and engine change."""

    members: Members
    folder: Path
    sampling: Sampling
    prompts: PromptPool
    held_out: tuple[HeldOut, ...]
    engine: Engine
    verifiers: Verifiers
    learner: Learner
    critic: Critic | None  # a separate value model; a value head on the policy's backbone is part of the learner
    logbook: Logbook
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
    alarms: Alarms
    phases: Phases = field(default_factory=Phases)  # events about the current phase
    saving: Saving = field(default_factory=Saving)  # a checkpoint that a thread writes
    ahead: Ahead = field(default_factory=Ahead)  # the rollouts of the next step, with rollout.ahead
    saved: Checkpoint | None = None  # the newest checkpoint that is known to be whole
    written: int = -1  # the last step whose updates are taken and whose rows are in the log
