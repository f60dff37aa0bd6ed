"""The written-out decoding pass: the same rollouts as by modules, the models that it decodes, and its copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_native_memory import prompts
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from winnow.engines.base import EngineContext
from winnow.engines.native import decoder as native_decoder
from winnow.engines.native.engine import native
from winnow.engines.native.linear import joined_bytes
from winnow.engines.native.plain import is_plain, plain_weights
from winnow.engines.native.sampler import Native, check_attention
from winnow.models.adapter import add_lora
from winnow.models.load import load_tokenizer
from winnow.models.meta import skeleton
from winnow.records import Rollout, Sampling

SIZES: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama with biases": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama without groups": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
    "llama 3": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 64},
            }
        },
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 12}),
}


def made(name: str, *, dtype: torch.dtype = torch.float32, **settings: Any) -> PreTrainedModel:
    """A random model in which every layer has an effect, and norms and biases, which start at 1 and 0, are random."""
    kind, config, more = MODELS[name]
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config(**{**SIZES, "vocab_size": 100, "initializer_range": 0.25, **more, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.to(dtype).eval()


def engine_of(model: PreTrainedModel, **options: Any) -> Native:
    tokenizer = load_tokenizer("bundled")
    context = EngineContext(model=model, tokenizer=tokenizer, stop_tokens=(0,), max_rollouts_at_once=13)
    engine = native(context, **options)
    assert isinstance(engine, Native)
    return engine


def sampled(engine: Native, *, tokens: int = 20, modules: bool = False) -> list[Rollout]:
    """Rollouts of prompts with one and with two blocks, some of which wait for a free row."""
    before, engine._modules = engine._modules, modules
    engine._decoder = None
    groups = engine.generate(prompts(5, 70, 9), [5, 5, 5], Sampling(max_new_tokens=tokens), seed=(1,))
    engine._modules, engine._decoder = before, None
    return [rollout for group in groups for rollout in group.rollouts]


def check_same(one: list[Rollout], other: list[Rollout], *, gap: float) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=gap)


def layer_calls(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[int]:
    """The numbers of tokens that the modules of a layer read from now on."""
    calls, kind = list[int](), type(model.model.layers[0])
    forward = kind.forward

    def counted(self: Any, states: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(states.shape[1])
        return forward(self, states, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", counted)
    return calls


# The head is `lm_head` in every model: whether its matrix is the embedding's is tried on one
@pytest.mark.parametrize(("name", "tied"), [*((name, False) for name in MODELS), ("qwen2", True)])
def test_it_samples_the_rollouts_of_the_modules(monkeypatch: pytest.MonkeyPatch, name: str, tied: bool) -> None:
    model = made(name, tie_word_embeddings=tied)
    assert is_plain(model)
    engine = engine_of(model)
    by_modules = sampled(engine, tokens=80, modules=True)
    calls = layer_calls(monkeypatch, model)
    written_out = sampled(engine, tokens=80)
    assert min(calls) > 1  # of prompts only
    assert len({tuple(rollout.tokens) for rollout in written_out}) == 15
    assert max(len(rollout.tokens) for rollout in written_out) > 40
    check_same(written_out, by_modules, gap=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_log_probs_in_16_bits_are_within_the_tolerance(name: str) -> None:
    engine = engine_of(made(name, dtype=torch.bfloat16))
    gaps = list[float]()
    pairs = zip(sampled(engine), sampled(engine, modules=True), strict=True)
    for a, b in pairs:
        length = min(len(a.tokens), len(b.tokens))
        apart = np.flatnonzero(a.tokens[:length] != b.tokens[:length])
        same = int(apart[0]) if len(apart) else length
        gaps += np.abs(a.logprobs[:same] - b.logprobs[:same]).tolist()
    assert len(gaps) > 40
    assert np.mean(gaps) <= engine.logprob_tolerance.mean
    assert max(gaps) <= engine.logprob_tolerance.tail


def test_large_matrices_are_multiplied_one_by_one() -> None:
    """260 x 260 and 300 x 260 numbers are above the limit of 65,536, so none of them is copied, but packed on x86."""
    model = made("qwen2", hidden_size=260, intermediate_size=300, num_attention_heads=2, initializer_range=0.08)
    assert joined_bytes(model, torch.float32) == 0
    engine = engine_of(model)
    check_same(sampled(engine), sampled(engine, modules=True), gap=1e-5)


@pytest.mark.parametrize("dtype", ["policy", "bfloat16"])
def test_the_next_request_decodes_on_the_changed_weights(dtype: str) -> None:
    """An optimizer changes the policy in place; then the engine loads the weights."""
    model = made("qwen2")
    engine = engine_of(model, dtype=dtype)
    before = sampled(engine)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.neg_()
            layer.self_attn.k_proj.bias.add_(1)
            layer.mlp.up_proj.weight.mul_(3)
            layer.input_layernorm.weight.mul_(1.5)
    engine.load(dict(model.named_parameters()), version=1)
    after, fresh = sampled(engine), sampled(engine_of(model, dtype=dtype))
    check_same(after, fresh, gap=0)
    assert [rollout.tokens.tolist() for rollout in after] != [rollout.tokens.tolist() for rollout in before]


def test_copies_are_freed_after_a_request() -> None:
    engine = engine_of(made("llama"))
    engine.generate(prompts(5), [2], Sampling(max_new_tokens=3), seed=(0,))
    assert engine._decoder is not None
    assert engine._decoder._weights is None


def plain_or_not(change: Any) -> bool:
    model = made("qwen2")
    change(model)
    return is_plain(model)


def test_a_changed_module_is_not_plain() -> None:
    def hook(model: Any) -> None:
        model.model.norm.register_forward_hook(lambda module, inputs, output: output)

    def forward(model: Any) -> None:
        model.model.layers[0].mlp.forward = lambda states: states

    def layer(model: Any) -> None:
        model.model.layers[0].mlp.up_proj = nn.Identity()

    def half(model: Any) -> None:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.bfloat16())

    assert plain_or_not(lambda model: None)
    assert not any(plain_or_not(change) for change in (hook, forward, layer, half, nn.Module.double))


def test_other_models_and_adapters_are_not_plain() -> None:
    assert not is_plain(MistralForCausalLM(MistralConfig(**SIZES, vocab_size=40)))
    assert not is_plain(add_lora(made("llama"), rank=2, alpha=4.0, targets=["q_proj"], seed=0))  # type: ignore[arg-type]
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert not is_plain(made("llama", rope_parameters=dynamic))
    assert not is_plain(made("llama", hidden_act="gelu"))


def test_a_pass_with_other_logits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at the engine's start finds the difference, and the modules decode."""
    model = made("qwen2")
    assert check_attention(model)
    expected = sampled(engine_of(model), modules=True)
    decode = native_decoder.decode
    monkeypatch.setattr(native_decoder, "decode", lambda *args: decode(*args).roll(1, dims=-1))
    assert not check_attention(model)
    engine = engine_of(model)
    assert engine._modules
    groups = engine.generate(prompts(5, 70, 9), [5, 5, 5], Sampling(max_new_tokens=20), seed=(1,))
    check_same([rollout for group in groups for rollout in group.rollouts], expected, gap=0)


def test_a_pass_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Tensor:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(native_decoder, "decode", fail)
    assert not check_attention(made("llama"))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_plan_counts_the_copies_of_small_matrices(name: str) -> None:
    """In each of 2 layers: queries 4 x D, keys and values 2 x D each, gate and up 48 outputs each, of 32 inputs. Qwen2
    has a bias for each output of attention.
    """
    model = made(name)
    width = 12 if name == "qwen3" else 8
    numbers = 2 * (8 * width * 32 + 96 * 32 + (8 * width if name == "qwen2" else 0))
    assert joined_bytes(model, torch.bfloat16) == 2 * numbers
    shapes = skeleton(model.config, torch.float32)
    assert shapes is not None
    assert joined_bytes(shapes, torch.float32) == 4 * numbers
    held = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    copies = 0
    for layer in plain_weights(model).layers:
        for product in (layer.query_key_value, layer.gate_up, layer.output, layer.down):
            tensors = [cell.cell_contents for cell in product.__closure__ or ()]  # type: ignore[attr-defined]
            own = [t for t in tensors if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in held]
            copies += sum(tensor.numel() for tensor in own)
    assert copies == numbers
    assert joined_bytes(MistralForCausalLM(MistralConfig(**SIZES, vocab_size=40)), torch.float32) == 0
