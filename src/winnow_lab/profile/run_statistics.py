"""Statistics of a run's last steps, and the seconds of a step that they and two cost curves predict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.algos.costs import StepCosts, StepWork
from winnow.algos.planning import PassRates, fit_pass_rates
from winnow.config import Config
from winnow.config_file import validate
from winnow.errors import ConfigError, DataError
from winnow.metrics import is_step
from winnow.records import NO_VERDICT, BoolArray, FloatArray, IntArray
from winnow.state.logbook import read_metrics, read_rows
from winnow.state.rollout_files import ROLLOUTS, files_by_step
from winnow.state.saved_runs import read_manifest

PHASES = ("generate", "verify", "select", "logprobs", "update", "sync")  # all phases of a step except saving
COUNTS = ("group/count", "budget/rollouts", "budget/tokens_generated", "select/trained", "budget/tokens_trained")
SPLITS = 64  # maximum number of candidates for the border between right and wrong


@dataclass(frozen=True)
class TwoValues:
    """Rewards with several values, reduced to two: right (above a border) and wrong."""

    border: float
    values: int  # distinct rewards
    explained: float  # share of the variance within prompts that the two values explain; 1 if there are only two


@dataclass(frozen=True)
class RunStatistics:
    """Means over a window of steps."""

    run: Path
    config: Config
    first: int  # step
    last: int
    groups: int  # total number with a verified rollout
    rates: PassRates
    flat: float  # share of these groups whose rewards are all equal
    two_values: TwoValues
    counts: Mapping[str, float]  # COUNTS, per step
    seconds: Mapping[str, float]  # PHASES, per step; the first step of a run, which warms up, counts only if alone
    grad_norm: float | None  # root mean square before clipping, with 0 for a step without an update
    lasting: FloatArray  # [T] the share of rollouts longer than t = 0 ... T - 1 tokens

    @property
    def length(self) -> float:
        """Mean tokens of a sampled rollout."""
        return self.counts["budget/tokens_generated"] / self.counts["budget/rollouts"]

    @property
    def trained_length(self) -> float:
        """Mean tokens of a trained rollout; those of a sampled one if none was trained."""
        trained = self.counts["select/trained"]
        return self.counts["budget/tokens_trained"] / trained if trained else self.length

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def statistics_of(run: Path, *, window: int, before: int | None = None) -> RunStatistics:
    """Statistics of the last `window` finished steps with logged rollouts; only of steps before `before`, if given.

    Raises RunFolderError if `run` is no run, DataError if it has no such step, and ConfigError if all groups are flat.
    """
    manifest = read_manifest(run, own=False)
    config = validate(manifest.config, source=str(run))
    if manifest.data.get("ranks", 1) != 1:
        raise ConfigError(
            f"{run} was computed by {manifest.data['ranks']} processes, and a plan is made for one",
            remedy="train a few steps in one process",
            code="config.unsupported",
        )
    logged = files_by_step(run / ROLLOUTS)
    steps = [step for step in logged if before is None or step < before]
    rows = [row for row in read_metrics(run) if is_step(row) and row["step"] in steps][-window:]
    if not rows:
        raise DataError(
            f"{run} has no finished step whose rollouts are logged, so its prompts' pass rates are unknown",
            remedy='train a few steps with log.rollouts = "all" (or "kept"), and plan again',
            key="log.rollouts",
            code="data.empty",
        )
    groups, lengths = _logged(run, [int(row["step"]) for row in rows])
    flat = [bool(np.ptp(rewards) == 0) for rewards in groups]
    if not groups or all(flat):
        raise ConfigError(
            f"{run}, steps {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}: the rewards of every prompt are all "
            f"equal, so no setting is known to give a gradient",
            remedy="sample more rollouts of a prompt, use easier or harder problems, or a reward with parts, and train "
            "a few steps again",
            code="config.unsupported",
        )
    two = _two_values(groups)
    right = [int((rewards > two.border).sum()) for rewards in groups]
    timed = [row for row in rows if row["step"] > 0] or rows
    return RunStatistics(
        run=run,
        config=config,
        first=int(rows[0]["step"]),
        last=int(rows[-1]["step"]),
        groups=len(groups),
        rates=fit_pass_rates(right, [len(rewards) for rewards in groups]),
        flat=float(np.mean(flat)),
        two_values=two,
        counts={name: _mean(rows, name, run) for name in COUNTS},
        seconds={name: _mean(timed, f"seconds/{name}", run) for name in PHASES},
        grad_norm=_grad_norm(rows),
        lasting=1 - np.cumsum(np.bincount(lengths))[:-1] / len(lengths),
    )


def _logged(run: Path, steps: Sequence[int]) -> tuple[list[FloatArray], list[int]]:
    """The rewards [N] of each group's verified rollouts, and the length of every rollout.

    Groups without a verified rollout are omitted.
    """
    rewards_of: dict[tuple[int, str], list[float]] = {}
    lengths = list[int]()
    for step in steps:
        for row in read_rows(run, step, columns=("prompt_id", "kind", "reward", "length")):
            lengths.append(row["length"])
            if row["kind"] not in NO_VERDICT:
                rewards_of.setdefault((step, row["prompt_id"]), []).append(row["reward"])
    return [np.array(rewards) for rewards in rewards_of.values()], lengths


def _two_values(groups: Sequence[FloatArray]) -> TwoValues:
    """The border at which right and wrong explain the most of the rewards' variance within prompts.

    The explained share is the squared correlation of the two values with the rewards over all rollouts, after the
    mean of the prompt is subtracted from both.
    """
    rewards = np.concatenate(groups)
    prompt = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    values = np.unique(rewards)
    borders = (values[:-1] + values[1:]) / 2
    if len(borders) > SPLITS:
        borders = borders[np.linspace(0, len(borders) - 1, SPLITS).astype(int)]
    within = _centred(rewards, prompt)
    explained = [_explained(within, _centred(rewards > border, prompt)) for border in borders]
    best = int(np.argmax(explained))
    return TwoValues(float(borders[best]), len(values), float(explained[best]))


def _centred(values: FloatArray | BoolArray, prompt: IntArray) -> FloatArray:
    """[N] the values minus the mean of their prompt's values."""
    values = values.astype(np.float64)
    means = np.bincount(prompt, weights=values) / np.bincount(prompt)
    return np.asarray(values - means[prompt], dtype=np.float64)


def _explained(rewards: FloatArray, right: FloatArray) -> float:
    spread = float(right @ right)
    return float(rewards @ right) ** 2 / (float(rewards @ rewards) * spread) if spread else 0.0


def _mean(rows: Sequence[Mapping[str, float]], name: str, run: Path) -> float:
    values = [row.get(name, math.nan) for row in rows]
    if not np.isfinite(values).all():
        raise DataError(
            f"{run}: its metrics have no {name}, which a step's seconds are computed from",
            remedy="name another run",
            code="data.incomplete",
        )
    return float(np.mean(values))


def _grad_norm(rows: Sequence[Mapping[str, float]]) -> float | None:
    """The root mean square, with 0 for a step without an update; None if no step has a finite one above 0."""
    values = np.array([row.get("policy/grad_norm", math.nan) for row in rows])
    values = np.where(np.isfinite(values), values, 0.0)
    return float(np.sqrt((values**2).mean())) or None


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
