"""The notices of a run between two steps: where it resumes, and when training of the policy starts.

Signs of trouble are alarms (winnow.alarms), or errors where the run cannot continue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from winnow.config import Config
from winnow.errors import UpdateError
from winnow.records import StepReport
from winnow.state.checkpoint import Checkpoint
from winnow.state.folder import RunFolder
from winnow.state.logbook import METRICS
from winnow.training.critic import is_pretraining
from winnow.training.run import Run


def start_notices(folder: RunFolder, resume: bool, saved: Checkpoint | None) -> tuple[str, ...]:
    """Notices about where a run resumes, or starts again."""
    if saved is not None:
        return saved.notices
    if resume:
        return ("there is no checkpoint yet: the run starts again from its first step",)
    if (folder.path / METRICS).exists():
        return ("an earlier launch in this folder ended before its first step was done: its logs are removed",)
    return ()


def check_skipped(run: Run, step: int) -> None:
    """Raise UpdateError once `update.max_skipped` updates in a row were skipped, of the policy or the value model."""
    limit, skipped = run.config.update.max_skipped, run.learner.not_finite
    if limit and run.critic is not None and run.critic.not_finite >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the value model's last {run.critic.not_finite} updates were not finite, "
            f"and all of these were skipped (update.max_skipped = {limit})",
            remedy="lower critic.optimizer.learning_rate or look for rewards of extreme size, and resume from an "
            "earlier checkpoint",
            key="critic.optimizer.learning_rate",
            code="update.not_finite",
        )
    if limit and skipped >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the last {skipped} updates were not finite, and all of these were skipped "
            f"(update.max_skipped = {limit}); the weights are those before them",
            remedy="repair your loss, term or advantage where it computes NaN or infinity; else the policy is near "
            "overflow: lower optimizer.learning_rate or look for rewards of extreme size, and resume from an earlier "
            "checkpoint",
            key="optimizer.learning_rate",
            code="update.not_finite",
        )


def step_notices(config: Config, report: StepReport) -> Iterator[str]:
    """The notices about a step that is done."""
    if is_pretraining(config.critic, report.step) and not is_pretraining(config.critic, report.step + 1):
        yield pretraining_notice(report)


def pretraining_notice(report: StepReport) -> str:
    """A notice that the policy is trained from now on, with the variance that its value model explains."""
    notice = f"step {report.step}: critic.pretraining_steps are over: the policy learns from step {report.step + 1} on"
    explained = report.metrics.get("critic/explained_variance", math.nan)
    if math.isnan(explained):
        return notice
    return (
        f"{notice}; before its last update the value model explained {explained:.3g} of the returns' variance (1: all, "
        f"0: no more than a constant)"
    )
