"""What a plan reads of a run's last steps: rewards by prompt, tokens and seconds by step. From winnow's log or another.

Means over the steps, and over steps and prompts that are drawn again, are statistics that winnow.algos.step_plan takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.algos.advantage import is_flat
from winnow.algos.planning import CreditName, Rule
from winnow.algos.reward_mixture import Levels, levels_of
from winnow.algos.size_choice import FEWEST
from winnow.algos.step_plan import Setting
from winnow.algos.step_window import COUNTS, StepWindow, atoms_for, columns_of, lasting_of
from winnow.config import Config
from winnow.config_file import validate
from winnow.core.sizes import logged_setting, rule_of, setting_of
from winnow.errors import ConfigError, DataError
from winnow.metrics import is_step
from winnow.records import NO_VERDICT, FloatArray, IntArray
from winnow.run_view.configuration import Evaluations, evaluations
from winnow.state.decisions import read_decisions
from winnow.state.foreign import open_log
from winnow.state.logbook import log_notes, read_metrics, read_rows
from winnow.state.rollout_files import files_in
from winnow.state.saved_runs import manifest_of


@dataclass(frozen=True, eq=False, kw_only=True)
class LogWindow(StepWindow):
    """The last steps of a run whose rollouts are logged."""

    run: Path
    program: str
    levels: Levels
    explained: float  # share of the rewards' variance within prompts that the levels have
    config: Config | None  # of a run of winnow
    prompt: IntArray  # [G] the place of the group's prompt among the distinct prompts
    setting: Setting
    rule: Rule
    every: list[dict[str, float]]  # all rows of the run's metrics
    evaluated: Evaluations  # those that can be compared with each other
    noise: float | None  # times the supposed one, if the run chooses its sizes and has measured it
    notes: tuple[str, ...]


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
    rows = _of_one_setting([row for row in every if row["step"] in logged and (is_step(row) or not own)][-window:])
    log = open_log(run)
    if not rows and log is not None:
        raise log.no_rollouts(None)
    if not rows:
        raise DataError(
            f"{run} has no finished step whose rollouts are logged, so its prompts' pass rates are unknown",
            remedy='train a few steps with log.rollouts = "all" (or "kept"), and plan again',
            key="log.rollouts",
            code="data.empty",
        )
    # Of a rollout that is logged without its tokens, those of an environment cannot be told from the policy's
    masked = config is not None and config.environment is not None and config.log.rollouts == "kept"
    names, groups, lengths, seen = _logged(run, [int(row["step"]) for row in rows], masked=masked)
    sampled = sum(row.get("budget/rollouts", 0.0) for row in rows)
    if not own and seen < sampled:  # those that are left were selected by their rewards
        raise ConfigError(
            f"{run} has {seen} of the {sampled:.0f} sampled rollouts, so its prompts' pass rates are unknown",
            remedy="plan from a run that trains on all of its rollouts",
            code="config.unsupported",
        )
    _refuse_flat(run, rows, groups)
    rewards, sizes = np.concatenate(groups), np.array([len(of) for of in groups])
    levels = levels_of(rewards)
    counts = levels.counts(rewards, sizes)
    prompts = {name: place for place, name in enumerate(dict.fromkeys(names))}
    columns = columns_of(rows)
    if lacking := [name for name in (*COUNTS[:2], COUNTS[3]) if not np.isfinite(columns[name]).any()]:
        raise DataError(
            f"{run}: its metrics have no number of {', '.join(lacking)}, from which a step's work is computed",
            remedy="put metrics.jsonl back as it was",
            code="data.incomplete",
        )
    return LogWindow(
        run=run,
        program=program,
        config=config,
        steps=np.array([int(row["step"]) for row in rows]),
        levels=levels,
        explained=levels.explained(rewards, sizes),
        atoms=atoms_for(levels.values.tolist(), counts),
        counts=counts,
        flat=np.array([is_flat(of) for of in groups], dtype=np.bool_),
        prompt=np.array([prompts[name] for name in names]),
        rows=columns,
        grad_norm=columns_of(rows, ["policy/grad_norm"])["policy/grad_norm"],
        lasting=lasting_of(lengths),
        setting=_seen(columns) if config is None else logged_setting(rows[-1]) or setting_of(config, str(run)),
        rule=Rule(credit or "grpo") if config is None else rule_of(config),
        epochs=1 if config is None else config.update.epochs,
        every=every,
        evaluated=evaluations(manifest.data),
        noise=_measured_noise(run) if own else None,
        notes=tuple(log_notes(run)),
    )


def _measured_noise(run: Path) -> float | None:
    """By the last decision that has one of enough updates."""
    noises = [row.get("noise") or {} for row in read_decisions(run).values()]
    measured = [float(noise["factor"]) for noise in noises if noise.get("updates", 0) >= FEWEST]
    return measured[-1] if measured else None


def _of_one_setting(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The last of these rows that have the sizes of the last one: a run may choose its sizes itself."""
    others = [place for place, row in enumerate(rows) if logged_setting(row) != logged_setting(rows[-1])]
    return rows[max(others, default=-1) + 1 :]


def _refuse_flat(run: Path, rows: Sequence[Mapping[str, float]], groups: Sequence[FloatArray]) -> None:
    if all(map(is_flat, groups)):
        raise ConfigError(
            f"{run}, steps {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}: the rewards of every prompt are all "
            f"equal, so no setting is known to give a gradient",
            remedy="sample more rollouts of a prompt, use easier or harder problems, or a reward with parts, and train "
            "a few steps again",
            code="config.unsupported",
        )


def _logged(run: Path, steps: Sequence[int], *, masked: bool) -> tuple[list[str], list[FloatArray], list[int], int]:
    """The prompt and the rewards [N] of each group with a verified rollout, the known lengths of rollouts (if `masked`,
    those of kept ones alone), and the number of logged rollouts.
    """
    rewards_of: dict[tuple[int, str], list[float]] = {}
    lengths, seen = list[int](), 0
    for step in steps:
        for row in read_rows(run, step, columns=("prompt_id", "kind", "reward", "length", "trainable", "keep")):
            seen += 1
            if row["length"] is not None and (row["keep"] or not masked):
                own = row["trainable"]  # the policy's, if it is logged
                lengths.append(int(row["length"] if own is None else np.count_nonzero(own)))
            if row["kind"] not in NO_VERDICT and not math.isnan(row["reward"]):
                rewards_of.setdefault((step, row["prompt_id"]), []).append(row["reward"])
    return [name for _, name in rewards_of], [np.array(rewards) for rewards in rewards_of.values()], lengths, seen


def _seen(columns: Mapping[str, FloatArray]) -> Setting:
    """The setting in the counts of steps: of a log without a configuration."""
    groups, rollouts, _, trained, _ = (columns[name] for name in COUNTS)
    n = max(2, round(float(np.nanmedian(rollouts / groups))))
    kept = max(2, round(float(np.nanmedian(trained / groups))))
    return Setting(n, min(n, kept), max(1, round(float(np.nanmedian(groups)))))
