"""The token that ends a rollout is a token like any other: without its gradient a policy cannot learn to stop."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.learner.policy import Policy
from winnow.records import Prompt, Rollout, TrainingSequence
from winnow.testing import tiny


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_rollout_that_only_stops_teaches_stopping(finish):
    loaded = tiny()
    (stop,) = loaded.stop_tokens[:1]
    sequence = TrainingSequence(
        prompt=Prompt(id="p", tokens=np.array([7, 8]), text="", answer=None, task="t"),
        rollout=Rollout(index=0, tokens=np.array([stop]), logprobs=np.array([-6.0]), text="", finish=finish, version=0),
        group=0,
        advantage=1.0,
        weight=1.0,
    )
    policy = Policy(loaded.model, temperature=1.0, pad_token=stop, tokens_per_micro_batch=64)
    (mb,) = policy.micro_batches([sequence])
    assert mb.trained is None
    (-(mb.advantages * policy.forward(mb).logprobs).sum()).backward()
    assert loaded.model.get_output_embeddings().weight.grad[stop].abs().max() > 0
