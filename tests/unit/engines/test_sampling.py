"""The token that each uniform selects, with expected values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from refusals import refused
from winnow.engines import sampling
from winnow.engines.requests import pending_rollouts
from winnow.engines.sampling import _choose, ascending_sums, choose, to_host, uniforms
from winnow.errors import EngineError
from winnow.records import Prompt, Sampling

P = torch.tensor([[0.1, 0.0, 0.4, 0.3, 0.2]], dtype=torch.float64)  # cumulative: .1 .1 .5 .8 1


def chosen(u: float, **sampling: float) -> tuple[int, float]:
    token, logprob = choose(P.log(), torch.tensor([u], dtype=torch.float64), Sampling(max_new_tokens=1, **sampling))
    return int(token[0]), float(logprob[0])


@pytest.mark.parametrize(
    ("u", "token", "p"), [(0.0, 0, 0.1), (0.0999, 0, 0.1), (0.1001, 2, 0.4), (0.51, 3, 0.3), (0.9999, 4, 0.2)]
)
def test_the_uniform_is_inverted_through_the_cumulative_distribution(u: float, token: int, p: float) -> None:
    assert chosen(u) == (token, pytest.approx(math.log(p)))


def test_a_uniform_just_below_one_never_picks_an_impossible_token() -> None:
    logits = torch.full((1, 50_000), 0.1)
    logits[0, 40_000:] = -torch.inf
    u = torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert int(choose(logits, u, Sampling(max_new_tokens=1))[0]) == 39_999


@pytest.mark.parametrize("vocabulary", [1, 5, 63, 64, 65, 1000])
def test_blocks_of_the_vocabulary_choose_as_one_cumulative_sum_does(vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    logits = torch.from_numpy(random.normal(0, 4, (500, vocabulary)))
    logits[:, ::3] = -torch.inf if vocabulary > 1 else 0.0
    u = torch.from_numpy(random.random(500))
    u[:3] = torch.tensor([0.0, np.nextafter(1.0, 0.0), 0.5])
    whole = logits.softmax(-1).cumsum(-1)
    expected = torch.searchsorted(whole / whole[:, -1:], u[:, None], right=True)[:, 0].clamp_(max=vocabulary - 1)
    token, logprob = choose(logits, u, Sampling(max_new_tokens=1))
    assert (token != expected).sum() <= 1  # u[1] is almost 1, and rounding may lift it onto the end
    torch.testing.assert_close(logprob, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0])
    assert logprob.isfinite().all()


@pytest.mark.parametrize("width", [1, 5, 64, 65, 2374])
def test_repeatable_sums_are_as_exact_as_plain_ones_and_never_descend(width: int) -> None:
    random = np.random.default_rng(width)
    values = random.random((300, width)) * 10.0 ** random.integers(-30, 1, (300, width))
    values[random.random(values.shape) < 0.3] = 0.0
    exact = values.astype(np.longdouble).cumsum(axis=1)
    sums = ascending_sums(torch.from_numpy(values)).numpy()
    off = np.abs(sums - exact) / np.where(exact > 0, exact, 1)
    assert off.max() <= 5 * np.finfo(np.float64).eps
    assert off.mean() <= 1e-15
    rises = np.diff(sums, axis=1, prepend=0.0)
    assert rises.min() >= 0
    assert (rises[values == 0] == 0).all(), "otherwise a token without mass could be sampled"
    assert (ascending_sums(torch.from_numpy(values).float()).dtype, sums.shape) == (torch.float64, values.shape)


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.8}])
def test_repeatable_sums_sample_the_same_tokens(monkeypatch: pytest.MonkeyPatch, cut: dict[str, float]) -> None:
    random = np.random.default_rng(7)
    logits = torch.from_numpy(random.normal(0, 4, (5_000, 200))).float()
    logits[:, ::3] = -torch.inf
    u = torch.from_numpy(random.random(len(logits)))
    settings = Sampling(max_new_tokens=1, **cut)
    plain = choose(logits, u, settings)
    monkeypatch.setattr(sampling, "_cumulative", ascending_sums)
    token, logprob = choose(logits, u, settings)
    assert torch.equal(token, plain[0])
    torch.testing.assert_close(logprob, plain[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_repeatable_sums_do_not_hide_logits_that_are_not_finite(monkeypatch: pytest.MonkeyPatch, broken: float) -> None:
    logits = torch.zeros(2, 200)
    logits[1, 150] = broken
    monkeypatch.setattr(sampling, "_cumulative", ascending_sums)
    with refused(EngineError, code="engine.diverged"):
        to_host(*choose(logits, torch.zeros(2, dtype=torch.float64), Sampling(max_new_tokens=1)))


def test_temperature_sharpens_and_zero_is_greedy_at_temperature_one() -> None:
    squares = P[0] ** 2 / (P[0] ** 2).sum()  # .01 0 .16 .09 .04, over .30
    assert chosen(0.5, temperature=0.5) == (2, pytest.approx(math.log(squares[2])))
    assert chosen(0.999, temperature=0.0) == (2, pytest.approx(math.log(0.4)))


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 2}, {2: 0.4, 3: 0.3}),
        ({"top_k": 99}, {0: 0.1, 2: 0.4, 3: 0.3, 4: 0.2}),
        ({"top_p": 0.69}, {2: 0.4, 3: 0.3}),
        ({"top_p": 0.71}, {2: 0.4, 3: 0.3, 4: 0.2}),
        ({"top_p": 1e-9}, {2: 0.4}),
        ({"min_p": 0.6}, {2: 0.4, 3: 0.3}),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.5}, {2: 0.4, 3: 0.3}),
    ],
)
def test_cuts_keep_the_likeliest_and_renormalise(cut: dict[str, float], kept: dict[int, float]) -> None:
    logprobs = dict(chosen(u, **cut) for u in np.linspace(0, 0.9999, 201))
    total = sum(kept.values())
    assert logprobs == {token: pytest.approx(math.log(p / total)) for token, p in kept.items()}


def test_rows_of_uniforms_follow_the_rollout_and_prefixes_agree() -> None:
    prompts = [Prompt(id=i, tokens=np.array([1]), text="", answer=None, task="") for i in ("a", "b")]
    both, longer = (uniforms((1, 2), pending_rollouts(prompts, [2, 1]), n) for n in (4, 9))
    only_b = uniforms((1, 2), pending_rollouts(prompts[1:], [1]), 4)
    assert both.shape == (3, 4)
    assert len(np.unique(both)) == 12
    np.testing.assert_array_equal(both, longer[:, :4])
    np.testing.assert_array_equal(both[2:], only_b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [Sampling(max_new_tokens=1), Sampling(max_new_tokens=1, top_p=0.7, top_k=20)])
def test_pieces_of_rows_are_chosen_as_all_rows_at_once(
    dtype: torch.dtype, how: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(7, 300, generator=random)).to(dtype)
    uniform = torch.rand(7, generator=random, dtype=torch.float64)
    whole = choose(logits, uniform, how)
    for numbers, pieces in ((1, 7), (600, 4), (2099, 2)):
        monkeypatch.setattr(sampling, "CACHED", numbers)
        made: list[int] = []
        monkeypatch.setattr(sampling, "_choose", lambda *given, made=made: made.append(1) or _choose(*given))
        assert all(map(torch.equal, choose(logits, uniform, how), whole))
        assert len(made) == pieces
