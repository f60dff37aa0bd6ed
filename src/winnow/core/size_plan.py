"""The sizes of a run with `plan.use = "auto"`: what it measures, and the decision before every `plan.every` steps.

Between two steps, the loop requests a decision, and takes the next steps with a run of other sizes. A step reads them
in the configuration of its members, as always, so nothing in a step is about decisions. What a decision is made from
comes from the run's log (`Logbook`), in which a step is complete or missing.

A decision is a row of JSON, from which alone the run continues: a resume takes it from decisions.jsonl, and every rank
from the writer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from winnow.algos.costs import MeasuredWork, StepClock, StepCosts
from winnow.algos.planning import Noise, second_moment
from winnow.algos.reward_mixture import RewardAtoms
from winnow.algos.size_choice import (
    FEWEST,
    MEASURED,
    SUPPOSED,
    ComparedSizes,
    SizeBounds,
    chosen,
    compare,
    moves,
    noise_factor,
    signal_share,
)
from winnow.algos.step_plan import NOISE, Setting, StepModel, StepStatistics
from winnow.algos.step_window import COLUMNS, SAVING, WHOLE, StepWindow, columns_of, lasting_of, measured_work
from winnow.config import Config
from winnow.core.members import Members
from winnow.core.sizes import SIZES, resized, rule_of, setting_of
from winnow.errors import ConfigError, DataError
from winnow.records import Group

PRODUCTS = ("policy/gradient_along", "policy/gradient_square")
KEPT = 50  # steps and evaluations whose seconds are used
LISTED = 8  # compared settings in a row
BOUNDS = ("prompts_per_step", "rollouts_per_prompt", "keep_per_prompt")  # keys of [plan]
Row = dict[str, Any]


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
    _before: Setting | None = field(init=False, default=None)  # the sizes of the window before
    _steps: list[Row] = field(init=False, default_factory=list)  # of the window
    _measured: list[MeasuredWork] = field(init=False, default_factory=list)  # steps before it, and evaluations
    _noise: float | None = field(init=False, default=None)  # times NOISE; None: not measured
    _updates: int = field(init=False, default=0)  # that it was measured on
    _expected: Row | None = field(init=False, default=None)  # by the last decision
    _decided: int = field(init=False, default=0)  # the step before which it was made
    _atoms: RewardAtoms | None = field(init=False, default=None)
    _signals: dict[Any, Any] = field(init=False, default_factory=dict)
    _resized: tuple[Setting, Members] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.setting = setting_of(self.config, "plan.use = 'auto'")

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def sized(self) -> Members:
        """The members with the sizes now."""
        if self._resized is None or self._resized[0] != self.setting:
            self._resized = self.setting, resized(self.members, self.setting)
        return self._resized[1]

    @property
    def metrics(self) -> dict[str, float]:
        """The sizes now, as metrics of a step."""
        now = self.setting
        return dict(zip(SIZES, map(float, (now.rollouts, now.kept, now.prompts)), strict=True))

    def due(self, step: int) -> bool:
        """Whether to decide before a step."""
        return step > self._decided and step % self.config.plan.every == 0 and bool(self._steps)

    def add(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Add a step that is done."""
        valid = [group.rewards[group.valid] for group in groups if group.valid.any()]
        lengths = np.concatenate([group.lengths for group in groups]) if groups else np.zeros(0, dtype=np.int64)
        names = [name for name in (*COLUMNS, *PRODUCTS) if self.costs is None or not name.startswith("seconds/")]
        row = {name: float(metrics[name]) for name in names if math.isfinite(metrics.get(name, math.nan))}
        self._steps.append(
            {"step": step, "rewards": [of.tolist() for of in valid], "lengths": np.bincount(lengths).tolist(), **row}
        )

    def add_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Add the seconds of an evaluation, which samples more rollouts than a step."""
        tokens, seconds = metrics.get("budget/evaluation_tokens", 0.0), metrics.get("eval/seconds", 0.0)
        length = metrics.get("eval/length_mean", math.nan)
        if self.costs is None and tokens > 0 and seconds > 0 and length > 0:
            self._measured = [*self._measured, MeasuredWork(tokens / length, tokens, 0.0, seconds, 0.0, 0.0)][-KEPT:]

    def decide(self, step: int) -> Row:
        """The decision before a step, as a row. Nothing changes before `apply`."""
        began = time.perf_counter()
        row: Row = {
            "window": [self._steps[0]["step"], self._steps[-1]["step"]],
            "jump": self._expected is None,
            "before": asdict(self.setting),
            "spent": self._spent(),
        }
        reason = self._without_signal()
        if reason is None:
            row |= self._compared()
        else:
            row |= {"chosen": asdict(self.setting), "reason": f"{reason}, so no setting is known to give a gradient"}
        return {**row, "seconds": time.perf_counter() - began}

    def apply(self, step: int, decision: Row) -> str | None:
        """Continue with the sizes of a decision; a sentence if they are others.

        Raises DataError for sizes outside of the bounds, which a changed decisions.jsonl may have.
        """
        self._measured = [*self._measured, *self._warm_work()][-KEPT:]
        before, after = self.setting, Setting(**decision["chosen"])
        if after != before and not self.bounds.allows(after):
            raise DataError(
                f"the decision before step {step} chose {after}, which is outside of the bounds in [plan]",
                remedy="put decisions.jsonl back as it was, or remove the row, so that the run decides anew",
                code="data.malformed",
            )
        self._before, self.setting = before, after
        noise = decision.get("noise", {})
        self._noise, self._updates = noise.get("factor", self._noise), noise.get("updates", self._updates)
        self._expected = decision.get("expected", None if self._expected is None else {})
        self._decided, self._steps = step, []
        if self.setting == before:
            return None
        return (
            f"step {step}: {before} become {self.setting}, which should make "
            f"{decision['expected']['gain']:.2f} times the progress per second"
        )

    def _warm_work(self) -> list[MeasuredWork]:
        """Work and seconds of the window's steps, without the first one of the run, which warms up."""
        warm = [step for step in self._steps if step["step"] > 0]
        return measured_work(columns_of(warm), self.config.update.epochs) if warm and self.costs is None else []

    def _spent(self) -> Row:
        """The seconds and the tokens of the window."""
        return {
            "steps": len(self._steps),
            "seconds": None if self.costs else _total(self._steps, WHOLE) - _total(self._steps, SAVING),
            "tokens": _total(self._steps, "budget/tokens_generated"),
        }

    def _without_signal(self) -> str | None:
        """Why the window shows no gradient. From flat groups alone, a fit of pass rates has only its prior."""
        groups = [rewards for step in self._steps for rewards in step["rewards"]]
        if not groups:
            return "no rollout has a verdict"
        return "the rewards of every prompt are all equal" if all(min(of) == max(of) for of in groups) else None

    def _window(self) -> StepWindow:
        steps = self._steps
        groups = [np.array(rewards) for step in steps for rewards in step["rewards"]]
        levels, atoms, counts, flat = StepWindow.counted(groups, self._atoms)
        if atoms is not self._atoms:  # signals are known by their atoms, which no later window has
            self._atoms, self._signals = atoms, {}
        longest = max(len(step["lengths"]) for step in steps)
        lengths = sum(np.pad(step["lengths"], (0, longest - len(step["lengths"]))) for step in steps)
        return StepWindow(
            steps=np.array([step["step"] for step in steps]),
            levels=levels,
            atoms=atoms,
            counts=counts,
            flat=flat,
            rows=columns_of(steps),
            grad_norm=np.full(len(steps), np.nan),  # only for AdamW's eps, which is supposed to be 0
            lasting=lasting_of(np.repeat(np.arange(longest), lengths)),
            epochs=self.config.update.epochs,
        )

    def _compared(self) -> Row:
        """What the window shows, the settings that it compares, and the one that it chooses."""
        window = self._window()
        statistics = window.statistics()
        at_once = self.config.rollout.max_rollouts_at_once
        costs = self.costs or window.costs(statistics.work, more=self._measured, at_once=at_once)
        model = self._model(NOISE)
        products = self._products(model, statistics)
        share, updates = signal_share(products), self._updates + len(products) * self.config.update.updates_per_step
        factor = self._factor(model, statistics, share)
        model = self._model(Noise(NOISE.rollout * (factor or 1.0), NOISE.between * (factor or 1.0)))
        clock = StepClock.of(costs, statistics.lasting)
        settings = moves(self.setting, self.bounds, jump=self._expected is None)
        factors = SUPPOSED if updates < FEWEST else MEASURED
        found = compare(model, settings, statistics, clock, at_once=at_once, factors=factors)
        choice = chosen(found, self.setting)
        best = next(one for one in found if one.prediction.setting == choice)
        measured = _described(statistics, window, costs, share)
        return {
            "measured": measured,
            "noise": {} if factor is None else {"factor": factor, "updates": updates},
            "outcome": None if not self._expected else self._outcome(measured),
            "compared": [_listed(one) for one in found[:LISTED]],
            "settings": len(found),
            "chosen": asdict(choice),
            "expected": {
                "gain": best.gains[1],
                "least_gain": best.least,
                "seconds": best.prediction.seconds.total,
                "tokens": best.prediction.work.tokens_generated,
                "flat": best.prediction.flat,
                "signal_share": _share(model, statistics, choice),
            },
        }

    def _model(self, noise: Noise) -> StepModel:
        return StepModel(
            self.setting,
            rule_of(self.config),
            noise,
            law="fixed",  # as the learning rate stays
            epochs=self.config.update.epochs,
            updates=self.config.update.updates_per_step,
            trains_all=self.members.objective.trains_all,
            _signals=self._signals,
        )

    def _products(self, model: StepModel, statistics: StepStatistics) -> list[tuple[float, float]]:
        """The products (g m, g g) of the window's steps that have them. AdamW's mean m also has gradients of the sizes
        before, whose signal was another one, so g m is divided by what that makes of it.
        """
        before = self._before or self.setting
        ratio = model.signal(statistics.mixture, before).signal / max(
            1e-12, model.signal(statistics.mixture, self.setting).signal
        )
        decay, updates = self.config.optimizer.betas[0], self.config.update.updates_per_step
        pairs = []
        for place, step in enumerate(self._steps):
            old = decay ** (place * updates)
            along, square = (step.get(name, math.nan) for name in PRODUCTS)
            pairs.append((along / (1 - old + old * ratio) if old < 1 or ratio > 0 else math.nan, square))
        return [pair for pair in pairs if all(map(math.isfinite, pair))]

    def _factor(self, model: StepModel, statistics: StepStatistics, share: float | None) -> float | None:
        """The noise, times the supposed one: of this window and the earlier ones, each with half the weight of the one
        after it. None if it was never measured.
        """
        if share is None:
            return self._noise
        prompts = self.setting.prompts / self.config.update.updates_per_step
        now = noise_factor(share, model.signal(statistics.mixture, self.setting), prompts, model.noise)
        return now if self._noise is None else math.sqrt(now * self._noise)

    def _outcome(self, measured: Row) -> Row:
        """What came of the last decision: (expected, measured) by name."""
        expected = self._expected or {}
        return {
            name: [expected[name], measured[name]] for name in ("seconds", "tokens", "flat", "signal_share") if expected
        }

    def state_dict(self) -> Row:
        """The state of a checkpoint, for JSON."""
        return {
            "start": self._start(),
            "setting": asdict(self.setting),
            "before": None if self._before is None else asdict(self._before),
            "steps": list(self._steps),
            "measured": [list(vars(one).values()) for one in self._measured],
            "noise": self._noise,
            "updates": self._updates,
            "expected": self._expected,
            "decided": self._decided,
        }

    def _start(self) -> Row:
        """The configured sizes and bounds, for JSON."""
        ends = self.config.plan.model_dump(mode="json", include={*BOUNDS})
        return {**ends, "sizes": asdict(setting_of(self.config, "plan.use = 'auto'"))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. With other configured sizes or bounds, or too few prompts, which a resume has to
        allow, the run starts with the configured sizes, and chooses as at its beginning.
        """
        restored = Setting(**state["setting"])
        if state["start"] != self._start() or restored.prompts > self.bounds.prompts[1]:
            return
        self.setting = restored
        self._before = None if state["before"] is None else Setting(**state["before"])
        self._steps = list(state["steps"])
        self._measured = [MeasuredWork(*of) for of in state["measured"]]
        self._noise, self._updates, self._expected, self._decided = (
            state[name] for name in ("noise", "updates", "expected", "decided")
        )


def _total(steps: Sequence[Row], name: str) -> float:
    return float(sum(step.get(name, 0.0) for step in steps))


def _share(model: StepModel, statistics: StepStatistics, setting: Setting) -> float:
    """S^2 / M of a setting, as expected."""
    group = model.signal(statistics.mixture, setting)
    moment = second_moment(group, setting.prompts / model.updates, model.noise)
    return group.signal**2 / moment if moment > 0 else 0.0


def _described(statistics: StepStatistics, window: StepWindow, costs: StepCosts, share: float | None) -> Row:
    """What a window shows, per step, as a row."""
    mixture, work = statistics.mixture, statistics.work
    few, more = costs.sampling.seconds[:2]
    each = (more - few) / (costs.sampling.rollouts[1] - costs.sampling.rollouts[0]) if costs.open_ended else math.nan
    spent = {
        "per_pass": (few - each) / float(statistics.lasting.sum()),
        "per_token": each / statistics.length,
    }
    return {
        "groups": len(window.counts),
        "reward": mixture.mean,
        "reward_variance": mixture.variance,
        "never": mixture.share(0.0, 0.05),
        "always": mixture.share(0.95, 1.0),
        "length": statistics.length,
        "flat": float(window.flat.mean()),
        "tokens": work.tokens_generated,
        "tokens_trained": work.tokens_trained,
        "seconds": sum(statistics.seconds.values()) or None,
        "signal_share": share,
        "costs": costs.source,
        **({} if not costs.open_ended else {"sampling": spent}),
    }


def _listed(one: ComparedSizes) -> Row:
    prediction = one.prediction
    return {
        **asdict(prediction.setting),
        "gain": one.gains[1],
        "least_gain": one.least,
        "seconds": prediction.seconds.total,
        "flat": prediction.flat,
    }
