"""Every public function of winnow.budget raises ValueError for each argument that does not fit.

`CALLS` has a valid call of each function, and for each of its arguments the values that do not fit. A new function or
argument without an entry fails the first test.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from winnow import budget
from winnow.budget import allocation, allocators, cuts, gradients, pass_rates, rounds, sampling, selection
from winnow.records import PromptStats

NAN, INF = math.nan, math.inf
HUGE = 10**400  # an integer that is no float and no int64
MODULES = [getattr(budget, name) for name in budget.__all__]
# They hold results or functions, and compute nothing from numbers
RECORDS = {cuts.Expected, gradients.Credit, sampling.Drawn}


def numbers(*bad: float, shapes: bool = True) -> list[Any]:
    """Arrays [3] that differ in one number from valid ones, and arrays of other shapes."""
    of_numbers = [np.array([0.5, value, 0.5]) for value in bad]
    others = [np.full((1, 3), 0.5), np.float64(0.5), np.full(4, 0.5), np.array(["0.5"] * 3)]
    return of_numbers + (others if shapes else [])


def integers(*bad: int) -> list[Any]:
    return [np.array([1, value, 0]) for value in bad] + [
        np.ones((1, 3), dtype=int),
        np.ones(4, dtype=int),
        np.full(3, 0.5),
    ]


RATES = numbers(NAN, INF, -INF, -0.1, 1.2)
WEIGHTS = numbers(NAN, INF, -1.0, shapes=False)
COUNTS = [-1, 1.5, NAN, INF, None, "3", True, 2**63, HUGE]
POSITIVE = [0, *COUNTS]
SHARES = [NAN, INF, -0.1, 1.1, None, "half", HUGE]
NOT_NEGATIVE = [NAN, INF, -1.0, None, HUGE]
ABOVE_ZERO = [0.0, *NOT_NEGATIVE]
FINITE = [NAN, INF, -INF, None, HUGE, -HUGE]
THREE = np.array([0.2, 0.5, 0.9])
TRIALS, CORRECT = np.array([4.0, 8.0, 0.0]), np.array([1.0, 8.0, 0.0])
OTHER_COUNTS = [
    np.array([5.0, 8.0, 0.0]),
    np.array([-1.0, 8.0, 0.0]),
    np.array([NAN, 8.0, 0.0]),
    CORRECT[:2],
    CORRECT[None],
]
OTHER_TRIALS = [
    np.array([0.5, 8.0, 0.0]),
    np.array([NAN, 8.0, 0.0]),
    np.array([INF, 8.0, 0.0]),
    TRIALS[:2],
    TRIALS[None],
]
FEWER = np.zeros(2)
NONE = np.zeros(0)
SEEN = rounds.Counts(
    planned=np.array([8, 8]), sampled=np.array([4, 0]), correct=np.array([1, 0]), wrong=np.array([2, 0])
)
ROUND = cuts.SampledRound(
    lengths=np.array([2, 4]), group=np.array([0, 0]), logprobs=[np.array([-1.0, -1.0]), np.full(4, -2.0)]
)
KINDS = [
    cuts.RolloutKind(length=2, correct=True, probability=0.5),
    cuts.RolloutKind(length=4, correct=False, probability=0.5),
]
TABLE = (
    sampling.PromptTable.empty(6, difficulty=np.arange(6.0))
    .drawn(np.array([0, 1, 2]))
    .observed(np.array([0, 1, 2]), np.full(3, 4), np.array([0, 2, 4]))
)


STATS = PromptStats(
    ids=("a", "b", "c"),
    pass_rate=np.array([0.25, 1.0, NAN]),
    gradient_norm=np.array([1.0, 2.0, NAN]),
    trials=TRIALS,
    correct=CORRECT,
)
NO_PROMPT = PromptStats(ids=(), pass_rate=NONE, gradient_norm=NONE, trials=NONE, correct=NONE)
NO_STATS = dataclasses.replace(STATS, pass_rate=np.array([0.25, 1.2, NAN]), correct=np.array([1.0, 9.0, 0.0]))


def stream(name: str, number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def of_rule(rule: Callable[..., Any], state: Sequence[Any] = (), **options: Sequence[Any]) -> tuple[Any, Any, Any]:
    """A rule of sampling; `state` are states that do not fit, beside those of the epoch."""
    epoch = [{"epoch": -1}, {"epoch": 0.5}, {"place": 7}, {"place": -1}]
    patience = {} if rule is sampling.uniform else {"patience": POSITIVE}
    bad = {"count": [*POSITIVE, 7], "state": [*epoch, *state], **patience, **options}
    return rule, {"table": TABLE, "state": {}, "rng": stream, "count": 2}, bad


def of_allocator(allocator: Callable[..., Any], least: int = 0, **options: Sequence[Any]) -> tuple[Any, Any, Any]:
    """An allocator of three prompts; `least` is the lowest minimum that it accepts."""
    if allocator is allocators.uniform:
        return allocator, {"stats": STATS, "budget": 12}, {"stats": [NO_PROMPT], "budget": COUNTS}
    low = [9, *COUNTS] + ([least - 1] if least else [])
    bad = {"stats": [NO_STATS], "budget": COUNTS, "minimum": low, "maximum": [1, *COUNTS], **options}
    return allocator, {"stats": STATS, "budget": 12, "minimum": 3, "maximum": 8}, bad


def more_than_planned(seen: rounds.Counts) -> Any:
    return seen.planned - seen.sampled + 1


def none_planned(seen: rounds.Counts) -> Any:
    return -np.ones(len(seen.planned), dtype=np.int64)


def too_long(sampled: cuts.SampledRound) -> Any:
    return sampled.lengths + 1


TIES, GROUP = np.array([0.3, 0.1, 0.2]), np.array([0.0, 1.0, 0.5])
OF_GROUP = {
    "rewards": [np.array([NAN, 1.0, 0.5]), np.array([INF, 1.0, 0.5]), FEWER, GROUP[None]],
    "ties": [np.array([0.1, 0.1, 0.2]), np.array([NAN, 0.1, 0.2]), FEWER, TIES[None]],
    "keep_per_prompt": [-1, 0.0, 1.5, NAN, "2", None, HUGE],
}
OF_COLUMNS = {
    field.name: [np.zeros(5), np.zeros((1, 6))]
    for field in dataclasses.fields(sampling.PromptTable)
    if field.name not in ("draws", "newest")
}

CALLS: Sequence[tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, Sequence[Any]]]] = [
    (
        allocation.allocate_greedily,
        {"value": allocation.KNAPSACK, "statistics": THREE, "budget": 12, "minimum": 2, "maximum": 8},
        {
            "statistics": [*RATES[:-2], np.zeros(0)],
            "budget": COUNTS,
            "minimum": [0, 9, *COUNTS],
            "maximum": [1, *COUNTS],
        },
    ),
    (
        allocation.apportion,
        {"weights": THREE, "budget": 12, "minimum": 1, "maximum": 8, "floor": np.array([1, 0, 0])},
        {
            "weights": [*numbers(NAN, INF, -1.0), np.zeros(0)],
            "budget": COUNTS,
            "minimum": [9, *COUNTS],
            "maximum": [*COUNTS],
            "floor": [*integers(-1, 9), np.array([8, 8, 0])],
        },
    ),
    (allocation.divide_evenly, {"prompts": 3, "budget": 5}, {"prompts": POSITIVE, "budget": COUNTS}),
    (allocation.kept_variance, {"keep": 4}, {"keep": [1, *POSITIVE]}),
    (
        allocation.PromptValue,
        {"total": lambda n, s: s},
        {"least": COUNTS, "within": [(1.0, 0.0), (NAN, 1.0)]},
    ),
    (
        allocation.cures_variance,
        {"pass_rate": THREE, "right": THREE, "wrong": THREE},
        {
            "pass_rate": [*RATES],
            **{key: [*WEIGHTS, FEWER, THREE[None]] for key in ("right", "wrong")},
        },
    ),
    (
        allocation.gvm_weights,
        {"pass_rate": THREE, "gradient_norm": THREE, "alpha": 1e-3, "beta": 2.0},
        {
            "pass_rate": numbers(INF, -0.1, 1.2),
            "gradient_norm": numbers(INF, -1.0),
            "alpha": NOT_NEGATIVE,
            "beta": FINITE,
        },
    ),
    of_allocator(allocators.uniform),
    of_allocator(
        allocators.gvm,
        alpha=NOT_NEGATIVE,
        beta=FINITE,
        exploration=COUNTS,
        filter_threshold=SHARES,
        filter_insufficient=FINITE,
    ),
    of_allocator(
        allocators.gvm_online,
        alpha=NOT_NEGATIVE,
        beta=FINITE,
        exploration=COUNTS,
        prior=NOT_NEGATIVE,
    ),
    of_allocator(allocators.knapsack, 1, prior=NOT_NEGATIVE),
    of_allocator(allocators.vip_rloo, 2, prior=NOT_NEGATIVE),
    of_allocator(allocators.vip_dr_grpo, 3, prior=NOT_NEGATIVE),
    of_allocator(allocators.cures),
    (pass_rates.rates, {"correct": CORRECT, "trials": TRIALS}, {"correct": OTHER_COUNTS, "trials": OTHER_TRIALS}),
    (
        pass_rates.add_visit,
        {"correct": CORRECT, "trials": TRIALS, "new_correct": CORRECT, "new_trials": TRIALS, "decay": 0.5},
        {
            **dict.fromkeys(("correct", "new_correct"), OTHER_COUNTS),
            **dict.fromkeys(("trials", "new_trials"), OTHER_TRIALS),
            "decay": SHARES,
        },
    ),
    (
        pass_rates.posterior_mean,
        {"correct": CORRECT, "trials": TRIALS},
        {"correct": OTHER_COUNTS, "trials": OTHER_TRIALS, "prior": NOT_NEGATIVE},
    ),
    (
        pass_rates.posterior_sd,
        {"correct": CORRECT, "trials": TRIALS},
        {"correct": OTHER_COUNTS, "trials": OTHER_TRIALS, "prior": ABOVE_ZERO},
    ),
    (
        pass_rates.posterior_quantile,
        {"correct": CORRECT, "trials": TRIALS, "share": 0.9},
        {"correct": OTHER_COUNTS, "trials": OTHER_TRIALS, "share": SHARES, "prior": ABOVE_ZERO},
    ),
    (
        pass_rates.brier_score,
        {"pass_rates": THREE, "correct": CORRECT, "trials": TRIALS},
        {"pass_rates": numbers(INF, -0.1, 1.2), "correct": OTHER_COUNTS, "trials": OTHER_TRIALS},
    ),
    (
        rounds.Counts,
        {"planned": np.array([8]), "sampled": np.array([4]), "correct": np.array([1]), "wrong": np.array([2])},
        {
            "planned": [np.array([3]), np.array([-8]), np.array([8.0]), np.array([8, 8]), np.array([[8]])],
            **{key: [np.array([9]), np.array([-1]), np.array([0.5]), FEWER] for key in ("sampled", "correct", "wrong")},
        },
    ),
    (rounds.single, {"seen": SEEN}, {}),
    (rounds.balanced, {"seen": SEEN}, {"right": COUNTS, "wrong": COUNTS, "per_round": POSITIVE}),
    (rounds.positive, {"seen": SEEN}, {"right": POSITIVE, "per_round": POSITIVE}),
    (rounds.pilot_commit, {"seen": SEEN}, {"pilot": POSITIVE, "low": [*SHARES, 0.8], "high": [*SHARES, 0.2]}),
    (rounds.screening, {"seen": SEEN}, {"pilot": POSITIVE}),
    (
        rounds.distribution,
        {"rule": rounds.single, "pass_rate": 0.5, "planned": 4},
        {"rule": [more_than_planned, none_planned], "pass_rate": SHARES, "planned": COUNTS},
    ),
    (
        gradients.round_factor,
        {"rule": rounds.single, "pass_rate": 0.5, "planned": 4},
        {"rule": [more_than_planned, none_planned], "pass_rate": [*SHARES, 0.0, 1.0], "planned": COUNTS},
    ),
    (
        cuts.SampledRound,
        {"lengths": np.array([2, 1]), "group": np.array([0, 1]), "logprobs": [np.zeros(2), np.zeros(1)]},
        {
            "lengths": [np.array([2, -1]), np.array([2.0, 1.0]), np.array([[2, 1]]), np.array([2])],
            "group": [np.array([0, -1]), np.array([0.5, 1.0]), np.array([0])],
            "spent": COUNTS,
            "logprobs": [[np.zeros(2)], [np.zeros(2), np.zeros(2)]],
        },
    ),
    (
        cuts.RolloutKind,
        {"length": 2, "correct": True, "probability": 0.5},
        {"length": COUNTS, "probability": SHARES, "logprob": [NAN, 0.5, None]},
    ),
    (cuts.none, {"sampled": ROUND}, {}),
    (cuts.token_budget, {"sampled": ROUND, "tokens": 4}, {"tokens": COUNTS}),
    (cuts.stragglers, {"sampled": ROUND}, {"share": [*SHARES, 0.0]}),
    (
        cuts.unlikely,
        {"sampled": ROUND},
        {
            "sampled": [
                dataclasses.replace(ROUND, logprobs=None),
                dataclasses.replace(ROUND, logprobs=[np.array([NAN, -1.0]), np.full(4, -2.0)]),
            ],
            "after": POSITIVE,
            "least": [NAN, 0.5, None],
        },
    ),
    (
        cuts.expected,
        {"rule": cuts.none, "kinds": KINDS, "rollouts": 2},
        {"rule": [too_long], "kinds": [[], KINDS[:1], [*KINDS, *KINDS]], "rollouts": POSITIVE},
    ),
    *(
        (rule, {"rewards": GROUP, "ties": TIES, "keep_per_prompt": 2}, OF_GROUP)
        for rule in (selection.max_variance, selection.max_reward)
    ),
    *(
        (rule, {"rewards": GROUP, "ties": TIES, "keep_per_prompt": 2}, OF_GROUP)
        for rule in (selection.random, selection.percentile)
    ),
    (
        selection.threshold,
        {"rewards": GROUP, "ties": TIES, "low": 0.5, "high": 1.0},
        {"rewards": OF_GROUP["rewards"], "ties": OF_GROUP["ties"], "low": [NAN, 2.0], "high": [NAN, 0.0]},
    ),
    (
        selection.prompts_by_variance,
        {"rewards": [GROUP, GROUP[:2], GROUP[:1]], "ties": TIES, "share": 0.9, "margin": 0.01},
        {
            "rewards": [[GROUP, GROUP, own] for own in OF_GROUP["rewards"][:2]]
            + [[GROUP], [GROUP, GROUP, GROUP[None]]],
            "ties": OF_GROUP["ties"],
            "share": [0.0, *SHARES],
            "margin": [NAN, INF, -0.1, None],
        },
    ),
    (selection.kept_size, {"keep": 2, "n": 4}, {"keep": OF_GROUP["keep_per_prompt"], "n": COUNTS}),
    (
        sampling.PromptTable,
        dict(vars(TABLE)),
        {**OF_COLUMNS, "draws": COUNTS, "newest": [np.array([6]), np.array([1, 1])]},
    ),
    (sampling.PromptTable.empty, {"prompts": 3}, {"prompts": COUNTS, "difficulty": [np.zeros(2), np.zeros((1, 3))]}),
    (
        TABLE.drawn,
        {"rows": np.array([0, 3])},
        {"rows": [np.array([0, 6]), np.array([-1]), np.array([2, 2]), np.array([0.5])]},
    ),
    (
        TABLE.observed,
        {"rows": np.array([3, 1]), "trials": np.array([4, 4]), "correct": np.array([1, 2])},
        {
            "rows": [np.array([0, 6]), np.array([-1, 1]), np.array([1, 1]), np.array([1]), np.array([0.5, 1.0])],
            "trials": [np.array([0, 4]), np.array([-4, 4]), np.array([4]), np.array([4.5, 4.5])],
            "correct": [np.array([5, 2]), np.array([-1, 2]), np.array([1]), np.array([0.5, 1.0])],
            "gradient_norm": [np.array([-1.0, 1.0]), np.array([INF, 1.0]), np.array([1.0])],
            "decay": SHARES,
        },
    ),
    of_rule(sampling.uniform),
    of_rule(
        sampling.greso,
        [{"p_easy": 1.5}, {"p_hard": NAN}],
        start=SHARES,
        target=SHARES,
        change=SHARES,
        least=[*SHARES, 0.0],
    ),
    of_rule(sampling.mopps, target=SHARES, candidates=POSITIVE, prior=ABOVE_ZERO),
    of_rule(
        sampling.adarft,
        [{"level": NAN}],
        target=FINITE,
        sensitivity=ABOVE_ZERO,
        step_size=ABOVE_ZERO,
        start=FINITE,
        lowest=[*FINITE, 101.0],
        highest=[*FINITE, -1.0],
        candidates=COUNTS,
        table=[sampling.PromptTable.empty(6), sampling.PromptTable.empty(6, np.array([0, 1, 2, 3, 4, INF]))],
    ),
    of_rule(sampling.cures, temperature=ABOVE_ZERO, prior=ABOVE_ZERO, candidates=COUNTS),
    of_rule(
        sampling.replay,
        [{"replayed": np.zeros(5, dtype=int)}, {"replayed": np.full(6, -1)}],
        share=SHARES,
        low=[*SHARES, 0.8],
        high=[*SHARES, 0.1],
        cooldown=COUNTS,
        reuses=COUNTS,
    ),
    of_rule(sampling.retire, above=[*SHARES, 0.0]),
]
# Arguments that are functions of the caller, records that were checked when they were made, and a name for a message
UNCHECKED = {"rng", "seen", "total", "gain", "value", "credit", "correct", "sampled", "table", "field"}


def public() -> set[Any]:
    own = [
        member
        for module in MODULES
        for name, member in inspect.getmembers(module, callable)
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__
    ]
    methods = {sampling.PromptTable.empty.__name__, "drawn", "observed"}
    assert methods <= {name for name, _ in inspect.getmembers(sampling.PromptTable)}
    return set(own) - RECORDS


def test_every_function_and_argument_has_its_values():
    called = {call for call, _, _ in CALLS if not hasattr(call, "__self__")}
    assert public() == called
    for call, valid, bad in CALLS:
        arguments = set(inspect.signature(call).parameters)
        assert set(valid) | set(bad) <= arguments, call
        assert arguments - set(bad) <= UNCHECKED, f"{call}: {arguments - set(bad)}"


def outcome(call: Callable[..., Any], arguments: Mapping[str, Any]) -> type | None:
    """The type of what a call raises; None where it returns."""
    try:
        call(**arguments)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize(("call", "valid", "bad"), CALLS, ids=lambda call: getattr(call, "__qualname__", ""))
def test_an_argument_that_does_not_fit_raises_value_error(call, valid, bad):
    assert outcome(call, valid) is None
    each = [(name, value, outcome(call, {**valid, name: value})) for name, values in bad.items() for value in values]
    assert [(name, value, raised) for name, value, raised in each if raised is not ValueError] == []


@pytest.mark.parametrize(
    "value", [allocation.KNAPSACK, allocation.RLOO, allocation.DR_GRPO, allocation.kept_variance(2)]
)
@pytest.mark.parametrize("rate", [NAN, INF, -0.1, 1.2])
@pytest.mark.parametrize("budget", [4, 12])
def test_the_values_of_a_prompt_refuse_what_is_no_pass_rate(value, rate, budget):
    """With a budget that is divided evenly, too, where no value is computed."""
    with pytest.raises(ValueError, match="statistics"):
        allocation.allocate_greedily(value, np.array([0.5, rate]), budget, minimum=3)


@pytest.mark.parametrize("variance", [NAN, INF, -0.1])
def test_a_mean_refuses_what_is_no_variance(variance):
    with pytest.raises(ValueError, match="statistics"):
        allocation.allocate_greedily(allocation.MEAN, np.array([0.5, variance]), 12, minimum=0)


def test_nothing_is_divided_among_no_prompts():
    assert allocation.divide_evenly(0, 0).tolist() == []
    assert allocation.apportion(np.zeros(0), 0).tolist() == []
    assert allocation.allocate_greedily(allocation.RLOO, np.zeros(0), 0, minimum=2).tolist() == []
