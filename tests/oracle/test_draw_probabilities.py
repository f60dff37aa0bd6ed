"""The probabilities of draws: their weights estimate the mean over all prompts, in the mean over many draws."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import winnow
from refusals import refused
from winnow.algos.weighting import unbiased
from winnow.budget.sampling import PromptTable, cures, greso
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.records import Draw, KeptRollouts
from winnow.seeds import generator
from winnow.state.logbook import read_metrics, read_rows
from winnow.training.resolve import resolve_members

PROMPTS, COUNT, DRAWS = 40, 8, 4_000
VALUES = 1 + np.sin(np.linspace(0.0, np.pi, PROMPTS))  # of which the mean is estimated; largest in the middle


def results(*, overdue=0):
    """A table after visits with pass rates from 0 to 1; some prompts have waited for longer than any patience."""
    rows = np.arange(PROMPTS)
    right = np.rint(np.linspace(0, 8, PROMPTS)).astype(np.int64)
    table = PromptTable.empty(PROMPTS)
    for _ in range(2):
        table = table.drawn(rows[overdue:]).observed(rows, np.full(PROMPTS, 8), right)
    return table


def estimates(rule, table, state, draws):
    """[draws] estimates of the mean of VALUES, and [draws] of 1, from draws of other random numbers."""
    found, ones, taken = np.zeros(draws), np.zeros(draws), np.zeros(PROMPTS)
    for i in range(draws):
        place = int(generator("place", i).integers(PROMPTS))  # as a step anywhere in an epoch
        start = {**state, "place": place} if state else {}
        drawn = rule(table, start, lambda name, number, i=i: generator("draws", i, name, number), COUNT)
        assert drawn.probability.shape == (COUNT,)
        assert np.all((drawn.probability > 0) & (drawn.probability <= 1))
        shares = 1 / (PROMPTS * drawn.probability)
        found[i], ones[i] = (shares * VALUES[drawn.rows]).sum(), shares.sum()
        taken[drawn.rows] += 1 / draws
    return found, ones, taken


CASES = {
    "greso": (functools.partial(greso, start=0.5), {"epoch": 1, "p_easy": 0.5, "p_hard": 0.3}),
    "cures": (functools.partial(cures, temperature=0.2), {}),
}


@pytest.mark.parametrize("overdue", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_weighted_sum_of_a_draw_estimates_the_mean_over_all_prompts(name, overdue):
    rule, state = CASES[name]
    table = results(overdue=overdue)
    if overdue:
        rule = functools.partial(rule, patience=1)
    draws = 1_500 if overdue else DRAWS  # only the comparison with the plain mean needs as many
    found, ones, taken = estimates(rule, table, state, draws)
    error = found.std(ddof=1) / np.sqrt(draws)
    # greso: candidates are drawn without replacement, which the probabilities do not count
    bias = 0.02 if name == "greso" else 0.0
    assert abs(found.mean() - VALUES.mean()) < 4 * error + bias * VALUES.mean()
    assert abs(ones.mean() - 1) < 4 * ones.std(ddof=1) / np.sqrt(draws) + bias
    if overdue:
        assert taken[:overdue].tolist() == pytest.approx([1.0] * overdue)  # certain
    else:  # the plain mean over a draw is not that of the prompts
        assert abs((taken * VALUES).sum() / COUNT - VALUES.mean()) > 10 * error
        assert taken.max() > 2 * taken.min()


def test_a_draw_of_all_prompts_is_certain():
    table = results()
    drawn = cures(table, {}, lambda name, number: generator(name, number), PROMPTS)
    assert drawn.probability.tolist() == [1.0] * PROMPTS
    assert Draw(1.0, PROMPTS).share == 1 / PROMPTS


def test_the_probability_of_cures_by_hand():
    """Two prompts of equal weight w = exp(0.5 / 0.5), and keys log w + G: the other one was not drawn, with the key
    1 + 0.3, so this one had 1 - exp(-exp(1 - 1.3)).
    """
    table = PromptTable.empty(2)

    class Scripted:
        def permutation(self, size):
            return np.arange(size)

        def gumbel(self, size):
            return np.array([0.9, 0.3])

    drawn = cures(table, {}, lambda name, number: Scripted(), 1, temperature=0.5)
    assert drawn.rows.tolist() == [0]
    assert drawn.probability.tolist() == pytest.approx([1 - np.exp(-np.exp(-0.3))])


def test_unbiased_weighs_a_prompt_by_its_share():
    """Two prompts of 4 rollouts at pass rates 1/2 and 1/4; of 10 prompts they were drawn with 0.4 and 0.1."""
    kept = KeptRollouts(
        planned=2,
        lengths=np.array([3, 3]),
        group=np.array([0, 1]),
        correct=np.array([True, True]),
        generated=np.array([4, 4]),
        valid=np.array([4, 4]),
        accepted=np.array([1, 1]),
        pass_rate=np.array([0.5, 0.25]),
        max_new_tokens=8,
        share=np.array([Draw(0.4, 10).share, Draw(0.1, 10).share]),
    )
    assert unbiased(kept).tolist() == pytest.approx([0.25 / 2, 1.0 / 1])


@pytest.mark.parametrize(
    ("sample", "key"),
    [
        ("mopps", "sample"),
        ("adarft", "sample"),
        ("replay", "sample"),
        ("retire", "sample"),
        ("mine.py:first", "sample"),
    ],
)
def test_an_unbiased_weight_is_refused_where_the_probability_is_unknown(sample, key, tmp_path):
    (tmp_path / "mine.py").write_text("def first(table, state, rng, count):\n    return range(count), state\n")
    keys = {"sample": sample, "select": "all", "advantage": "raft"}
    with refused(ConfigError, "unbiased", key=key, code="config.combination"):
        resolve_members(validate({**keys, "weighting": "unbiased"}), tmp_path)
    resolve_members(validate({**keys, "weighting": "accepted"}), tmp_path)


def test_a_step_of_one_prompt_is_refused_with_overdue_prompts():
    keys = {"sample": "cures", "select": "all", "advantage": "raft", "weighting": "unbiased"}
    with refused(ConfigError, key="rollout.prompts_per_step", code="config.combination"):
        resolve_members(validate({**keys, "rollout": {"prompts_per_step": 1}}), Path())
    resolve_members(validate({**keys, "rollout": {"prompts_per_step": 2}}), Path())
    resolve_members(validate({**keys, "sample": "uniform", "rollout": {"prompts_per_step": 1}}), Path())


def test_the_log_of_a_run_has_the_probabilities_and_its_weights_use_them(smallest, tmp_path):
    keys = {"sample": "cures", "select": "all", "advantage": "raft", "weighting": "unbiased"}
    run = winnow.train(**smallest(steps=2, output=str(tmp_path / "run"), **keys), watch=lambda event: None)
    prompts = 16  # of the smallest run
    rows = list(read_rows(run.folder, 0))
    assert all(0 < row["drawn"] <= 1 for row in rows)
    # without earlier visits the weight is that of `accepted`, by the share in place of 1 / G
    right = [row for row in rows if row["weight"] is not None]
    for row in right:
        accepted = sum(other["correct"] for other in rows if other["prompt_id"] == row["prompt_id"])
        assert row["weight"] == pytest.approx(1 / (prompts * row["drawn"] * accepted))
    (first, *_) = [row for row in read_metrics(run.folder) if "budget/rollouts" in row]
    chances = {row["drawn"] for row in rows}
    assert (first["sampler/probability_least"], first["sampler/probability_most"]) == (min(chances), max(chances))


def test_no_probability_is_logged_where_all_are_equal(smallest, tmp_path):
    run = winnow.train(**smallest(steps=1, output=str(tmp_path / "run")), watch=lambda event: None)
    assert {row["drawn"] for row in read_rows(run.folder, 0)} == {None}
    assert not [name for row in read_metrics(run.folder) for name in row if "probability" in name]
