"""The sizes of a run with `plan.use = "auto"`: what it measures, and the decision before every `plan.every` steps.

Between two steps, the loop requests a decision, and takes the next steps with a run of other sizes. A step reads them
in the configuration of its members, as always, so nothing in a step is about decisions. What a decision is made from
comes from the run's log (`Logbook`), in which a step is complete or missing.

A decision is a row of JSON, from which alone the run continues: a resume takes it from decisions.jsonl, and every rank
from the writer. The row has all that the choice follows from, which winnow.algos.size_decision computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from winnow import ranks
from winnow.algos.costs import MeasuredWork, StepCosts
from winnow.algos.size_choice import SizeBounds
from winnow.algos.size_decision import PRODUCTS, Row, decided, evidence_of, looks, run_of
from winnow.algos.step_plan import Setting
from winnow.algos.step_window import COLUMNS, SAVING, WHOLE, columns_of, measured_work
from winnow.config import Config
from winnow.core.members import Members
from winnow.core.sizes import SIZES, resized, rule_of, setting_of
from winnow.errors import ConfigError, DataError
from winnow.records import Group

KEPT = 50  # steps and evaluations whose seconds are used
ARRAYS = ("rewards", "lengths")  # of a step
BOUNDS = ("prompts_per_step", "rollouts_per_prompt", "keep_per_prompt")  # keys of [plan]
MEASURES = ("noise", "updates", "expected")  # what a row and a state name alike of what earlier windows have left
# The sizes before; work and seconds of steps and evaluations; the noise (times NOISE; None: not measured), and the
# updates that it was measured on; what the last decision expected
NOTHING: Row = {"earlier": None, "work": [], "noise": None, "updates": 0, "expected": None}


def bounds_of(config: Config, *, problems: float = math.inf, ranks: int = 1) -> SizeBounds:
    """What the run may choose, at most `problems` prompts, and at least one per rank and update.

    Raises ConfigError if the configured sizes are outside.
    """
    now, plan = setting_of(config, "plan.use = 'auto'"), config.plan
    least = max(ranks, config.update.updates_per_step)
    few, many = plan.prompts_per_step or (max(1, now.prompts // 4), 4 * now.prompts)
    rollouts, keeps_all = plan.rollouts_per_prompt or (2, 4 * now.rollouts), config.select[0].use == "all"
    kept = plan.keep_per_prompt or (rollouts if keeps_all else (2, 4 * now.kept))
    bounds = SizeBounds(
        rollouts=(max(2, rollouts[0]), rollouts[1]),
        kept=(max(2, kept[0]), kept[1]),
        prompts=(max(least, few), int(min(many, problems))),
        keeps_all=keeps_all,
    )
    for key, size, (low, high) in (
        ("plan.rollouts_per_prompt", now.rollouts, bounds.rollouts),
        ("plan.keep_per_prompt", now.kept, bounds.kept),
        ("plan.prompts_per_step", now.prompts, bounds.prompts),
    ):
        if not low <= size <= high:
            raise ConfigError(
                f"{key}: the run starts with {size}, and may choose from {low} to {high}",
                remedy="start within the bounds, or widen them",
                key=key,
                code="config.combination",
            )
    return bounds


def largest(members: Members, *, problems: float = math.inf, ranks: int = 1) -> Members:
    """The members with the sizes that need the most memory: the largest that the run may choose, or the fixed ones."""
    if members.config.plan.use == "fixed":
        return members
    return resized(members, bounds_of(members.config, problems=problems, ranks=ranks).largest)


@dataclass
class RunSizes:
    """The sizes now, and what the run has measured since the last decision."""

    members: Members
    bounds: SizeBounds
    costs: StepCosts | None = None  # given ones, in place of those that the run measures
    setting: Setting = field(init=False)
    sized: Members = field(init=False)  # the members with the sizes now
    _steps: list[Row] = field(init=False, default_factory=list)  # of the window
    _left: Row = field(init=False, default_factory=lambda: NOTHING)  # by earlier windows; replaced, never changed
    _decided: int = field(init=False, default=0)  # the step before which the last decision was made

    def __post_init__(self) -> None:
        self._take(setting_of(self.config, "plan.use = 'auto'"))

    def _take(self, setting: Setting) -> None:
        self.setting, self.sized = setting, resized(self.members, setting)

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def metrics(self) -> dict[str, float]:
        """The sizes now, as metrics of a step."""
        now = self.setting
        return dict(zip(SIZES, map(float, (now.rollouts, now.kept, now.prompts)), strict=True))

    def due(self, step: int) -> bool:
        """Whether to decide before a step: at the end of a window, and earlier as long as the run may jump."""
        if step <= self._decided or not self._steps:
            return False
        return step % self.config.plan.every == 0 or (self._left["expected"] is None and looks(len(self._steps)))

    def add(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Add a step that is done."""
        valid = [of for group in groups if len(of := group.rewards[group.valid])]
        lengths = np.concatenate([group.lengths for group in groups]) if groups else np.zeros(0, dtype=np.int64)
        names = [name for name in (*COLUMNS, *PRODUCTS) if self.costs is None or not name.startswith("seconds/")]
        row = {name: float(metrics[name]) for name in names if math.isfinite(metrics.get(name, math.nan))}
        rewards, sizes = np.concatenate(valid) if valid else np.zeros(0), [len(of) for of in valid]
        self._steps.append({"step": step, "rewards": rewards, "sizes": sizes, "lengths": np.bincount(lengths), **row})

    def add_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Add the seconds of an evaluation, which samples more rollouts than a step, unless it samples others: of
        further tasks, which have other lengths, or with an engine that evaluates in another precision.
        """
        tokens, seconds = metrics.get("budget/evaluation_tokens", 0.0), metrics.get("eval/seconds", 0.0)
        length, others = metrics.get("eval/length_mean", math.nan), bool(self.config.evaluate.tasks)
        if "eval/weight_bits" in metrics or others or self.costs is not None:
            return
        if tokens > 0 and seconds > 0 and length > 0:
            work = list(MeasuredWork(tokens / length, tokens, 0.0, seconds, 0.0, 0.0))
            self._left = {**self._left, "work": [*self._left["work"], work][-KEPT:]}

    def decide(self, step: int) -> Row:
        """The decision before a step, as a row. Nothing changes before `apply`."""
        began = time.perf_counter()
        row: Row = {
            "window": [self._steps[0]["step"], self._steps[-1]["step"]],
            "jump": self._left["expected"] is None,
            "whole": step % self.config.plan.every == 0,
            "before": asdict(self.setting),
            "spent": {
                "steps": len(self._steps),
                "seconds": None if self.costs else _total(self._steps, WHOLE) - _total(self._steps, SAVING),
                "tokens": _total(self._steps, "budget/tokens_generated"),
            },
            "run": self._run,
            "evidence": {**evidence_of(self._steps), **self._left},
        }
        row |= decided(row)
        return {**row, "seconds": time.perf_counter() - began}

    @cached_property
    def _run(self) -> Row:
        """What a row has of the configuration."""
        update = self.config.update
        return run_of(
            self.bounds,
            rule_of(self.config),
            self.costs,
            epochs=update.epochs,
            updates=update.updates_per_step,
            trains_all=self.members.objective.trains_all,
            decay=self.config.optimizer.betas[0],
            at_once=ranks.count() * self.config.rollout.max_rollouts_at_once,  # each rank has an engine
        )

    def apply(self, step: int, decision: Row) -> str | None:
        """Continue with the sizes of a decision, or with the window if it waits; a sentence if the sizes are others.

        Raises DataError for sizes outside of the bounds, which a changed decisions.jsonl may have.
        """
        self._decided = step
        if decision.get("waits"):
            return None
        before, after = self.setting, Setting(**decision["chosen"])
        if after != before and not self.bounds.allows(after):
            raise DataError(
                f"the decision before step {step} chose {after}, which is outside of the bounds in [plan]",
                remedy="put decisions.jsonl back as it was, or remove the row, so that the run decides anew",
                code="data.malformed",
            )
        self._take(after)
        left, noise = self._left, decision.get("noise", {})
        self._left = {
            "earlier": asdict(before),
            "work": [*left["work"], *self._warm_work()][-KEPT:],
            "noise": noise.get("factor", left["noise"]),
            "updates": noise.get("updates", left["updates"]),
            "expected": decision.get("expected", None if left["expected"] is None else {}),
        }
        self._steps = []
        if self.setting == before:
            return None
        return (
            f"step {step}: {before} become {self.setting}, which should make "
            f"{decision['expected']['gain']:.2f} times the progress per second"
        )

    def _warm_work(self) -> list[list[float]]:
        """Work and seconds of the window's steps, without the first one of the run, which warms up."""
        warm = [step for step in self._steps if step["step"] > 0] if self.costs is None else []
        return [list(one) for one in measured_work(columns_of(warm), self.config.update.epochs)] if warm else []

    def state_dict(self) -> Row:
        """The state of a checkpoint, for JSON."""
        return {
            "start": self._start(),
            "setting": asdict(self.setting),
            "before": self._left["earlier"],
            "steps": [{**step, **{name: step[name].tolist() for name in ARRAYS}} for step in self._steps],
            "measured": self._left["work"],
            **{name: self._left[name] for name in MEASURES},
            "decided": self._decided,
        }

    def _start(self) -> Row:
        """The configured sizes and bounds, and the number of ranks, for JSON."""
        ends = self.config.plan.model_dump(mode="json", include={*BOUNDS})
        return {**ends, "sizes": asdict(setting_of(self.config, "plan.use = 'auto'")), "ranks": ranks.count()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. With other configured sizes or bounds, another number of ranks, or too few
        prompts, the run starts with the configured sizes, and chooses as at its beginning.
        """
        restored = Setting(**state["setting"])
        low, high = self.bounds.prompts
        if state["start"] != self._start() or not low <= restored.prompts <= high:
            return
        self._take(restored)
        self._steps = [{**step, **{name: np.array(step[name]) for name in ARRAYS}} for step in state["steps"]]
        left = {name: state[name] for name in MEASURES}
        self._left, self._decided = {"earlier": state["before"], "work": state["measured"], **left}, state["decided"]


def _total(steps: Sequence[Row], name: str) -> float:
    return float(sum(step.get(name, 0.0) for step in steps))
