"""What a plan reads of a run's last steps: rewards by prompt, tokens and seconds by step. From winnow's log or another.

Means over the steps, and over steps and prompts that are drawn again, are statistics that winnow.algos.step_plan takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.algos.costs import StepWork
from winnow.algos.planning import CreditName, Rule
from winnow.algos.reward_mixture import Levels, RewardAtoms, RewardMixture, atoms_of, base_of, levels_of
from winnow.algos.step_plan import Setting, StepStatistics
from winnow.config import Config
from winnow.config_file import validate
from winnow.errors import ConfigError, DataError
from winnow.metrics import is_step
from winnow.records import NO_VERDICT, FloatArray, IntArray
from winnow.state.logbook import log_notes, read_metrics, read_rows
from winnow.state.rollout_files import files_in
from winnow.state.saved_runs import manifest_of
from winnow_lab.plan.setting import rule_of, setting_of

PHASES = ("generate", "verify", "select", "logprobs", "update", "sync")  # all phases of a step except saving
COUNTS = ("group/count", "budget/rollouts", "budget/tokens_generated", "select/trained", "budget/tokens_trained")
WHOLE, SAVING = "seconds/step", "seconds/save"


@dataclass(frozen=True, eq=False)
class LogWindow:
    """The last steps of a run whose rollouts are logged."""

    run: Path
    program: str
    config: Config | None  # of a run of winnow
    steps: IntArray  # [S]
    levels: Levels
    atoms: RewardAtoms
    counts: IntArray  # [G, L] verified rollouts of each group by the level of their reward
    prompt: IntArray  # [G] the place of the group's prompt among the distinct prompts
    rows: Mapping[str, FloatArray]  # [S] COUNTS and seconds/PHASE of each step; NaN for a number that is not logged
    grad_norm: FloatArray  # [S] NaN where it is not logged
    lasting: FloatArray  # [T] the share of rollouts longer than t = 0 ... T - 1 tokens; empty if lengths are not logged
    setting: Setting
    rule: Rule
    epochs: int
    every: list[dict[str, float]]  # all rows of the run's metrics
    notes: tuple[str, ...]

    @property
    def flat(self) -> FloatArray:
        """[G] whether all rewards of a group are equal."""
        return np.asarray((self.counts > 0).sum(axis=1) == 1, dtype=np.float64)

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of a step are logged or estimated."""
        return all(bool(np.isfinite(self.rows[name]).any()) for name in COUNTS[1:])

    @property
    def has_phases(self) -> bool:
        """Whether the seconds of sampling and of the update are logged."""
        return all(bool(np.isfinite(self.rows[f"seconds/{name}"]).any()) for name in ("generate", "update"))

    @property
    def has_seconds(self) -> bool:
        """Whether the seconds of a whole step are logged."""
        return bool(np.isfinite(self.rows[WHOLE]).any())

    def statistics(
        self, groups: FloatArray | None = None, steps: FloatArray | None = None, *, near: RewardMixture | None = None
    ) -> StepStatistics:
        """Means, with the g-th group counted groups[g] times and the s-th step steps[s] times; once by default. `near`
        is the mixture without repetitions.
        """
        times = np.ones(len(self.steps)) if steps is None else steps
        means = {name: _mean(values, times) for name, values in self.rows.items()}
        prompts, rollouts, generated, trained, tokens = (means[name] for name in COUNTS)
        work = StepWork(
            prompts=max(1, round(prompts)),
            rollouts=rollouts,
            tokens_generated=generated if math.isfinite(generated) else rollouts,
            trained=self.epochs * trained,
            tokens_trained=self.epochs * (tokens if math.isfinite(tokens) else trained),
        )
        return StepStatistics(
            mixture=self.atoms.fit(self.counts, np.ones(len(self.counts)) if groups is None else groups, near=near),
            work=work,
            seconds=self._seconds(times),
            lasting=self.lasting if len(self.lasting) else np.ones(1),
            grad_norm=_root_mean_square(self.grad_norm, times),
        )

    def _seconds(self, times: FloatArray) -> dict[str, float]:
        """Per step, of steps after the first of a run, which warms up. "other" is what no phase contains."""
        warm = np.where(self.steps > 0, times, 0.0) if (self.steps > 0).any() else times
        if not warm.any():
            warm = times
        spent = {name: _mean(self.rows[f"seconds/{name}"], warm) for name in PHASES}
        spent = {name: value for name, value in spent.items() if math.isfinite(value)}
        whole, saving = (_mean(self.rows[name], warm) for name in (WHOLE, SAVING))
        if self.config is None and self.has_phases and math.isfinite(whole):
            spent["other"] = max(0.0, whole - sum(spent.values()) - (saving if math.isfinite(saving) else 0.0))
        return spent


def evidence_of(
    run: Path, *, window: int = 20, before: int | None = None, credit: CreditName | None = None
) -> LogWindow:
    """The last `window` finished steps with logged rollouts; only steps before `before`, if given.

    `credit` is the advantage of a run of another trainer, whose log does not contain it; "grpo" by default. Raises
    RunFolderError if `run` is no run, DataError if it has no such step, and ConfigError for a configuration that a plan
    does not support, and if all groups are flat.
    """
    every = read_metrics(run)
    manifest = manifest_of(run)
    program = str(manifest.data.get("program", "winnow"))
    own = program == "winnow"
    config = validate(manifest.config, source=str(run)) if own else None
    if own and manifest.data.get("ranks", 1) != 1:
        raise ConfigError(
            f"{run} was computed by {manifest.data['ranks']} processes, and a plan is made for one",
            remedy="train a few steps in one process",
            code="config.unsupported",
        )
    if config is not None:
        setting_of(config, str(run))
    logged = [step for step in files_in(run) if before is None or step < before]
    rows = [row for row in every if row["step"] in logged and (is_step(row) or not own)][-window:]
    if not rows:
        raise DataError(
            f"{run} has no finished step whose rollouts are logged, so its prompts' pass rates are unknown",
            remedy='train a few steps with log.rollouts = "all" (or "kept"), and plan again',
            key="log.rollouts",
            code="data.empty",
        )
    names, groups, lengths = _logged(run, [int(row["step"]) for row in rows])
    _refuse_flat(run, rows, groups)
    levels = levels_of(groups)
    counts = np.array([levels.counts(rewards) for rewards in groups])
    atoms = atoms_of(levels.values, base_of(counts) if len(levels.values) > 2 else None)
    prompts = {name: place for place, name in enumerate(dict.fromkeys(names))}
    columns = {name: _column(rows, name) for name in (*COUNTS, *(f"seconds/{name}" for name in PHASES), WHOLE, SAVING)}
    return LogWindow(
        run=run,
        program=program,
        config=config,
        steps=np.array([int(row["step"]) for row in rows]),
        levels=levels,
        atoms=atoms,
        counts=counts,
        prompt=np.array([prompts[name] for name in names]),
        rows=columns,
        grad_norm=_column(rows, "policy/grad_norm"),
        lasting=1 - np.cumsum(np.bincount(lengths))[:-1] / len(lengths) if lengths else np.zeros(0),
        setting=_seen(columns) if config is None else setting_of(config, str(run)),
        rule=Rule(credit or "grpo") if config is None else rule_of(config),
        epochs=1 if config is None else config.update.epochs,
        every=every,
        notes=tuple(log_notes(run)),
    )


def _refuse_flat(run: Path, rows: Sequence[Mapping[str, float]], groups: Sequence[FloatArray]) -> None:
    if not groups or all(np.ptp(rewards) == 0 for rewards in groups):
        raise ConfigError(
            f"{run}, steps {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}: the rewards of every prompt are all "
            f"equal, so no setting is known to give a gradient",
            remedy="sample more rollouts of a prompt, use easier or harder problems, or a reward with parts, and train "
            "a few steps again",
            code="config.unsupported",
        )


def _logged(run: Path, steps: Sequence[int]) -> tuple[list[str], list[FloatArray], list[int]]:
    """The prompt and the rewards [N] of each group with a verified rollout, and the known lengths of rollouts."""
    rewards_of: dict[tuple[int, str], list[float]] = {}
    lengths = list[int]()
    for step in steps:
        for row in read_rows(run, step, columns=("prompt_id", "kind", "reward", "length")):
            if row["length"] is not None:
                lengths.append(int(row["length"]))
            if row["kind"] not in NO_VERDICT and not math.isnan(row["reward"]):
                rewards_of.setdefault((step, row["prompt_id"]), []).append(row["reward"])
    return [name for _, name in rewards_of], [np.array(rewards) for rewards in rewards_of.values()], lengths


def _seen(columns: Mapping[str, FloatArray]) -> Setting:
    """The setting in the counts of steps: of a log without a configuration."""
    groups, rollouts, _, trained, _ = (columns[name] for name in COUNTS)
    n = max(2, round(float(np.nanmedian(rollouts / groups))))
    kept = max(2, round(float(np.nanmedian(trained / groups))))
    return Setting(n, min(n, kept), max(1, round(float(np.nanmedian(groups)))))


def _column(rows: Sequence[Mapping[str, float]], name: str) -> FloatArray:
    return np.array([row.get(name, math.nan) for row in rows], dtype=np.float64)


def _mean(values: FloatArray, times: FloatArray) -> float:
    known = np.where(np.isfinite(values), times, 0.0)
    return float(np.nan_to_num(values) @ known / known.sum()) if known.any() else math.nan


def _root_mean_square(values: FloatArray, times: FloatArray) -> float | None:
    """With 0 for a step without an update; None if no step has a finite one above 0."""
    squares = np.where(np.isfinite(values), values, 0.0) ** 2
    return float(np.sqrt(squares @ times / times.sum())) or None
