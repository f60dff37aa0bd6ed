"""Predict the seconds of a step for any n, m and P, from two cost curves scaled to a run's phases."""

from __future__ import annotations

from dataclasses import dataclass

from winnow.algos.costs import StepCosts, StepWork
from winnow.commands.profile.run_statistics import RunStatistics
from winnow.errors import DataError
from winnow.records import FloatArray


@dataclass(frozen=True)
class PredictedSeconds:
    """Predicted seconds of a step."""

    sampling: float
    update: float  # including old log-probs
    rest: float  # verification, selection, weight sync

    @property
    def total(self) -> float:
        return self.sampling + self.update + self.rest


@dataclass(frozen=True, eq=False)
class StepClock:
    """The curves of `costs`, each times a factor, and the seconds of the rest of a step."""

    costs: StepCosts
    lasting: FloatArray  # [T] the share of rollouts longer than t tokens
    sampling_factor: float = 1.0
    update_factor: float = 1.0
    per_rollout: float = 0.0  # seconds of verification and selection per sampled rollout
    per_step: float = 0.0  # other seconds

    def seconds(self, work: StepWork, *, at_once: int) -> PredictedSeconds:
        """Seconds of a step whose engine samples at most `at_once` rollouts concurrently."""
        sampling, update = _read_curves(self.costs, work, self.lasting, at_once)
        parts = _parts(self.costs, work)
        return PredictedSeconds(
            sampling=self.sampling_factor * sampling,
            update=self.update_factor * update,
            rest=self.per_rollout * work.rollouts / parts + self.per_step,
        )

    def extrapolates(self, work: StepWork, *, at_once: int) -> bool:
        """Return whether the work is beyond the last point of a curve."""
        parts = _parts(self.costs, work)
        sampled, trained = min(work.rollouts / parts, at_once), work.trained / parts
        return bool(sampled > self.costs.sampling.rollouts[-1] or trained > self.costs.update.rollouts[-1])


def uncalibrated(costs: StepCosts, run: RunStatistics) -> StepClock:
    """A clock with unscaled costs, such as those of another machine, at the run's lengths."""
    return StepClock(costs, run.lasting, per_rollout=costs.seconds_per_rollout, per_step=costs.seconds_per_step)


def calibrated(costs: StepCosts, run: RunStatistics, *, at_once: int) -> StepClock:
    """A clock with scaled curves: at the run's n, m and P it predicts the measured seconds of its phases.

    Raises DataError if a curve is 0 there, so that no factor exists.
    """
    work = own_work(run)
    sampling, update = _read_curves(costs, work, run.lasting, at_once)
    if sampling <= 0 or update <= 0:
        raise DataError(
            f"{costs.source or 'the cost curves'}: at the {work.rollouts:.0f} rollouts that a step of {run.run} "
            f"samples, or the {work.trained:.0f} that it trains on, a curve is 0",
            remedy="measure points near these numbers",
            code="data.incomplete",
        )
    seconds = run.seconds
    return StepClock(
        costs,
        run.lasting,
        sampling_factor=seconds["generate"] / sampling,
        update_factor=(seconds["logprobs"] + seconds["update"]) / update,
        per_rollout=(seconds["verify"] + seconds["select"]) / (work.rollouts / _parts(costs, work)),
        per_step=seconds["sync"],
    )


def own_work(run: RunStatistics) -> StepWork:
    """The mean work of the run's steps. A rollout that is trained on in several epochs counts once per epoch."""
    counts, epochs = run.counts, run.config.update.epochs
    return StepWork(
        prompts=max(1, round(counts["group/count"])),
        rollouts=counts["budget/rollouts"],
        tokens_generated=counts["budget/tokens_generated"],
        trained=epochs * counts["select/trained"],
        tokens_trained=epochs * counts["budget/tokens_trained"],
    )


def _read_curves(costs: StepCosts, work: StepWork, lasting: FloatArray, at_once: int) -> tuple[float, float]:
    """Unscaled seconds of sampling, and of the update."""
    parts = _parts(costs, work)
    return (
        costs.sampling.of_lengths(work.rollouts / parts, lasting, at_once=at_once),
        costs.update.at(work.trained / parts, work.tokens_trained / parts),
    )


def _parts(costs: StepCosts, work: StepWork) -> int:
    """Number of machines that share a step: one per prompt if the curves count rollouts per prompt, otherwise 1."""
    return 1 if costs.per == "step" else max(1, work.prompts)
