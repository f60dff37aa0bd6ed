"""vLLM's CPU build samples from the published model as the learner computes it, and its tokens are the text."""

from __future__ import annotations

import numpy as np
import pytest

from published_rollouts import context, engine_logprobs, learned, policy, prompts, published_folder, sample
from winnow.core.mismatch import percentile_999
from winnow.engines.vllm.engine import vllm
from winnow.models.folder import PUBLISHED
from winnow.models.load import load

pytestmark = pytest.mark.published

LIMITS = {"float32": (2e-5, 2e-4), "bfloat16": (0.04, 0.3)}  # of the mean gap, and of its 99.9th percentile


@pytest.mark.parametrize("dtype", LIMITS)
def test_its_log_probs_are_those_of_the_learner(dtype, record_property):
    published_folder()  # skips where there is none
    loaded = load(PUBLISHED, dtype=dtype)
    engine = vllm(context(loaded), compiled=False, key_value_gib=0.25)
    try:
        rows = sample(engine, prompts(loaded.tokenizer))
    finally:
        engine.close()
    gap = np.abs(engine_logprobs(rows) - learned(policy(loaded), rows))
    figures = {"mean": float(gap.mean()), "p999": percentile_999(gap), "max": float(gap.max())}
    for name, figure in {"tokens": gap.size, **figures}.items():
        record_property(name, figure)
    mean, tail = LIMITS[dtype]
    assert figures["mean"] <= mean
    assert figures["max" if dtype == "float32" else "p999"] <= tail

    ended = [row for row in rows if row.rollout.finish == "stop"]
    for row in rows:
        text = loaded.tokenizer.decode(row.rollout.tokens, skip_special_tokens=True)
        assert row.rollout.text == text
    assert {row.rollout.tokens[-1] for row in ended} <= {*loaded.stop_tokens}
