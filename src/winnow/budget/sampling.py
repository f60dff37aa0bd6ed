"""Which prompts a step takes: (table of P prompts, state, rng, count) -> `count` different rows, and the next state.

A rule reads the results so far from a `PromptTable`, and what it needs besides from `state`: a mapping of texts to
numbers or arrays, {} before the first draw. `rng(name, number)` returns a numpy generator that depends on its arguments
alone, so equal arguments give an equal draw. Nothing is changed in place. P is the number of prompts.

Candidates come from one permutation of all prompts after another, each an epoch; a rule continues where its last draw
ended. A rule computes scores for at most `MOST_CANDIDATES` candidates of a draw.

**Nothing starves.** Every rule but `uniform` first takes prompts whose last draw is more than `patience` epochs ago:
the oldest, at most half of a draw. An epoch is as many draws of single prompts as there are prompts, whichever they
are. So a prompt waits at most `patience` + 2 epochs and two draws. This is ours; no cited paper has such a bound.
`uniform` visits each prompt in each epoch, except for those that are left over where P is no multiple of `count`: a
prompt is left over in k successive epochs with the probability ((P mod count) / P)^k.

Every rule raises ValueError for an option outside its range, and for a draw of less than one prompt or more than P.

**A rule that prefers some prompts changes the objective** to a mean that weighs them more. `uniform` has none. `greso`
and `cures` return the probability that a draw has each of its rows, which is above 0 for every prompt of the table. The
sum over a draw of a prompt's number over (P times this probability) then estimates the mean over all prompts (Horvitz
and Thompson 1952). The other rules take the prompts that are best by some score, so the probability of the rest is 0.

Two further differences are common to all rules. "Right" and "wrong" are verdicts, where several of the papers compare
rewards with thresholds. A prompt without a verdict has no result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from winnow.bounds import AboveZeroToOne, AtLeastOne, Finite, Natural, Positive, ZeroToOne
from winnow.budget.arguments import check_count, check_integers, check_number, check_numbers, check_rows, ranged
from winnow.budget.pass_rates import add_visit, posterior_mean, rates
from winnow.records import BoolArray, FloatArray, IntArray

MOST_CANDIDATES = 2_048  # per draw, unless a draw takes more prompts

State = Mapping[str, Any]
Streams = Callable[[str, int], np.random.Generator]


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptTable:
    """The results of P prompts so far, a row each. A visit is a step that judged at least one of its rollouts. Raises
    ValueError for columns that are not [P], and for a negative number of draws.

    >>> table = PromptTable.empty(3).drawn(np.array([2, 0])).observed(np.array([2]), np.array([4]), np.array([1]))
    >>> table.pass_rate
    array([ nan,  nan, 0.25])
    >>> table.drawn_at, table.draws
    (array([ 0, -1,  0]), 2)
    """

    difficulty: FloatArray  # [P] a label of the data, NaN without one
    trials: FloatArray  # [P] rollouts with a verdict; those of earlier visits may count for less
    correct: FloatArray  # [P] of these, the right ones
    gradient_norm: FloatArray  # [P] at the last visit with a right rollout; NaN if never measured
    latest_trials: IntArray  # [P] rollouts with a verdict at the last visit
    latest_correct: IntArray  # [P]
    all_right: IntArray  # [P] visits in a row, up to the last, at which every rollout was right
    all_wrong: IntArray  # [P]
    drawn_at: IntArray  # [P] the value of `draws` before the last draw of this prompt; -1: never drawn
    draws: int = 0  # prompts drawn so far, repetitions included
    newest: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # visited since the draw

    def __post_init__(self) -> None:
        shapes = {name: np.shape(getattr(self, name)) for name in _COLUMNS}
        if len(set(shapes.values())) > 1 or np.ndim(self.trials) != 1:
            raise ValueError(f"the columns of a table must be [P], and have the shapes {shapes}")
        check_count("draws", self.draws)
        check_rows("newest", self.newest, len(self))

    @classmethod
    def empty(cls, prompts: int, difficulty: FloatArray | None = None) -> Self:
        """Without results. Raises ValueError for a negative number, and for labels that are not [P]."""
        check_count("prompts", prompts)
        unknown, zeros, none = np.full(prompts, np.nan), np.zeros(prompts), np.zeros(prompts, dtype=np.int64)
        return cls(
            difficulty=unknown if difficulty is None else difficulty,
            trials=zeros,
            correct=zeros,
            gradient_norm=unknown,
            latest_trials=none,
            latest_correct=none,
            all_right=none,
            all_wrong=none,
            drawn_at=none - 1,
        )

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def pass_rate(self) -> FloatArray:
        """[P] at the last visit; NaN before the first."""
        return rates(self.latest_correct, self.latest_trials)

    def drawn(self, rows: IntArray) -> Self:
        """After one more draw, of [K] different rows. Raises ValueError for other rows."""
        check_rows("rows", rows, len(self))
        drawn_at = self.drawn_at.copy()
        drawn_at[rows] = self.draws
        return dataclasses.replace(self, drawn_at=drawn_at, draws=self.draws + len(rows), newest=self.newest[:0])

    def observed(
        self,
        rows: IntArray,
        trials: IntArray,
        correct: IntArray,
        gradient_norm: FloatArray | None = None,
        *,
        decay: float = 1.0,
    ) -> Self:
        """After a visit of each of these rows, with their [K] verdicts and, where measured, gradient norms (else NaN).

        The sums of earlier visits are multiplied by `decay`; a row without a verdict has no visit. Raises ValueError
        for rows that are not different rows of the table, and for verdicts that do not fit them.
        """
        check_rows("rows", rows, len(self))
        for name, verdicts in (("trials", trials), ("correct", correct)):
            check_integers(name, verdicts, size=len(rows))
        norms = np.full(len(rows), np.nan) if gradient_norm is None else gradient_norm
        check_numbers("gradient_norm", norms, least=0.0, size=len(rows), unknown=True)
        judged, right, wrong = trials > 0, (trials > 0) & (correct == trials), (trials > 0) & (correct == 0)

        def changed(column: Any, new: Any, where: BoolArray) -> Any:
            column = column.copy()
            column[rows[where]] = new[where]
            return column

        all_correct, all_trials = add_visit(self.correct[rows], self.trials[rows], correct, trials, decay=decay)
        return dataclasses.replace(
            self,
            trials=changed(self.trials, all_trials, judged),
            correct=changed(self.correct, all_correct, judged),
            gradient_norm=changed(self.gradient_norm, norms, ~np.isnan(norms) & (correct > 0)),
            latest_trials=changed(self.latest_trials, trials, judged),
            latest_correct=changed(self.latest_correct, correct, judged),
            all_right=changed(self.all_right, np.where(right, self.all_right[rows] + 1, 0), judged),
            all_wrong=changed(self.all_wrong, np.where(wrong, self.all_wrong[rows] + 1, 0), judged),
            newest=np.union1d(self.newest, rows[judged]),
        )


_COLUMNS = tuple(field.name for field in dataclasses.fields(PromptTable) if field.name not in ("draws", "newest"))


class Drawn(NamedTuple):
    """What a rule returns."""

    rows: IntArray  # [count] different rows of the table
    state: State  # for the next draw
    skipped: int = 0  # candidates that the rule considered and did not take
    overdue: int = 0  # of the rows, those that were taken because they had waited too long
    # [count] how probable it was that the draw has this row; None: unknown, or the same for all rows
    probability: FloatArray | None = None


def uniform(table: PromptTable, state: State, rng: Streams, count: int) -> Drawn:
    """A new permutation of all prompts in each epoch, cut to whole steps. The rest of an epoch is not used."""
    epoch, place = _reached(state, table)
    if place + _checked(count, table) > len(table):
        epoch, place = epoch + 1, 0
    rows = rng("epoch", epoch).permutation(len(table))[place : place + count]
    return Drawn(rows, {**state, "epoch": epoch, "place": place + count})


@ranged
def greso(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    start: ZeroToOne = 0.5,
    target: ZeroToOne = 0.25,
    change: ZeroToOne = 0.01,
    least: AboveZeroToOne = 0.01,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Skip a prompt whose last visits were all right, or all wrong, with a probability that grows with their number.

    GRESO (Zheng et al. 2025, arXiv 2506.02177): the probability is 1 - max(p^z, least). z counts visits in a row at
    which every rollout was right (p = p_easy), or every rollout was wrong (p = p_hard). Both p begin at `start`. From
    the second epoch on each moves by `change` at every draw: down where the share of such groups since the last draw is
    at least its target, else up, within [0.05, 0.95]. The targets are target / 3 for all-right groups and 2 target / 3
    for all-wrong ones.

    Checked against the authors' code (Infini-AI-Lab/GRESO, verl/trainer/ttis/presampling_selector.py and
    ppo/ray_trainer.py). It differs in three ways. Its shares assume groups of 8 rollouts, also where another
    number is configured. Candidates beyond a full batch are lost to it until the next epoch; here the next draw begins
    with them. And a skipped prompt may be skipped for ever. Where too few candidates pass, the first skipped ones are
    taken.

    Candidates come in random order until `count` of them pass, so the number m of candidates is random. The probability
    of a row is its own, times an estimate of how many prompts are considered, for which the mean of count - 1 over
    m - 1 is the mean probability (Haldane 1945). For a single row, the mean of the known probabilities takes its place.
    """
    easy, hard = state.get("p_easy", start), state.get("p_hard", start)
    for name, share in (("p_easy", easy), ("p_hard", hard)):
        check_number(f"state: {name}", share, least=0.0, most=1.0)
    visited = table.newest
    if state.get("epoch", 0) > 0 and len(visited):
        easy = _moved(easy, change, float(np.mean(table.all_right[visited] > 0)), target / 3)
        hard = _moved(hard, change, float(np.mean(table.all_wrong[visited] > 0)), 2 * target / 3)

    def chance(rows: IntArray) -> FloatArray:
        return np.asarray(np.maximum(easy ** table.all_right[rows] * hard ** table.all_wrong[rows], least), np.float64)

    def passes(rows: IntArray) -> BoolArray:
        return np.asarray(rng("draw", table.draws).random(len(rows)) < chance(rows), dtype=np.bool_)

    return _sieve(table, {**state, "p_easy": easy, "p_hard": hard}, rng, count, passes, patience, chance)


@ranged
def mopps(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    target: ZeroToOne = 0.5,
    candidates: AtLeastOne = 8,
    prior: Positive = 1.0,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Of `candidates` times as many, the prompts whose success rates, sampled from Beta posteriors, are nearest to
    `target`.

    MoPPS (Qu et al. 2025, arXiv 2507.04632): r ~ Beta(prior + right, prior + wrong) for each candidate, and those of
    the smallest (r - target)^2 are taken. The paper's discount of earlier visits is that of the table: with a = prior +
    S, its update a' = decay a + (1 - decay) prior + right is S' = decay S + right.

    Checked against the authors' code (thu-rllab/MoPPS, recipe/ours/mopps.py, strategy "topk"). There the precedence of
    a conditional expression replaces both parameters by 8 where a prompt has one rollout. The discount is 1 by default
    and 0.5 in the scripts. At most 2,048 candidates are drawn.
    """

    def distance(rows: IntArray) -> FloatArray:
        right, trials = table.correct[rows], table.trials[rows]
        sampled = rng("draw", table.draws).beta(prior + right, prior + np.maximum(trials - right, 0.0))
        return np.asarray((sampled - target) ** 2, dtype=np.float64)

    return _nearest(table, state, rng, count, distance, candidates, patience)


@ranged
def adarft(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    field: str = "difficulty",
    target: ZeroToOne = 0.5,
    sensitivity: Positive = 2.0,
    step_size: Positive = 50.0,
    start: Finite = 0.0,
    lowest: Finite = 0.0,
    highest: Finite = 100.0,
    candidates: Natural = 0,
    patience: AtLeastOne = 10,
) -> Drawn:
    """The prompts whose labelled difficulty is nearest to a level that follows the share of right rollouts.

    AdaRFT (Shi et al. 2025, arXiv 2504.05520, Algorithm 1): level <- clip(level + step_size tanh(sensitivity (mean
    reward - target)), lowest, highest). The mean is over the rollouts since the last draw; here it is the share of
    right ones.

    Checked against the authors' code (uscnlp-lime/verl, verl/trainer/ppo/custom_sampler.py and ray_trainer.py). There
    8 loader processes fetch batches ahead, so a batch has an old level, and equal distances are ordered by position. So
    a constant level gives the same batch in every step. Here ties are in the order of the epoch, and `candidates` times
    as many prompts are compared (0: as many as allowed, which is all of up to 2,048). `field` is the label in the data
    from which the caller fills `table.difficulty`: a number in a problem's meta. Raises ValueError if one is missing.
    """
    check_number("lowest", lowest, most=highest)
    if (missing := int(np.count_nonzero(~np.isfinite(table.difficulty)))) > 0:
        raise ValueError(f"{missing} of {len(table)} prompts have no number in {field!r}")
    level, visited = state.get("level", start), table.newest
    check_number("state: level", level)
    if len(visited):
        mean = table.latest_correct[visited].sum() / table.latest_trials[visited].sum()
        level = float(np.clip(level + step_size * np.tanh(sensitivity * (mean - target)), lowest, highest))

    def distance(rows: IntArray) -> FloatArray:
        return np.asarray(np.abs(table.difficulty[rows] - level), dtype=np.float64)

    return _nearest(table, {**state, "level": level}, rng, count, distance, candidates, patience)


@ranged
def cures(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    temperature: Positive = 0.1,
    prior: Positive = 1.0,
    candidates: Natural = 0,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Prompts without replacement, with probabilities in proportion to exp(sqrt(p (1 - p)) / temperature).

    The prompt distribution of CurES (Zeng et al. 2025, arXiv 2510.01037). p is the mean of Beta(prior + right, prior +
    wrong). Drawing one by one and normalising again, as numpy's `choice` does, is the same as taking the largest of
    log-weight + Gumbel noise, which is done here.

    The form was checked against the authors' code (ZexuSun/CurES, epic/epic_sampler.py). There the temperature is 100
    (right + 1) for every prompt, and the configured one is not read. So the largest weight is at most 1.005 times the
    smallest, and the draw is uniform in effect. The paper's text was not at hand, so its temperature is not known to
    us: 0.1 is the unread default of the code.

    The probability of a row is that of being above the largest key that was not taken, given this key: 1 -
    exp(-exp(log-weight - key)) (Kool, van Hoof and Welling 2020, "Estimating Gradients for Discrete Random Variables by
    Sampling without Replacement"). Weighing by it is unbiased, if all prompts are candidates.
    """

    def log_weight(rows: IntArray) -> FloatArray:
        rate = posterior_mean(table.correct[rows], table.trials[rows], prior=prior)
        return np.asarray(np.sqrt(rate * (1 - rate)) / temperature, dtype=np.float64)

    def disadvantage(rows: IntArray) -> FloatArray:
        return -log_weight(rows) - rng("draw", table.draws).gumbel(size=len(rows))

    def chance(rows: IntArray, least: float) -> FloatArray:
        return np.asarray(-np.expm1(-np.exp(np.minimum(log_weight(rows) + least, 700.0))), dtype=np.float64)

    return _nearest(table, state, rng, count, disadvantage, candidates, patience, chance)


@ranged
def replay(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    share: ZeroToOne = 0.5,
    low: ZeroToOne = 0.24,
    high: ZeroToOne = 0.7,
    cooldown: Natural = 5,
    reuses: Natural = 5,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Up to `share` of a draw are earlier prompts whose pass rate was nearest to one half; the others are the epoch's.

    Prompt Replay (Baroian and Berger 2026, arXiv 2603.21177). A prompt can be replayed where the pass rate of its last
    visit was above 0 and within [low, high], its last draw is at least `cooldown` draws ago, and it was replayed fewer
    than `reuses` times (0: no limit). Equal distances are ordered by the lower pass rate, then by fewer replays.

    Checked against the authors' code (baroian/GRPO_prompt_replay, open_instruct/grpo_fast.py). There a cooldown that
    depends on the pass rate and has a random offset is computed and only logged: the fixed one decides. Its
    documentation gives ties to the higher pass rate, and its heap to the lower one. Its defaults of `reuses` are 5 and
    20; the share is at most one half there. A draw is a step here, or a whole window under a probe.
    """
    check_number("low", low, most=high)
    due = _overdue(table, _checked(count, table), patience)
    needed = count - len(due)
    replayed = state.get("replayed", np.zeros(len(table), dtype=np.int64))
    check_integers("state: replayed", replayed, size=len(table))
    rate = table.pass_rate
    cool = (table.drawn_at < 0) | (table.draws - table.drawn_at >= cooldown * count)
    fit = (rate > 0) & (rate >= low) & (rate <= high) & cool  # False for NaN
    fit &= (replayed < reuses) if reuses else True
    fit[due] = False
    buffer = np.flatnonzero(fit)
    if len(buffer) > MOST_CANDIDATES:
        buffer = np.sort(rng("draw", table.draws).choice(buffer, MOST_CANDIDATES, replace=False))
    trials = table.latest_trials[buffer]
    far = np.abs(2 * table.latest_correct[buffer] - trials) / trials  # of whole numbers, so that 0.3 is as far as 0.7
    order = np.lexsort((replayed[buffer], rate[buffer], far))
    again = buffer[order][: min(int(share * count), needed)]
    walk = _walk(table, state, rng, needed - len(again), without=np.concatenate([due, again]))
    counted = replayed.copy()
    counted[again] += 1
    rows = np.concatenate([due, again, walk.rows])
    next_state = {**walk.after(len(walk.rows), state), "replayed": counted}
    return Drawn(rows, next_state, skipped=len(buffer) - len(again), overdue=len(due))


@ranged
def retire(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    above: AboveZeroToOne = 0.9,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Leave out the prompts whose pass rate at their last visit was `above` or more.

    "No-Positive-Resampling" of ScaleRL (Khatri et al. 2025, arXiv 2510.13786): a prompt is removed once its pass rate
    is 0.9 or more. This is from summaries, as neither the paper's text nor its code was at hand. There the removal is
    permanent; here a retired prompt is visited again after `patience` epochs, and that visit decides anew. If all
    candidates are retired, the first ones are taken.
    """

    def passes(rows: IntArray) -> BoolArray:
        return ~(rates(table.latest_correct[rows], table.latest_trials[rows]) >= above)

    return _sieve(table, state, rng, count, passes, patience)


class _Walk(NamedTuple):
    """Candidates in the order of the epoch, each once, and the places behind them."""

    rows: IntArray  # [C]
    epochs: IntArray  # [C]
    places: IntArray  # [C] where the next draw begins if this is the last candidate considered

    def after(self, considered: int, state: State) -> State:
        """The state after the first `considered` candidates."""
        if not considered:
            return state
        return {**state, "epoch": int(self.epochs[considered - 1]), "place": int(self.places[considered - 1])}


def _walk(table: PromptTable, state: State, rng: Streams, most: int, without: IntArray) -> _Walk:
    """Up to `most` candidates: the rest of this epoch and, where that is too little, those of the next one."""
    size, (epoch, place) = len(table), _reached(state, table)
    wanted = most + len(without)
    rest = rng("epoch", epoch).permutation(size)[place : place + wanted]
    following = rng("epoch", epoch + 1).permutation(size) if len(rest) < wanted else rest[:0]
    rows = np.concatenate([rest, following])
    taken = np.isin(rows, without)
    taken[len(rest) :] |= np.isin(following, rest)
    chosen = np.flatnonzero(~taken)[:most]
    epochs = np.repeat([epoch, epoch + 1], [len(rest), len(following)])
    places = np.concatenate([place + 1 + np.arange(len(rest)), 1 + np.arange(len(following))])
    return _Walk(rows[chosen], epochs[chosen], places[chosen])


def _sieve(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    passes: Callable[[IntArray], BoolArray],
    patience: int,
    chance: Callable[[IntArray], FloatArray] | None = None,
) -> Drawn:
    """The first candidates that pass; the next draw begins behind the last of them. `chance`: that one passes."""
    due = _overdue(table, _checked(count, table), patience)
    needed = count - len(due)
    walk = _walk(table, state, rng, max(MOST_CANDIDATES, needed), without=due)
    passed = passes(walk.rows)
    places = np.flatnonzero(passed)[:needed]
    considered = int(places[-1]) + 1 if len(places) else 0
    filled = needed - len(places)
    if filled:
        places = np.sort(np.concatenate([places, np.flatnonzero(~passed)[:filled]]))
        considered = len(walk.rows)
    rows = np.concatenate([due, walk.rows[places]])
    certain = None if chance is None else np.ones(count)  # of a draw of overdue rows alone
    found = Drawn(rows, walk.after(considered, state), considered - needed, len(due), certain)
    if chance is None or not needed:
        return found
    own = chance(walk.rows[places])
    if filled:  # all were considered, and of those that did not pass the first ones were taken
        own = own + (1 - own) * filled / np.count_nonzero(~passed)
        seen = float(considered)
    else:
        # Of a single row, Haldane's mean does not exist: the number of candidates for it, by the chances of all
        seen = (considered - 1) * needed / (needed - 1) if needed > 1 else 1 / float(chance(walk.rows).mean())
    return found._replace(probability=_with_overdue(due, own * seen / (len(table) - len(due))))


def _nearest(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    distance: Callable[[IntArray], FloatArray],
    candidates: int,
    patience: int,
    chance: Callable[[IntArray, float], FloatArray] | None = None,
) -> Drawn:
    """The candidates of the smallest distances. All candidates count as considered. `chance` is the probability that
    the distance of a candidate is below the given one.
    """
    due = _overdue(table, _checked(count, table), patience)
    needed = count - len(due)
    most = min(MOST_CANDIDATES, candidates * count) if candidates else MOST_CANDIDATES
    walk = _walk(table, state, rng, max(most, needed), without=due)
    distances = distance(walk.rows)
    order = np.argsort(distances, kind="stable")
    places = order[:needed]
    rows = np.concatenate([due, walk.rows[places]])
    certain = None if chance is None else np.ones(count)
    found = Drawn(rows, walk.after(len(walk.rows), state), len(walk.rows) - needed, len(due), certain)
    if chance is None or not needed:
        return found
    left = len(order) > needed
    own = chance(walk.rows[places], float(distances[order[needed]])) if left else np.ones(needed)
    return found._replace(probability=_with_overdue(due, own * len(order) / (len(table) - len(due))))


def _with_overdue(due: IntArray, others: FloatArray) -> FloatArray:
    """[count] the probabilities of a draw: overdue prompts are certain."""
    return np.concatenate([np.ones(len(due)), np.minimum(others, 1.0)])


def _overdue(table: PromptTable, count: int, patience: int) -> IntArray:
    """Prompts whose last draw is more than `patience` epochs ago: at most half of a draw (rounded up), oldest first."""
    due = np.flatnonzero(table.draws - table.drawn_at > patience * len(table))
    most = (count + 1) // 2
    if len(due) <= most:
        return due
    ages = table.drawn_at[due]
    cut = np.partition(ages, most - 1)[most - 1]  # a sort of all would take milliseconds
    older = due[ages < cut]
    return np.concatenate([older, due[ages == cut][: most - len(older)]])


def _checked(count: int, table: PromptTable) -> int:
    check_count("count", count, least=1)
    if count > len(table):
        raise ValueError(f"a draw of {count} prompts from {len(table)}")
    return count


def _reached(state: State, table: PromptTable) -> tuple[int, int]:
    """The epoch, and the place in it at which the next draw begins."""
    epoch, place = state.get("epoch", 0), state.get("place", 0)
    check_count("state: epoch", epoch)
    check_count("state: place", place)
    if place > len(table):
        raise ValueError(f"state: place = {place} is above {len(table)}, the prompts of the table")
    return epoch, place


def _moved(probability: float, change: float, share: float, target: float) -> float:
    """GRESO's base probability after a draw: lower where too many groups were flat, so that more are skipped."""
    return max(probability - change, 0.05) if share >= target else min(probability + change, 0.95)
