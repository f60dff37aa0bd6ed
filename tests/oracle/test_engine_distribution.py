"""Engines draw whole rollouts from the policy's distribution, which a tiny policy lets us write down."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from winnow.engines.base import EngineContext
from winnow.engines.hf import hf
from winnow.engines.native.engine import native
from winnow.models.load import load
from winnow.records import Prompt, Sampling

TOKENS, LENGTH, STOP, ROLLOUTS = 4, 3, 3, 20_000
PROMPT = Prompt(id="p", tokens=np.array([1, 0, 2]), text="", answer=None, task="")


def context() -> EngineContext:
    torch.manual_seed(3)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=TOKENS)
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_key_value_heads=1, tie_word_embeddings=False))
    with torch.no_grad():
        model.lm_head.weight.mul_(30)  # far from uniform
    tokenizer = load("bundled").tokenizer
    return EngineContext(model=model, tokenizer=tokenizer, stop_tokens=(STOP,), max_rollouts_at_once=ROLLOUTS // 3)


def completions() -> list[tuple[int, ...]]:
    """Every rollout there is: it ends with the stop token or at the length."""
    found = []
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product(range(TOKENS), repeat=length):
            if STOP not in tokens[:-1] and (tokens[-1] == STOP or length == LENGTH):
                found.append(tokens)
    return found


def probability(model: torch.nn.Module, tokens: tuple[int, ...], temperature: float) -> float:
    sequence = torch.tensor([*PROMPT.tokens, *tokens])[None]
    with torch.no_grad():
        logits = model(input_ids=sequence).logits[0, len(PROMPT.tokens) - 1 : -1].double() / temperature
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum().exp())


@pytest.mark.parametrize(("engine", "temperature"), [(native, 1.0), (native, 0.7), (hf, 0.7)])
def test_whole_rollouts_are_drawn_with_their_probability(engine, temperature: float) -> None:
    c = context()
    every = completions()
    p = np.array([probability(c.model.double(), tokens, temperature) for tokens in every])
    assert p.sum() == pytest.approx(1, abs=1e-12)
    c.model.float()
    sampling = Sampling(max_new_tokens=LENGTH, temperature=temperature)
    group = engine(c).generate([PROMPT], [ROLLOUTS], sampling, seed=(0,))[0]
    place = {tokens: i for i, tokens in enumerate(every)}
    drawn = np.array([place[tuple(rollout.tokens.tolist())] for rollout in group.rollouts])
    seen = np.bincount(drawn, minlength=len(every))
    assert len(every) == 40
    assert p.max() > 5 * np.median(p)
    likely = p * ROLLOUTS >= 5
    observed = np.append(seen[likely], seen[~likely].sum())
    expected = np.append(p[likely], p[~likely].sum()) * ROLLOUTS
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)  # beyond 4 standard deviations
    logprobs = np.array([rollout.logprobs.sum() for rollout in group.rollouts])
    np.testing.assert_allclose(logprobs, np.log(p)[drawn], atol=3e-5, rtol=0)
