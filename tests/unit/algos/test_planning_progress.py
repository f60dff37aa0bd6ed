"""What an update is worth, by hand. The signal itself is enumerated in tests/oracle/test_planning.py."""

import numpy as np
import pytest

from winnow.algos.planning import (
    GroupSignal,
    Noise,
    Rule,
    UpdateBounds,
    critical_prompts,
    group_signal,
    progress,
    second_moment,
)
from winnow.algos.reward_mixture import pass_rates

UNIFORM = pass_rates((np.arange(400) + 0.5) / 400, np.ones(400))
GROUP = GroupSignal(kept=4, signal=0.3, square=0.1, credit=0.8, learning=0.9)
NOISE = Noise(rollout=5.0, between=2.0)
MOMENT = 0.09 + (0.3 - 0.09 + 1.0) / 11  # 0.2: (1 + 2) * 0.1 = 0.3 and 5 * 0.8 / 4 = 1


def test_the_second_moment_adds_what_prompts_scatter():
    assert second_moment(GROUP, 11, NOISE) == pytest.approx(MOMENT)


def test_at_the_critical_prompts_signal_and_noise_are_equal():
    prompts = critical_prompts(GROUP, NOISE)
    assert prompts == pytest.approx((MOMENT - 0.09) * 11 / 0.09)
    assert second_moment(GROUP, prompts, NOISE) == pytest.approx(2 * 0.09)
    assert critical_prompts(group_signal(UNIFORM, 8, 1, Rule("grpo")), NOISE) == np.inf


def test_progress_at_a_tuned_learning_rate_is_the_share_of_signal():
    assert progress(GROUP, 11, NOISE, law="tuned", optimizer=UpdateBounds()) == pytest.approx(0.09 / 0.2)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (UpdateBounds(), 0.3 / 0.2**0.5),
        (UpdateBounds(eps=1.0), 0.3 / (0.2**0.5 + 1)),
        (UpdateBounds(eps=1.0, clip=0.1), 0.1 / 0.2**0.5 * 0.3 / (0.1 + 1)),
    ],
    ids=["AdamW normalises", "its eps does not", "a clipped gradient"],
)
def test_progress_at_a_fixed_learning_rate(optimizer, expected):
    assert progress(GROUP, 11, NOISE, law="fixed", optimizer=optimizer) == pytest.approx(expected)


def test_adamw_normalises_by_the_updates_that_are_taken():
    """One prompt, flat in one step of ten: 0.9 of the steps have a gradient, of 1 / 0.9 of the mean square."""
    moment = second_moment(GROUP, 1, NOISE)
    expected = 0.9 * (0.3 / 0.9) / (moment / 0.9) ** 0.5
    assert progress(GROUP, 1, NOISE, law="fixed", optimizer=UpdateBounds()) == pytest.approx(expected)


@pytest.mark.parametrize("law", ["fixed", "tuned"])
def test_one_kept_rollout_makes_no_progress(law):
    nothing = group_signal(UNIFORM, 8, 1, Rule("grpo"))
    assert (nothing.signal, nothing.credit, nothing.learning) == (0.0, 0.0, 0.0)
    assert progress(nothing, 4, NOISE, law=law, optimizer=UpdateBounds(eps=1.0)) == 0.0


def test_a_pair_under_dr_grpo_by_hand():
    """Of two rollouts under a uniform rate a third of the groups is mixed; phi is 1/4 there, both advantages 1/2."""
    pair = group_signal(UNIFORM, 2, 2, Rule("dr_grpo"))
    assert pair.signal == pytest.approx(1 / 12, rel=1e-4)
    assert pair.square == pytest.approx(1 / 48, rel=1e-4)
    assert pair.credit == pytest.approx(1 / 12, rel=1e-4)
    assert pair.learning == pytest.approx(1 / 3, rel=1e-4)


def test_more_rollouts_than_are_kept_raise_the_signal_up_to_balance():
    rates, rule = pass_rates([0.02, 0.1, 0.4, 0.9], np.ones(4)), Rule("dr_grpo")
    signals = [group_signal(rates, n, 4, rule).signal for n in (4, 8, 16, 64)]
    assert signals == sorted(signals)
    assert signals[-1] < 0.25
    assert group_signal(rates, 4, 16, rule) == group_signal(rates, 4, 4, rule)  # m is n at most
