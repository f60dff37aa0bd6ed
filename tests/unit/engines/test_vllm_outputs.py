"""What vLLM says of a rollout, token by token; no vLLM is needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from winnow.engines.vllm.server import GrowingRollout
from winnow.errors import EngineError


def said(tokens: list[int], logprobs: list[float]) -> Any:
    return SimpleNamespace(token_ids=tokens, logprobs=SimpleNamespace(logprobs=logprobs))


def test_a_rollout_grows_by_what_is_new() -> None:
    rollout = GrowingRollout()
    for tokens, logprobs in ([5], [-0.1]), ([], []), ([7, 6], [-1e-300, -2.5]):
        rollout.add(said(tokens, logprobs))
    assert [rollout.newest(n).tolist() for n in (1, 2, 3)] == [[6], [7, 6], [5, 7, 6]]
    ids, found = rollout.arrays()
    assert (ids.tolist(), found.tolist()) == ([5, 7, 6], [-0.1, -1e-300, -2.5])
    assert (ids.dtype, found.dtype) == ("int64", "float64")


@pytest.mark.parametrize("logprobs", [[float("nan")], [float("-inf")], []])
def test_a_log_prob_that_is_missing_or_no_number_is_an_error(logprobs: list[float]) -> None:
    with pytest.raises(
        EngineError,
        match=r"log-probs are not finite: the policy's weights have diverged|vLLM gave 1 tokens with \d log-probs",
    ):
        GrowingRollout().add(said([5], logprobs))
