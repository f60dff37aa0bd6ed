"""Packed weights: their products, when they are made, and their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.engines.native.linear import packable, packed, packed_bytes
from winnow.engines.native.sampler import Native
from winnow.models.load import load_tokenizer
from winnow.records import Prompt, Sampling

PROMPTS = [Prompt(id=f"p{i}", tokens=np.arange(i + 1, 6 + 2 * i), text="", answer=None, task="") for i in range(2)]
here = pytest.mark.skipif(not packable("cpu", torch.float32), reason="torch has no oneDNN here, or this is no x86")


def large(*, tied: bool = False) -> PreTrainedModel:
    """One layer; 260 x 260 = 67,600 numbers in each matrix of its attention, and 260 x 100 in those of its MLP."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=260, intermediate_size=100, num_hidden_layers=1, num_attention_heads=2, vocab_size=512)
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied))


def sampled(model: PreTrainedModel, **options: Any) -> tuple[Native, list[Any]]:
    context = EngineContext(model=model, tokenizer=load_tokenizer("bundled"), stop_tokens=(0,), max_rollouts_at_once=5)
    engine = native(context, **options)
    assert isinstance(engine, Native)
    return engine, rollouts(engine)


def rollouts(engine: Native) -> list[Any]:
    groups = engine.generate(PROMPTS, [4, 3], Sampling(max_new_tokens=12), seed=(1,))
    return [rollout for group in groups for rollout in group.rollouts]


def replaced(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_the_layer_s_product(dtype: torch.dtype, bias: bool) -> None:
    if not packable("cpu", dtype):
        pytest.skip("oneDNN computes in no bfloat16 here")
    model = nn.Sequential(nn.Linear(300, 301, bias=bias, dtype=dtype))
    for rows in (1, 7, 64):
        states = torch.randn(rows, 1, 300).to(dtype)
        with torch.inference_mode():
            plain = model(states)
            with packed(model):  # type: ignore[arg-type]
                assert replaced(model) == ["0"]
                multiplied = model(states)
        assert multiplied.shape == (rows, 1, 301)
        torch.testing.assert_close(multiplied, plain)


@here
def test_large_linear_layers_are_packed_only_inside_the_context() -> None:
    model = large()
    attention = [f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    inside = packed(model)
    inside.__enter__()
    assert replaced(model) == [*attention, "lm_head"]
    error = RuntimeError("a request that failed")
    assert not inside.__exit__(type(error), error, None)
    assert replaced(model) == []


@here
def test_a_layer_with_a_replaced_forward_is_not_packed() -> None:
    model = large()
    layer = model.model.layers[0].self_attn.q_proj
    vars(layer)["forward"] = other = layer.forward
    with packed(model):
        assert layer.forward is other
        assert len(replaced(model)) == 5
    assert layer.forward is other
    assert len(replaced(model)) == 1


@here
@pytest.mark.parametrize("dtype", ["policy", "bfloat16"])
def test_packed_weights_change_no_rollout(dtype: str) -> None:
    model = large()
    engine, one = sampled(model, dtype=dtype)
    _, other = sampled(model, dtype=dtype, packed=False)
    gap = 1e-5 if dtype == "policy" else engine.logprob_tolerance.tail
    for a, b in zip(one, other, strict=True):
        same = min(len(a.tokens), len(b.tokens)) if dtype == "policy" else 1
        assert dtype != "policy" or len(a.tokens) == len(b.tokens)
        np.testing.assert_array_equal(a.tokens[:same], b.tokens[:same])
        np.testing.assert_allclose(a.logprobs[:same], b.logprobs[:same], atol=gap)


@here
def test_the_next_request_decodes_on_the_changed_weights() -> None:
    """An optimizer changes a policy's weights in place."""
    model = large()
    engine, before = sampled(model)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.neg_()
        model.lm_head.weight.mul_(3)
    after, fresh = rollouts(engine), sampled(model)[1]
    for a, b in zip(after, fresh, strict=True):
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
    assert [rollout.tokens.tolist() for rollout in after] != [rollout.tokens.tolist() for rollout in before]


@here
@pytest.mark.parametrize("tied", [True, False])
def test_the_plan_counts_the_packed_layers(tied: bool) -> None:
    """An embedding is looked up row by row; it is a matrix product only where it is also the output layer."""
    model = large(tied=tied)
    assert packed_bytes(model, torch.bfloat16) == 2 * (4 * 260 * 260 + 512 * 260)
    with packed(model):
        layers = [module for module in model.modules() if "forward" in vars(module)]
        assert 2 * sum(layer.weight.numel() for layer in layers) == packed_bytes(model, torch.bfloat16)


def test_only_float32_and_bfloat16_on_a_cpu_are_packed() -> None:
    assert not packable("cuda:0", torch.float32)
    assert not packable("cpu", torch.float64)
    assert not packable("cpu", torch.float16)
    exact = large().double()
    with packed(exact):
        assert replaced(exact) == []
