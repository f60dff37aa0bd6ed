"""The rules that draw prompts, against numbers by hand, and the known faults of the authors' code."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from winnow.budget.sampling import (
    MOST_CANDIDATES,
    PromptTable,
    adarft,
    cures,
    greso,
    mopps,
    replay,
    retire,
    uniform,
)
from winnow.seeds import generator


def stream(name, number):
    return generator("s", name, number)


def scripted(*, random=(), beta=(), gumbel=()):
    """Streams with given numbers; every epoch is in the order of the table."""
    numbers = SimpleNamespace(
        permutation=np.arange,
        random=lambda n: np.array(random)[:n],
        beta=lambda a, b: np.array(beta)[: len(a)],
        gumbel=lambda size: np.zeros(size) if not len(gumbel) else np.array(gumbel)[:size],
    )
    return lambda name, number: numbers


IN_ORDER = scripted(random=np.zeros(5000))


def visited(prompts, results, *, difficulty=None):
    """A table after one visit of each row in `results`: {row: (right, verdicts)}."""
    rows = np.array(list(results), dtype=np.int64)
    right, trials = (np.array([of[side] for of in results.values()], dtype=np.int64) for side in (0, 1))
    return PromptTable.empty(prompts, difficulty).drawn(rows).observed(rows, trials, right)


# The table ------------------------------------------------------------------------------------------------------------


def test_visits_in_a_row_count_up_to_the_last():
    """Right, right, mixed, wrong; a visit without a verdict is none."""
    table, row = PromptTable.empty(2), np.array([1])
    streaks = []
    for right, trials in ((4, 4), (2, 2), (1, 4), (0, 4), (0, 0), (0, 1)):
        table = table.observed(row, np.array([trials]), np.array([right]))
        streaks.append((int(table.all_right[1]), int(table.all_wrong[1])))
    assert streaks == [(1, 0), (2, 0), (0, 0), (0, 1), (0, 1), (0, 2)]
    assert (table.trials[1], table.correct[1], table.pass_rate[1]) == (15, 7, 0)
    assert np.isnan(table.pass_rate[0])
    np.testing.assert_array_equal(table.newest, [1])
    assert len(table.drawn(row).newest) == 0


def test_a_table_is_never_changed_in_place():
    before = PromptTable.empty(3)
    before.drawn(np.array([1])).observed(np.array([1]), np.array([2]), np.array([1]), np.array([0.5]))
    for name, column in vars(PromptTable.empty(3)).items():
        np.testing.assert_array_equal(getattr(before, name), column)


# Uniform --------------------------------------------------------------------------------------------------------------


def test_uniform_cuts_the_permutation_of_each_epoch_to_whole_steps():
    """10 prompts in steps of 3: the tenth of each epoch is left over. No other draw has the names of these streams."""
    state = {}
    for step in range(7):
        epoch, place = divmod(step, 3)
        rows, state, *_ = uniform(PromptTable.empty(10), state, stream, 3)
        expected = generator("s", "epoch", epoch).permutation(10)[3 * place : 3 * place + 3]
        np.testing.assert_array_equal(rows, expected)
    assert state == {"epoch": 2, "place": 3}


def test_uniform_leaves_no_prompt_out_for_ever():
    state, epochs = {}, []
    for _ in range(20):
        drawn = []
        for _ in range(3):
            rows, state, *_ = uniform(PromptTable.empty(10), state, stream, 3)
            drawn += rows.tolist()
        epochs.append(drawn)
    assert all(len(set(drawn)) == 9 for drawn in epochs)
    assert len({tuple(drawn) for drawn in epochs}) == 20
    assert set().union(*epochs) == set(range(10))


RULES = (uniform, greso, mopps, cures, replay, retire)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("count", [0, 5])
def test_a_draw_of_more_prompts_than_there_are_or_none_is_refused(rule, count):
    with pytest.raises(ValueError, match=str(count)):
        rule(PromptTable.empty(4), {}, stream, count)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_draw_has_no_prompt_twice_where_an_epoch_ends_inside_it(rule, count):
    table, state = PromptTable.empty(7), {}
    for step in range(30):
        rows, state, *_ = rule(table, state, stream, count)
        assert len(set(rows.tolist())) == count
        right = generator("verdicts", step).integers(0, 5, size=count)
        table = table.drawn(rows).observed(rows, np.full(count, 4), right)


# What has waited too long ---------------------------------------------------------------------------------------------


def test_overdue_prompts_come_first_the_oldest_and_at_most_half():
    """After 9 draws of 4 prompts the waits are 5, 4, 9 and 1; more than one epoch of 4 are the first and the third."""
    table = PromptTable.empty(4)
    table = PromptTable(**{**vars(table), "drawn_at": np.array([4, 5, 0, 8]), "draws": 9})
    one = retire(table, {}, IN_ORDER, 2, patience=1)
    assert (one.rows.tolist(), one.overdue) == ([2, 0], 1)
    both = retire(table, {}, IN_ORDER, 3, patience=1)
    assert (both.rows.tolist(), both.overdue) == ([0, 2, 1], 2)
    none = retire(table, {}, IN_ORDER, 2, patience=3)
    assert (none.rows.tolist(), none.overdue) == ([0, 1], 0)


@pytest.mark.parametrize(("prompts", "count", "patience"), [(30, 4, 2), (30, 7, 1), (12, 1, 3)])
def test_a_retired_prompt_waits_at_most_patience_and_two_epochs_and_two_draws(prompts, count, patience):
    """Every prompt is always right, so all are retired at once."""
    table, state = PromptTable.empty(prompts), {}
    longest = 0
    for _ in range(200):
        rows, state, *_ = retire(table, state, stream, count, patience=patience)
        longest = max(longest, int((table.draws - table.drawn_at).max()))
        table = table.drawn(rows).observed(rows, np.full(count, 4), np.full(count, 4))
    assert longest <= (patience + 2) * prompts + 2 * count


# GRESO ----------------------------------------------------------------------------------------------------------------


def flat_table():
    """All-right visits in a row: 0, 1, 2, 0, 0, 0, 10; all-wrong ones: 0, 0, 0, 1, 2, 0, 0."""
    empty = vars(PromptTable.empty(7))
    return PromptTable(
        **{**empty, "all_right": np.array([0, 1, 2, 0, 0, 0, 10]), "all_wrong": np.array([0, 0, 0, 1, 2, 0, 0])}
    )


def test_greso_keeps_a_prompt_with_probability_p_to_the_z_or_the_least():
    """Probabilities 1, 1/2, 1/4, 1/2, 1/4, 1 and 0.01, as 1/2 to the tenth is less."""
    numbers = scripted(random=[0.99, 0.49, 0.25, 0.5, 0.24, 0.99, 0.005])
    five = greso(flat_table(), {}, numbers, 5)
    assert five.rows.tolist() == [0, 1, 4, 5, 6]
    assert five.skipped == 2


def test_greso_s_next_draw_begins_with_the_first_candidate_that_was_not_considered():
    """The released code drops the rest of a batch that is more than full; those prompts are lost for the epoch."""
    first = greso(flat_table(), {}, scripted(random=[0.99, 0.49, 0.25, 0.5, 0.24, 0.99, 0.005]), 2)
    assert (first.rows.tolist(), first.skipped) == ([0, 1], 0)
    assert (first.state["epoch"], first.state["place"]) == (0, 2)
    second = greso(flat_table(), first.state, scripted(random=[0.25, 0.5, 0.24, 0.99, 0.005, 0, 0]), 2)
    assert (second.rows.tolist(), second.skipped) == ([4, 5], 2)
    assert (second.state["epoch"], second.state["place"]) == (0, 6)


def test_where_greso_skips_too_many_the_first_skipped_are_drawn():
    table = visited(4, dict.fromkeys(range(4), (4, 4)))
    drawn = greso(table, {}, scripted(random=[0.9] * 4), 3)
    assert drawn.rows.tolist() == [0, 1, 2]


def test_greso_moves_its_probabilities_towards_the_targets():
    """Of 12 groups 2 are all right (target 1/12) and 1 is all wrong (target 2/12). Not in the first epoch."""
    results = {0: (4, 4), 1: (4, 4), 2: (0, 4), **{row: (2, 4) for row in range(3, 12)}}
    table = visited(12, results)
    moved = greso(table, {"epoch": 1, "place": 0}, IN_ORDER, 2).state
    assert (moved["p_easy"], moved["p_hard"]) == (0.49, 0.51)
    still = greso(table, {"epoch": 0, "place": 0}, IN_ORDER, 2).state
    assert (still["p_easy"], still["p_hard"]) == (0.5, 0.5)
    ends = greso(table, {"epoch": 1, "place": 0, "p_easy": 0.05, "p_hard": 0.95}, IN_ORDER, 2).state
    assert (ends["p_easy"], ends["p_hard"]) == (0.05, 0.95)


def test_greso_counts_groups_of_any_size():
    """The released code reshapes rewards to groups of 8, so with 4 rollouts half of its flat groups would vanish."""
    table = visited(4, {0: (4, 4), 1: (0, 4), 2: (4, 4), 3: (0, 4)})
    moved = greso(table, {"epoch": 1, "place": 0}, IN_ORDER, 2).state
    assert (moved["p_easy"], moved["p_hard"]) == (0.49, 0.49)


# MoPPS ----------------------------------------------------------------------------------------------------------------


def test_mopps_takes_the_sampled_rates_nearest_to_the_target():
    drawn = mopps(PromptTable.empty(5), {}, scripted(beta=[0.1, 0.5, 0.9, 0.45, 0.7]), 2)
    assert (drawn.rows.tolist(), drawn.skipped) == ([1, 3], 3)


def beta_of(table):
    """The parameters of the Beta distribution of row 0."""
    seen = []

    def beta(a, b):
        seen.append((a[0], b[0]))
        return np.zeros(len(a))

    mopps(table, {}, lambda name, number: SimpleNamespace(permutation=np.arange, beta=beta), 1)
    return seen[0]


def test_mopps_posterior_is_the_paper_s_recursion():
    """Discount 1/2, 3 of 4 and then 1 of 4 right: a = 1, 1/2 + 1/2 + 3, 2 + 1/2 + 1, and b = 1, 2, 1 + 1/2 + 3."""
    table, row = PromptTable.empty(2), np.array([0])
    for right in (3, 1):
        table = table.observed(row, np.array([4]), np.array([right]), decay=0.5)
    assert beta_of(table) == (3.5, 4.5)


def test_mopps_learns_from_a_single_rollout():
    """The released update is `... + s * n if n > 1 else 8`: with one rollout both parameters become 8."""
    assert beta_of(visited(2, {0: (1, 1)})) == (2.0, 1.0)
    assert beta_of(visited(2, {0: (0, 1)})) == (1.0, 2.0)


@pytest.mark.parametrize(("candidates", "skipped"), [(8, 28), (1000, MOST_CANDIDATES - 4)])
def test_mopps_scores_so_many_candidates(candidates, skipped):
    assert mopps(PromptTable.empty(5000), {}, stream, 4, candidates=candidates).skipped == skipped


# AdaRFT ---------------------------------------------------------------------------------------------------------------

LADDER = np.array([0.0, 10.0, 20.0, 30.0, 40.0])


def test_adarft_moves_its_level_by_the_share_of_right_rollouts():
    """12 of 16 are right, so the level is 50 tanh(2 (3/4 - 1/2)) = 23.1: nearest are 20 and 30."""
    table = visited(5, {0: (8, 8), 1: (4, 8)}, difficulty=LADDER)
    drawn = adarft(table, {}, IN_ORDER, 2)
    assert drawn.state["level"] == pytest.approx(50 * math.tanh(0.5))
    assert drawn.rows.tolist() == [2, 3]


@pytest.mark.parametrize(("right", "before", "after"), [(8, 90.0, 100.0), (0, 10.0, 0.0), (4, 37.5, 37.5)])
def test_adarft_s_level_stays_within_its_limits(right, before, after):
    table = visited(5, {0: (right, 8)}, difficulty=LADDER)
    assert adarft(table, {"level": before}, IN_ORDER, 2).state["level"] == after


def test_adarft_keeps_its_level_without_new_results():
    assert adarft(PromptTable.empty(5, LADDER), {"level": 30.0}, IN_ORDER, 1).rows.tolist() == [3]
    assert adarft(PromptTable.empty(5, LADDER), {}, IN_ORDER, 1, start=20.0).rows.tolist() == [2]


def test_adarft_does_not_repeat_one_batch_at_a_constant_level():
    """The released sampler sorts all prompts by distance, so equal labels give the same batch in every step."""
    table, state, drawn = PromptTable.empty(6, np.zeros(6)), {}, []
    for _ in range(3):
        rows, state, *_ = adarft(table, state, stream, 2, candidates=1)
        drawn += rows.tolist()
        table = table.drawn(rows)
    assert sorted(drawn) == list(range(6))


def test_adarft_needs_a_label_of_every_prompt():
    with pytest.raises(ValueError, match="1 of 5"):
        adarft(PromptTable.empty(5, np.where(LADDER == 20, np.nan, LADDER)), {}, stream, 2)


# CurES ----------------------------------------------------------------------------------------------------------------


def test_cures_draws_in_proportion_to_its_weights():
    """p = 51/102 and 1/100, so at temperature 1/2 the weights are exp(1) and exp(0.199): the first has 69.0%."""
    table = visited(2, {0: (50, 100), 1: (0, 98)})
    first = sum(
        cures(table, {}, lambda name, number, seed=seed: generator(seed, name, number), 1, temperature=0.5).rows[0] == 0
        for seed in range(4000)
    )
    weights = np.exp(np.sqrt([0.25, 0.01 * 0.99]) / 0.5)
    assert weights[0] / weights.sum() == pytest.approx(0.690, abs=5e-4)
    assert first / 4000 == pytest.approx(0.690, abs=0.03)  # 4 standard errors


def test_cures_reads_its_temperature():
    """The released code divides by 100 (right + 1) instead, so its largest weight is 1.005 times its smallest."""
    assert math.exp(0.5 / 100) < 1.0051
    table = visited(3, {0: (98, 98), 1: (49, 98), 2: (0, 98)})
    assert cures(table, {}, scripted(gumbel=[0.4, 0.0, 0.0]), 1, temperature=0.1).rows.tolist() == [1]
    assert cures(table, {}, scripted(gumbel=[0.4, 0.0, 0.0]), 1, temperature=100.0).rows.tolist() == [0]


# Prompt Replay --------------------------------------------------------------------------------------------------------


def drawn_twice():
    """Rows 0 to 3 in one draw, rows 4 to 7 in the next."""
    table = PromptTable.empty(8)
    for rows, right in (([0, 1, 2, 3], [2, 1, 3, 0]), ([4, 5, 6, 7], [2, 2, 2, 2])):
        table = table.drawn(np.array(rows)).observed(np.array(rows), np.full(4, 4), np.array(right))
    return table


def test_replay_takes_cool_prompts_of_medium_pass_rate_and_then_fresh_ones():
    """Of the first draw 3/4 is above 0.7 and 0 is never replayed; the second draw is one draw ago, and 2 are needed."""
    drawn = replay(drawn_twice(), {}, IN_ORDER, 4, cooldown=2)
    assert drawn.rows.tolist() == [0, 1, 2, 3]
    assert drawn.state["replayed"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert (drawn.state["place"], drawn.skipped) == (4, 0)
    early = replay(drawn_twice(), {}, IN_ORDER, 4, cooldown=3)
    assert (early.rows.tolist(), early.state["replayed"].sum()) == ([0, 1, 2, 3], 0)
    hot = replay(drawn_twice(), {}, IN_ORDER, 4, cooldown=1, share=0.25)
    assert (hot.rows.tolist(), hot.skipped) == ([0, 1, 2, 3], 5)


def test_replay_orders_by_distance_then_the_lower_rate_then_fewer_replays():
    """0.4, 0.6, 0.5, 0.4 and 0.3. The released documentation gives ties to the higher rate, and its heap does not."""
    table = visited(5, {0: (4, 10), 1: (6, 10), 2: (5, 10), 3: (4, 10), 4: (3, 10)})
    replayed = {"replayed": np.array([1, 0, 0, 0, 0])}
    assert replay(table, replayed, IN_ORDER, 5, share=1.0, cooldown=1).rows.tolist() == [2, 3, 0, 1, 4]
    even = visited(2, {0: (7, 10), 1: (3, 10)})  # as floats, 0.7 is nearer to 0.5
    assert replay(even, {}, IN_ORDER, 2, share=1.0, cooldown=1).rows.tolist() == [1, 0]


@pytest.mark.parametrize(("reuses", "first"), [(5, 1), (6, 0), (0, 0)])
def test_a_prompt_is_replayed_so_often_and_no_more(reuses, first):
    table = visited(2, {0: (2, 4), 1: (1, 3)})
    state = {"replayed": np.array([5, 0])}
    drawn = replay(table, state, IN_ORDER, 1, share=1.0, cooldown=0, reuses=reuses)
    assert drawn.rows.tolist() == [first]
    assert drawn.state["replayed"].sum() == 6
    assert state["replayed"].sum() == 5  # the state before is not changed


def test_replay_scores_at_most_so_many_prompts():
    table = visited(5000, dict.fromkeys(range(5000), (2, 4)))
    assert replay(table, {}, stream, 4, cooldown=0).skipped == MOST_CANDIDATES - 2


# Retirement -----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_retired_from_the_pass_rate_on():
    """9/10 is retired and 8/10 is not; the last visit decides."""
    table = visited(4, {0: (9, 10), 1: (8, 10), 2: (10, 10)})
    drawn = retire(table, {}, IN_ORDER, 2)
    assert (drawn.rows.tolist(), drawn.skipped) == ([1, 3], 2)
    again = table.observed(np.array([0]), np.array([10]), np.array([8]))
    assert retire(again, {}, IN_ORDER, 2).rows.tolist() == [0, 1]


def test_if_all_are_retired_the_first_are_drawn():
    drawn = retire(visited(3, dict.fromkeys(range(3), (4, 4))), {}, IN_ORDER, 2)
    assert drawn.rows.tolist() == [0, 1]


@pytest.mark.parametrize("rule", [greso, cures])
def test_an_overdue_prompt_that_is_the_whole_draw_is_certain(rule):
    table = PromptTable(**{**vars(PromptTable.empty(3)), "drawn_at": np.array([0, 8, 7]), "draws": 9})
    drawn = rule(table, {}, stream, 1, patience=1)
    assert (drawn.rows.tolist(), drawn.probability.tolist()) == ([0], [1.0])


def test_greso_s_probability_of_the_one_row_beside_an_overdue_one():
    """Chances 1, 1/2, 1/4, 1/2, 1/4 and 1: the first row passes first with about 1 of 3.5."""
    table = PromptTable(**{**vars(flat_table()), "drawn_at": np.array([7] * 6 + [0]), "draws": 8})
    drawn = greso(table, {}, IN_ORDER, 2, patience=1)
    assert drawn.rows.tolist() == [6, 0]
    assert drawn.probability.tolist() == pytest.approx([1.0, 1 / 3.5])
