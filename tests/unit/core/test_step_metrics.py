from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from synthetic_run import FAILED, RIGHT, WRONG, group
from winnow import ranks
from winnow.algos.objective import Value
from winnow.config_file import validate
from winnow.core.metrics import completion_tokens, describe, prompt_tokens
from winnow.core.mismatch import Parity, percentile_999
from winnow.core.tally import Clock, Tally
from winnow.engines.base import Tolerance
from winnow.engines.policy_copy import TOLERANCES
from winnow.memory.usage import Gauge
from winnow.metrics import check
from winnow.ranks import Spent
from winnow.records import Group, PolicyOutput, Prompt, Rollout, UpdateResult
from winnow.testing import micro_batch

NARROW = Tolerance(mean=0.3, tail=0.3)
TAKEN = UpdateResult(grad_norm=2.0, learning_rate=0.1, skipped=False)
SKIPPED = UpdateResult(grad_norm=math.nan, learning_rate=0.1, skipped=True)
EMPTY = UpdateResult(grad_norm=0.0, learning_rate=0.1, skipped=True)


def ignore(phase):
    pass


def add(tally, loss, *, gap):
    """A micro-batch of two tokens, both trained, whose log-probs are off by `gap`."""
    mb = micro_batch([0.0, 0.0])
    out = PolicyOutput(logprobs=torch.full((2,), gap, dtype=torch.float64))
    tally.add(Value(torch.tensor(loss), {}), out, mb)


def test_the_gap_is_measured_before_the_first_update_that_is_taken():
    tally = Tally(Parity(tolerance=NARROW, max_outside=0.1))
    tally.close(SKIPPED)
    add(tally, 1.0, gap=0.25)
    tally.close(TAKEN)
    add(tally, 1.0, gap=8.0)
    tally.close(TAKEN)

    assert tally.metrics()["policy/logprob_gap_mean"] == 0.25
    assert tally.metrics()["policy/logprob_gap_max"] == 0.25


def test_the_loss_is_the_mean_over_the_updates_taken():
    tally = Tally(Parity(tolerance=NARROW, max_outside=0.1))
    add(tally, math.inf, gap=0.0)
    tally.close(SKIPPED)
    add(tally, 1.0, gap=0.0)
    add(tally, 2.0, gap=0.0)
    tally.close(TAKEN)
    add(tally, 5.0, gap=0.0)
    tally.close(TAKEN)

    metrics = tally.metrics()
    assert metrics["policy/loss"] == pytest.approx((1 + 2 + 5) / 2)
    assert (metrics["policy/skipped_updates"], metrics["budget/updates"]) == (1, 2)
    assert metrics["policy/not_finite_updates"] == 1
    tally.close(EMPTY)
    assert (tally.metrics()["policy/skipped_updates"], tally.metrics()["policy/not_finite_updates"]) == (2, 1)


def test_the_effective_number_of_prompts_follows_the_share_of_rollouts():
    """(4 + 1 + 1)^2 / (16 + 1 + 1) = 2; a prompt without a rollout is none, and equal ones count each."""

    def effective(*sizes):
        groups = [group(str(size), [RIGHT] * size) for size in sizes if size]
        return describe(groups, [], planned=len(groups))["group/effective"]

    assert effective(4, 1, 1) == 2
    assert effective(3, 3, 0, 3) == 3
    assert effective() == 0


def test_the_brier_score_of_the_plan_is_over_verified_rollouts():
    """p = 1/2 on one right and one wrong, p = 1 on a wrong one; a failed rollout and an unknown prompt are left out."""
    groups = [group("even", [RIGHT, WRONG]), group("odd", [WRONG, FAILED]), group("new", [RIGHT])]
    rates = np.array([0.5, 1.0, np.nan])
    assert describe(groups, [], planned=3, pass_rates=rates)["plan/brier"] == pytest.approx((0.25 + 0.25 + 1) / 3)
    assert "plan/brier" not in describe(groups, [], planned=3, pass_rates=np.full(3, np.nan))
    assert "plan/brier" not in describe([group("none", [FAILED])], [], planned=1, pass_rates=np.array([0.5]))


def test_prompt_tokens_count_each_sampled_prompt_once_per_group():
    def sampled(tokens, rollouts):
        prompt = Prompt(id="p", tokens=np.arange(tokens), text="", answer=None, task="")
        made = (Rollout(index=i, tokens=np.arange(i + 1), logprobs=np.zeros(i + 1), text="", finish="stop", version=0)
                for i in range(rollouts))  # fmt: skip
        return Group(prompt=prompt, rollouts=tuple(made))

    groups = [sampled(5, 3), sampled(7, 1), sampled(11, 0), sampled(5, 2)]
    assert prompt_tokens(groups) == 5 + 7 + 5  # the third has a planned count of 0, so it is not read
    assert completion_tokens(groups) == (1 + 2 + 3) + 1 + (1 + 2)


def test_each_prompt_counts_alike_in_the_means_of_prompts():
    """Of 9 rollouts 2 are right; of the three prompts that have a verdict half, a third, and none."""
    groups = [
        group("even", [RIGHT, WRONG]),
        group("hard", [WRONG] * 4),
        group("odd", [RIGHT, WRONG, WRONG, FAILED]),
        group("failed", [FAILED]),
    ]
    metrics = describe(groups, [], planned=4)
    assert metrics["reward/mean"] == metrics["reward/accuracy"] == pytest.approx(2 / 9)
    assert metrics["reward/mean_of_prompts"] == metrics["reward/accuracy_of_prompts"] == pytest.approx(5 / 18)
    assert not {"reward/mean_of_prompts", "reward/mean"} & describe(groups[3:], [], planned=1).keys()


def test_without_an_update_there_is_no_loss():
    tally = Tally(Parity(tolerance=NARROW, max_outside=0.1))
    add(tally, math.inf, gap=0.5)
    tally.close(SKIPPED)
    assert "policy/loss" not in tally.metrics()


def parity(policy, engine, *, mean=0.1, tail=0.1, max_outside=0.5):
    found = Parity(Tolerance(mean=mean, tail=tail), max_outside)
    found.add(np.asarray(policy, dtype=np.float64) - np.asarray(engine))
    return found.metrics()


def of_gaps(gaps, **limits):
    return parity(np.asarray(gaps), np.zeros(len(gaps)), **limits)


def test_parity_counts_the_ratios_outside_the_band():
    """p_policy / p_engine of 1, 0.79, 1.26 and 0.81: two of four are outside [0.8, 1.25]."""
    logs = [math.log(ratio) for ratio in (1.0, 0.79, 1.26, 0.81)]
    metrics = parity(logs, [0.0] * 4, mean=1.0, tail=1.0)
    check(metrics)
    assert metrics["policy/ratio_outside"] == 0.5
    assert metrics["policy/logprob_gap_max"] == pytest.approx(-math.log(0.79))
    assert metrics["policy/logprob_gap_mean"] == pytest.approx(sum(map(abs, logs)) / 4)
    assert metrics["policy/parity_alarm"] == 0.0


@pytest.mark.parametrize(
    ("policy", "limits", "alarm"),
    [
        ([0.09, 0.1], {}, 0.0),
        ([0.11, 0.1], {"tail": 1.0}, 1.0),  # their mean is above the tolerance
        ([0.11, -0.12], {"mean": 1.0}, 1.0),  # so is the percentile
        ([0.3, 0.0], {"mean": 1.0, "tail": 1.0}, 0.0),
        ([0.3] * 23 + [0.0] * 377, {"mean": 1.0, "tail": 1.0, "max_outside": 0.02}, 1.0),  # 8 + 5 * 2.8 = 22
        ([-0.3] * 22 + [0.0] * 378, {"mean": 1.0, "tail": 1.0, "max_outside": 0.02}, 0.0),
        ([0.3] * 3 + [0.0] * 3, {"mean": 1.0, "tail": 1.0, "max_outside": 0.0}, 1.0),
        ([0.3] * 2 + [0.0] * 4, {"mean": 1.0, "tail": 1.0, "max_outside": 0.0}, 0.0),  # two tokens prove nothing
        ([math.nan, 0.0], {}, 1.0),
        ([0.0, math.nan], {}, 1.0),
        ([-math.inf, 0.0], {}, 1.0),
        (
            [9.0, 9.0],
            {"mean": math.inf, "tail": math.inf, "max_outside": 0.0},
            0.0,
        ),  # samples something else on purpose
    ],
)
def test_an_alarm_is_a_mean_a_percentile_or_a_share_above_its_limit(policy, limits, alarm):
    assert parity(policy, [0.0] * len(policy), **limits)["policy/parity_alarm"] == alarm


@pytest.mark.parametrize(
    ("count", "percentile"),
    [(1, 1), (2, 1), (3, 1), (1000, 998), (3000, 2998), (3001, 2998), (10_000, 9991)],
)
def test_the_percentile_is_reached_by_1_in_1000_and_at_least_three(count, percentile):
    """Of the numbers 1 to n: 9,991 to 10,000 are ten in ten thousand; of 3,001 four are the fewest."""
    numbers = np.random.default_rng(0).permutation(np.arange(1.0, count + 1))
    assert percentile_999(numbers) == percentile


SIZES = [100, 1000, 24_000, 49_000, 1_000_000]
BFLOAT16 = {"mean": 0.02, "tail": 0.3, "max_outside": 0.01}
# The largest mean and percentile that SmolLM2-135M had without a fault, and the share of ratios outside the band
OF_A_CORRECT_ENGINE = {
    torch.float32: (1.03e-5, 4.8e-5, 0.0),
    torch.float16: (0.00387, 0.0314, 0.0),
    torch.bfloat16: (0.0382, 0.409, 0.0055),
}


MAX_OUTSIDE = validate({}).rollout.max_ratio_outside
OUTSIDE = 0.01  # of the ratios of SmolLM2-135M in bfloat16, without a fault: docs/published-model.md


def in_bfloat16(tokens, outside):
    """The alarm of a step whose gaps are within the limits of bfloat16, with this number of ratios outside the band."""
    gaps = np.zeros(tokens)
    gaps[:outside] = 0.23
    return alarm_of(gaps, torch.bfloat16)


@pytest.mark.parametrize("tokens", [100, 470, 700, 2000, 24_000])
def test_a_healthy_run_in_bfloat16_raises_no_alarm_in_any_step(tokens):
    """10,000 steps, whose tokens are outside the band with the measured probability. One in a hundred tokens was the
    former limit, without chance: it was exceeded in a third of the steps and more.
    """
    drawn = np.random.default_rng(0).binomial(tokens, OUTSIDE, size=10_000)
    assert in_bfloat16(tokens, drawn.max()) == 0.0
    assert np.mean(drawn > max(2, 0.01 * tokens)) > (0.3 if tokens > 100 else 0.05)


@pytest.mark.parametrize(("tokens", "outside"), [(470, 25), (2000, 72), (10_000, 271), (24_000, 589)])
def test_more_ratios_outside_than_chance_explains_raise_the_alarm(tokens, outside):
    """0.02 T + 5 sqrt(0.02 * 0.98 T): 9.4 + 15.2 of 470 tokens, 40 + 31.3, 200 + 70, 480 + 108.4."""
    assert in_bfloat16(tokens, outside) == 1.0
    assert in_bfloat16(tokens, outside - 1) == 0.0


def heavy(count):
    """Gaps of a correct engine: the quantiles of a distribution whose largest number grows with the sample, as in
    bfloat16.
    """
    beyond = 1 - (np.arange(count) + 0.5) / count
    return np.random.default_rng(0).permutation(0.0017 * beyond**-0.55)


def gaps_like(dtype, count=4000):
    """Gaps of both signs with the mean of a correct engine: 4 per mille at its percentile, some just outside the band,
    and the others equal.
    """
    mean, tail, outside = OF_A_CORRECT_ENGINE[dtype]
    rare, beyond = round(0.004 * count), round(outside * count)
    gaps = np.concatenate([np.full(rare, tail), np.full(max(0, beyond - rare), 0.23)])
    rest = (mean * count - gaps.sum()) / (count - len(gaps))
    gaps = np.concatenate([gaps, np.full(count - len(gaps), rest)])
    return gaps * np.tile([1, -1], count // 2)


def alarm_of(gaps, dtype):
    tolerance = TOLERANCES[dtype]
    return of_gaps(gaps, mean=tolerance.mean, tail=tolerance.tail, max_outside=MAX_OUTSIDE)["policy/parity_alarm"]


@pytest.mark.parametrize("dtype", OF_A_CORRECT_ENGINE, ids=str)
def test_the_limits_of_each_format_pass_a_correct_engine_and_refuse_a_shift(dtype):
    """Log-probs that are all off by the format's mean limit are found, and so are a few that are off by its tail."""
    gaps, limits = gaps_like(dtype), TOLERANCES[dtype]
    assert alarm_of(gaps, dtype) == 0.0
    assert alarm_of(gaps + 1.05 * limits.mean, dtype) == 1.0
    few = gaps.copy()
    few[:8] = 1.05 * limits.tail  # 2 in a thousand
    assert alarm_of(few, dtype) == 1.0


def test_the_limits_of_the_formats_follow_their_bits():
    """float16 has 3 bits more than bfloat16, and float32 16 more."""
    means = [TOLERANCES[dtype].mean for dtype in (torch.bfloat16, torch.float16, torch.float32)]
    assert means[0] / means[1] == pytest.approx(2**3)
    assert means[2] < means[1] / 50


def test_the_alarm_does_not_depend_on_how_many_tokens_are_compared():
    found = [of_gaps(heavy(count), **BFLOAT16) for count in SIZES]
    assert [m["policy/parity_alarm"] for m in found] == [0.0] * len(SIZES)
    largest = [m["policy/logprob_gap_max"] for m in found]
    assert largest == sorted(largest)
    assert largest[-1] > 10 * BFLOAT16["tail"]
    tails = [m["policy/logprob_gap_p999"] for m in found if m["policy/logprob_gap_max"] > 0.2]
    assert len(tails) == 3
    assert max(tails) < 1.1 * min(tails)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(
    ("share", "shift"),
    [(0.03, 0.4), (1.0, 0.021)],
    ids=["a few percent of the tokens are others", "every token is off by a little"],
)
def test_a_wrong_engine_raises_the_alarm_in_any_sample(count, share, shift):
    gaps = heavy(count)
    gaps[: round(share * count)] += shift
    assert of_gaps(gaps, **BFLOAT16)["policy/parity_alarm"] == 1.0


def test_parity_is_over_all_micro_batches():
    gaps = heavy(5000)
    whole, parts = (Parity(Tolerance(mean=1e-3, tail=1e-3), 0.5) for _ in range(2))
    whole.add(gaps)
    for part in np.split(gaps, range(700, 5000, 700)):
        parts.add(part)
    assert parts.metrics() == whole.metrics()
    assert whole.metrics()["policy/logprob_gap_p999"] == np.sort(gaps)[-5]


def test_without_a_trained_token_there_are_no_metrics_of_parity():
    found = Parity(Tolerance(mean=0.1, tail=0.1), 0.5)
    assert found.metrics() == {}
    found.add(np.zeros(0))
    assert found.metrics() == {}


def test_a_clock_measures_seconds_and_memory_of_every_phase():
    clock = Clock(ignore, Gauge())
    with clock("generate"):
        held = bytearray(64 * 2**20)
    with clock("update"):
        pass
    metrics = clock.metrics()
    check(metrics)
    assert metrics["seconds/generate"] + metrics["seconds/update"] <= metrics["seconds/step"]
    assert (
        len(held) / 2**20 < metrics["memory/generate/cpu/peak_resident"] <= metrics["memory/update/cpu/peak_resident"]
    )


def of_engines(gaps, sampled_by, **limits):
    found = Parity(Tolerance(mean=0.1, tail=0.1), 0.5)
    found.add(np.asarray(gaps, dtype=np.float64), np.array(sampled_by))
    return found.metrics()


def test_one_stale_engine_among_many_raises_the_alarm():
    """Over the tokens of all eight engines its gap would pass: 0.5 / 8 < 0.1 on average, and few ratios are outside."""
    gaps, by = np.zeros(800), np.repeat(np.arange(8), 100)
    assert of_engines(gaps, by)["policy/parity_alarm"] == 0
    assert "ranks/out_of_parity" not in of_engines(gaps, by)
    gaps[by == 5] = 0.5
    alone = Parity(Tolerance(mean=0.1, tail=1.0), 0.5)
    alone.add(np.asarray(gaps))
    assert alone.metrics()["policy/parity_alarm"] == 0
    several = Parity(Tolerance(mean=0.1, tail=1.0), 0.5)
    several.add(np.asarray(gaps), by)
    found = several.metrics()
    assert (found["policy/parity_alarm"], found["ranks/out_of_parity"]) == (1, 5)
    check(found)


def tally_of(loss, gaps, *, rank, diagnostics):
    tally = Tally(Parity(tolerance=NARROW, max_outside=0.1))
    mb = micro_batch([0.0] * len(gaps))
    (sequence,) = mb.sequences
    sampled = dataclasses.replace(sequence, rollout=dataclasses.replace(sequence.rollout, rank=rank))
    mb = dataclasses.replace(mb, sequences=(sampled,))
    out = PolicyOutput(logprobs=torch.tensor(gaps, dtype=torch.float64))
    tally.add(Value(torch.tensor(loss), {"clip_fraction": torch.tensor(diagnostics)}), out, mb)
    tally.close(TAKEN)
    return tally


def test_the_tallies_of_ranks_combine_to_that_of_one_process(monkeypatch):
    mine = tally_of(1.0, [0.1, 0.2], rank=0, diagnostics=[0.0, 1.0])
    theirs = tally_of(2.0, [0.3], rank=1, diagnostics=[1.0])
    theirs.idle = 2
    monkeypatch.setattr("winnow.ranks.count", lambda: 2)
    monkeypatch.setattr("winnow.ranks.gather_from_all", lambda item, what: [item, theirs])
    found = mine.metrics()
    assert found["policy/loss"] == pytest.approx(3.0)
    assert found["policy/clip_fraction"] == pytest.approx(2 / 3)
    assert found["policy/logprob_gap_mean"] == pytest.approx(0.2)
    assert found["policy/logprob_gap_max"] == pytest.approx(0.3)
    assert found["ranks/idle_micro_batches"] == 2
    check(found)


def test_a_clock_measures_the_exchanges_between_ranks(monkeypatch):
    monkeypatch.setattr("winnow.ranks.count", lambda: 2)
    monkeypatch.setattr(
        "winnow.ranks.gather_from_all",
        lambda item: [(Spent(0.3, {"rollouts": 10}), 2.0, item[2]), (Spent(0.1), 2.0, {})],
    )
    clock = Clock(ignore, Gauge())
    with ranks.spent.on("rollouts", 10):
        pass
    found = clock.metrics()
    assert found["ranks/seconds_waiting"] == pytest.approx(0.2)
    assert found["ranks/waiting_share"] == pytest.approx(0.1)
    assert found["ranks/slowest"] == 1
    assert found["ranks/bytes_rollouts"] == 5
    check(found)
