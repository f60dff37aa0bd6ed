"""A decision of a run that chooses its sizes: what a row of decisions.jsonl contains, and the choice that follows.

`decided` is the only implementation. The run calls it with a new row, and anyone can call it with a row of the file: it
returns the same choice and the same forecast. It reads these keys of the row:

    run       what stays: bounds, advantage, law, supposed noise, epochs, updates, AdamW's decay of the mean gradient,
              the rollouts that are sampled side by side, and costs if a file gives them
    before    the sizes of the steps that were measured
    jump      whether every setting within the bounds is compared, and not only those that differ by a factor of 2
    whole     whether a whole window was measured. If not, the choice has to be certain, or the run waits
    evidence  what was measured: `evidence_of`, and what earlier windows have left: their work and seconds, the sizes
              before, the noise with the number of its updates, and what was expected of these steps

All other keys of a row are results, or for readers. JSON keeps every bit of a float.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from winnow.algos.advantage import is_flat
from winnow.algos.costs import CostCurve, MeasuredWork, StepClock, StepCosts
from winnow.algos.planning import Noise, Rule, second_moment
from winnow.algos.reward_mixture import levels_of
from winnow.algos.size_choice import (
    FEWEST,
    LEAST_GAIN,
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
from winnow.algos.step_window import COLUMNS, StepWindow, atoms_for, lasting_of

PRODUCTS = ("policy/gradient_along", "policy/gradient_square")
LISTED = 8  # compared settings in a row
FIRST = 2  # steps of the first look of a window in which the run may jump; the next looks are after twice as many
DRAWS = 16  # of groups, for the standard error of a gain
SCATTER = 0.1  # supposed standard deviation of the logarithm of a phase's seconds in a step
CERTAIN = 2.0  # standard errors by which the logarithm of a gain has to exceed the least one before a whole window
Row = dict[str, Any]


def run_of(bounds: SizeBounds, rule: Rule, costs: StepCosts | None, **numbers: Any) -> Row:
    """The part of a row that stays in a run. `numbers` are epochs, updates, trains_all, decay and at_once."""
    given = None if costs is None else json.loads(json.dumps(asdict(costs), default=lambda array: array.tolist()))
    law = {"law": "fixed", "noise": asdict(NOISE)}  # as the learning rate stays
    return {"bounds": asdict(bounds), "rule": asdict(rule), **law, **numbers, "costs": given}


def _curve(row: Row) -> CostCurve:
    return CostCurve(**{**row, "rollouts": np.array(row["rollouts"]), "seconds": np.array(row["seconds"])})


def evidence_of(steps: Sequence[Mapping[str, Any]]) -> Row:
    """What steps have measured: their numbers, how many groups have which rewards, and how many rollouts which length.

    A step has its number `step`, COLUMNS and PRODUCTS as far as they are known, the `rewards` of its verified rollouts
    with the `sizes` of their groups, and `lengths`, a count for each length. Rewards of many values are reduced to
    levels, and groups of equal rewards are marked before that.
    """
    sizes = np.array([size for step in steps for size in step["sizes"]], dtype=np.int64)
    rewards = np.concatenate([step["rewards"] for step in steps])
    longest = max(len(step["lengths"]) for step in steps)
    lengths = np.zeros(longest, dtype=np.int64)
    for step in steps:
        lengths[: len(step["lengths"])] += step["lengths"]
    seen = np.flatnonzero(lengths)
    found: Row = {
        "steps": {name: [step.get(name) for step in steps] for name in ("step", *COLUMNS, *PRODUCTS)},
        "lengths": [seen.tolist(), lengths[seen].tolist()],
        "levels": [],
        "groups": [],
    }
    if not len(sizes):
        return found
    flat = np.array([is_flat(group) for group in np.split(rewards, np.cumsum(sizes)[:-1])])
    if flat.all():
        return {**found, "groups": [{"flat": True, "times": len(sizes)}]}
    levels = levels_of(rewards)
    kinds = Counter(zip(map(tuple, levels.counts(rewards, sizes).tolist()), flat.tolist(), strict=True))
    groups = [{"counts": counts, "flat": same, "times": times} for (counts, same), times in kinds.items()]
    return {**found, "levels": levels.values.tolist(), "groups": groups}


def looks(steps: int) -> bool:
    """Whether a run that may jump looks at its measurement after so many steps of a window, before its end."""
    return steps >= FIRST and steps & (steps - 1) == 0


def decided(row: Mapping[str, Any]) -> Row:
    """What follows from a row: the sizes that are `chosen`, and unless there is only a `reason` to stay, what was
    `measured` and `compared`, and what is `expected` of the choice. With `waits`, the window goes on at the same sizes.
    """
    evidence = row["evidence"]
    if all(group["flat"] for group in evidence["groups"]):  # from these alone, a fit of pass rates has only its prior
        why = "the rewards of every prompt are all equal" if evidence["groups"] else "no rollout has a verdict"
        reason = f"{why}, so no setting is known to give a gradient"
        return {"chosen": row["before"], "reason": reason, "waits": not row["whole"]}
    basis = _Basis(row)
    settings = moves(basis.current, _bounds(row["run"]), jump=row["jump"])
    found = basis.compare(settings, basis.statistics)
    measured = basis.described()
    result: Row = {
        "measured": measured,
        "noise": {} if basis.factor is None else {"factor": basis.factor, "updates": basis.updates},
        "outcome": _outcome(evidence["expected"] or {}, measured),
        "compared": [_listed(one) for one in found[:LISTED]],
        "settings": len(found),
    }
    if not row["whole"]:
        result["error"] = error = basis.error(found[0])
        if not _certain(found[0].least, error):
            return {**result, "chosen": row["before"], "reason": "no gain is certain yet", "waits": True}
    choice = chosen(found, basis.current)
    return {**result, "chosen": asdict(choice), "expected": basis.expected(found, choice), "waits": False}


class _Basis:
    """What the settings of a row are compared with: the fits to its evidence."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.row, self.run, self.evidence = row, row["run"], row["evidence"]
        self.current = Setting(**row["before"])
        groups = self.evidence["groups"]
        self.times = np.array([group["times"] for group in groups], dtype=np.float64)
        counts = np.array([group["counts"] for group in groups], dtype=np.int64)
        steps = self.evidence["steps"]
        self.window = StepWindow(
            steps=np.array(steps["step"]),
            atoms=atoms_for(self.evidence["levels"], counts * self.times.astype(np.int64)[:, None]),
            counts=counts,
            flat=np.array([group["flat"] for group in groups], dtype=np.bool_),
            rows=dict(zip(COLUMNS, np.array([steps[name] for name in COLUMNS], np.float64), strict=True)),
            grad_norm=np.full(len(steps["step"]), np.nan),  # only for AdamW's eps, which is supposed to be 0
            lasting=lasting_of(*self.evidence["lengths"]),
            epochs=self.run["epochs"],
        )
        self.statistics = self.window.statistics(self.times)
        self.costs = self._costs()
        supposed = self._model()
        products = self._products(supposed)
        self.updates = self.evidence["updates"] + len(products) * self.run["updates"]
        self.share = signal_share(products)
        self.factor = self._factor(supposed, self.share if row["whole"] or len(products) > 1 else None)
        self.model = replace(supposed, noise=supposed.noise.times(self.factor or 1.0))

    def compare(self, settings: Sequence[Setting], statistics: StepStatistics) -> list[ComparedSizes]:
        factors = SUPPOSED if self.updates < FEWEST else MEASURED
        clock = StepClock(self.costs, statistics.lasting)
        return compare(self.model, settings, statistics, clock, at_once=self.run["at_once"], factors=factors)

    def error(self, one: ComparedSizes) -> float:
        """Standard error of the logarithm of a setting's least gain: as the seconds of the phases of a few steps
        scatter, and by other draws of the groups unless these seconds alone make the gain uncertain.
        """
        warm = int((self.window.steps > 0).sum())
        scatter = 0.0 if self.run["costs"] else SCATTER / max(1, warm) ** 0.5
        if not _certain(one.least, scatter):
            return scatter
        total, rng = int(self.times.sum()), np.random.default_rng(0)
        pair, logs = sorted({self.current, one.prediction.setting}), []
        for _ in range(DRAWS):
            drawn = self.window.statistics(rng.multinomial(total, self.times / total).astype(np.float64))
            again = {other.prediction.setting: other.least for other in self.compare(pair, drawn)}
            logs.append(math.log(max(again[one.prediction.setting], 1e-12)))
        return math.hypot(float(np.std(logs, ddof=1)), scatter)

    def _costs(self) -> StepCosts:
        if self.run["costs"]:
            curves = {name: _curve(self.run["costs"][name]) for name in ("sampling", "update")}
            return StepCosts(**{**self.run["costs"], **curves})
        more = [MeasuredWork(*of) for of in self.evidence["work"]]
        return self.window.costs(self.statistics.work, more=more, at_once=self.run["at_once"])

    def _model(self) -> StepModel:
        """With the supposed noise."""
        return StepModel(
            self.current,
            Rule(**self.run["rule"]),
            Noise(**self.run["noise"]),
            law=self.run["law"],
            epochs=self.run["epochs"],
            updates=self.run["updates"],
            trains_all=self.run["trains_all"],
        )

    def _products(self, model: StepModel) -> list[tuple[float, float]]:
        """The products (g m, g g) of the window's steps that have them. AdamW's mean m also has gradients of the sizes
        before, whose signal was another one, so g m is divided by what that makes of it.
        """
        mixture, sizes = self.statistics.mixture, self.evidence["earlier"]
        earlier = self.current if sizes is None else Setting(**sizes)
        ratio = model.signal(mixture, earlier).signal / max(1e-12, model.signal(mixture, self.current).signal)
        columns, updates = [self.evidence["steps"][name] for name in PRODUCTS], self.run["updates"]
        before, pairs = int(self.window.steps[0]) * updates, []
        for place, (along, square) in enumerate(zip(*columns, strict=True)):
            old = weight_before(self.run["decay"], before, range(place * updates, (place + 1) * updates))
            if along is not None and square is not None and (old < 1 or ratio > 0):
                pairs.append((float(along / (1 - old + old * ratio)), square))
        return pairs

    def _factor(self, model: StepModel, share: float | None) -> float | None:
        """The noise, times the supposed one: of this window and the earlier ones, each with half the weight of the one
        after it. None if it was never measured.
        """
        before: float | None = self.evidence["noise"]
        if share is None:
            return before
        prompts = self.current.prompts / self.run["updates"]
        group = model.signal(self.statistics.mixture, self.current)
        flat = 0.0 if self.run["trains_all"] else 1 - min(1.0, group.learning)
        taken = 1 - flat**prompts  # the products are of the updates that were taken
        now = noise_factor(share * taken, group, prompts, model.noise)
        return now if before is None else math.sqrt(now * before)

    def described(self) -> Row:
        """What the window shows, per step."""
        statistics, costs = self.statistics, self.costs
        mixture, work = statistics.mixture, statistics.work
        found: Row = {
            "groups": int(self.times.sum()),
            "reward": mixture.mean,
            "reward_variance": mixture.variance,
            "never": mixture.share(0.0, 0.05),
            "always": mixture.share(0.95, 1.0),
            "length": statistics.length,
            "flat": float(self.window.flat @ self.times / self.times.sum()),
            "tokens": work.tokens_generated,
            "tokens_trained": work.tokens_trained,
            "seconds": sum(statistics.seconds.values()) or None,
            "signal_share": self.share,
            "costs": costs.source,
        }
        if costs.open_ended:
            few, more = costs.sampling.seconds.tolist()
            passes, each = float(statistics.lasting.sum()), more - few
            found["sampling"] = {"per_pass": (few - each) / passes, "per_token": each / statistics.length}
        return found

    def expected(self, found: Sequence[ComparedSizes], choice: Setting) -> Row:
        """What is expected of a step of the chosen setting."""
        best = next(one for one in found if one.prediction.setting == choice)
        group = self.model.signal(self.statistics.mixture, choice)
        moment = second_moment(group, choice.prompts / self.model.updates, self.model.noise)
        return {
            "gain": best.gains[1],
            "least_gain": best.least,
            "seconds": best.prediction.seconds.total,
            "tokens": best.prediction.work.tokens_generated,
            "flat": best.prediction.flat,
            "signal_share": float(group.signal**2 / moment) if moment > 0 else 0.0,
        }


def weight_before(decay: float, before: int, since: Sequence[int]) -> float:
    """The weight of the updates `before` a window in AdamW's mean gradient, without its bias: the mean over updates of
    the window, which have so many others of it `since` then.
    """
    weights = [decay**new * (1 - decay**before) / (1 - decay ** (before + new)) for new in since] if before else [0.0]
    return sum(weights) / len(weights)


def _certain(gain: float, error: float) -> bool:
    """Whether a gain exceeds the least one by CERTAIN standard errors of its logarithm."""
    return gain >= LEAST_GAIN * math.exp(CERTAIN * error)


def _outcome(expected: Row, measured: Row) -> Row | None:
    """What came of the last decision: (expected, measured) by name; None if there was none."""
    names = ("seconds", "tokens", "flat", "signal_share")
    return {name: [expected[name], measured[name]] for name in names} if expected else None


def _listed(one: ComparedSizes) -> Row:
    return {
        **asdict(one.prediction.setting),
        "gain": one.gains[1],
        "least_gain": one.least,
        "seconds": one.prediction.seconds.total,
        "flat": one.prediction.flat,
    }


def _bounds(run: Row) -> SizeBounds:
    ends = run["bounds"]
    return SizeBounds(tuple(ends["rollouts"]), tuple(ends["kept"]), tuple(ends["prompts"]), ends["keeps_all"])
