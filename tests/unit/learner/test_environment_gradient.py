"""A token of an environment has no gradient: under every loss, with every term, and in the policy's parameters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from winnow.algos.objective import Objective, Term
from winnow.learner.policy import Policy
from winnow.records import PolicyOutput, Prompt, Rollout, TrainingSequence
from winnow.registry import members, resolve
from winnow.testing import tiny

MASK = np.array([True, False, False, True])
PROMPT = Prompt(id="p", tokens=np.array([7, 8]), text="", answer=None, task="t")
SHIFTED = np.array([-1.0, 0.0, 0.0, -2.0])


def sequence(mask=MASK, tokens=(3, 4, 5, 6)):
    rollout = Rollout(
        index=0, tokens=np.array(tokens), logprobs=SHIFTED, text="", finish="stop", version=0, trainable=mask
    )
    return TrainingSequence(
        prompt=PROMPT, rollout=rollout, group=0, advantage=1.0, weight=0.5, old_logprobs=SHIFTED, ref_logprobs=SHIFTED
    )


def policy():
    loaded = tiny()
    made = Policy(loaded.model, temperature=1.0, pad_token=loaded.stop_tokens[0], tokens_per_micro_batch=64)
    return loaded.model, made


@pytest.mark.parametrize("loss", sorted(members("loss")))
@pytest.mark.parametrize("term", [None, *sorted(members("term"))])
def test_the_gradient_at_an_environment_token_is_zero(loss, term):
    (mb,) = policy()[1].micro_batches([sequence()])
    logprobs = torch.tensor(SHIFTED - 0.1, dtype=torch.float32, requires_grad=True)
    entropy = torch.full((4,), 1.5, requires_grad=True)
    terms = () if term is None else (Term(term, 0.1, resolve("term", term).function),)
    objective = Objective(loss=resolve("loss", loss).function, terms=terms)
    objective(PolicyOutput(logprobs=logprobs, entropy=entropy), mb).total.backward()
    assert logprobs.grad[[1, 2]].tolist() == [0.0, 0.0]
    assert logprobs.grad[[0, 3]].abs().min() > 0
    if entropy.grad is not None:
        assert entropy.grad[[1, 2]].tolist() == [0.0, 0.0]


def test_the_policys_gradient_is_that_of_its_own_tokens_alone():
    """It equals the gradient of the two sampled log-probs, computed by the model alone, in the same context."""
    model, of_model = policy()
    (mb,) = of_model.micro_batches([sequence()])
    out = of_model.forward(mb)
    Objective(loss=resolve("loss", "reinforce").function)(out, mb).total.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    tokens = torch.tensor([[7, 8, 3, 4, 5, 6]])
    logprobs = model(input_ids=tokens).logits.log_softmax(-1)[0]
    (-0.5 * (logprobs[1, 3] + logprobs[4, 6])).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-5, atol=1e-7)


def test_another_environment_token_changes_only_what_follows_it():
    """The last environment token is read by later tokens, and by no loss: with no later token nothing depends on it."""
    last = np.array([True, True, False, False])
    gradients = []
    for tokens in ((3, 4, 5, 6), (3, 4, 9, 2)):
        model, of_model = policy()
        (mb,) = of_model.micro_batches([dataclasses.replace(sequence(last, tokens))])
        Objective(loss=resolve("loss", "reinforce").function)(of_model.forward(mb), mb).total.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    first, second = gradients
    assert all(torch.allclose(first[name], second[name], atol=1e-8) for name in first)
