"""How engines get the policy's weights: `hf` copies them, `native` shares the policy's module."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from refusals import refused
from winnow.engines.base import Engine, EngineContext, evaluating
from winnow.engines.hf import hf
from winnow.engines.native.engine import native
from winnow.errors import ConfigError, EngineError
from winnow.models.backbone import reads_in_pieces
from winnow.records import Prompt, Sampling

PROMPT = Prompt(id="p", tokens=np.array([3, 1, 4]), text="", answer=None, task="")


def context(**changes: object) -> EngineContext:
    torch.manual_seed(0)
    sizes = dict(vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **changes))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({str(i): i for i in range(12)}, "0"))
    )
    return EngineContext(model=model, tokenizer=tokenizer, stop_tokens=(11,), max_rollouts_at_once=8)


def greedy(engine: Engine) -> np.ndarray:
    return engine.generate([PROMPT], [1], Sampling(max_new_tokens=3, temperature=0), seed=(0,))[0].rollouts[0].logprobs


def perturb(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)


def test_hf_samples_with_old_weights_until_it_loads_new_ones() -> None:
    c = context()
    engine = hf(c)
    before = greedy(engine)
    perturb(c.model)
    np.testing.assert_array_equal(greedy(engine), before)
    engine.load(c.model.state_dict(), version=1)
    after = greedy(engine)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, greedy(native(c)), atol=1e-5)


def test_hf_requires_every_trained_parameter() -> None:
    c = context()
    c.model.model.embed_tokens.requires_grad_(False)
    engine = hf(c)
    trained = {name: p for name, p in c.model.named_parameters() if p.requires_grad}
    engine.load(trained, version=1)
    del trained["model.norm.weight"]
    with refused(EngineError, "model.norm.weight", code="engine.contract"):
        engine.load(trained, version=2)
    assert engine.version == 1


def test_native_refuses_copies() -> None:
    c = context()
    engine = native(c)
    engine.load(dict(c.model.named_parameters()), version=1)
    with refused(EngineError, "lm_head.weight", code="engine.contract"):
        engine.load({"lm_head.weight": c.model.lm_head.weight.clone()}, version=2)
    assert engine.version == 1


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_a_lora_policy_decodes_with_its_adapters() -> None:
    from peft import LoraConfig, get_peft_model  # with bitsandbytes: not while tests are collected

    c = context()
    adapted = get_peft_model(c.model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    c = dataclasses.replace(c, model=adapted)
    plain = greedy(native(context()))
    np.testing.assert_allclose(greedy(native(c)), greedy(hf(c)), atol=1e-5)
    assert np.abs(greedy(native(c)) - plain).max() > 1e-3


def test_native_refuses_layer_types_other_than_full_attention() -> None:
    c = context()
    c.model.config.layer_types = ["sliding_attention"]
    with refused(ConfigError, "sliding_attention", key="rollout.engine", code="config.unsupported"):
        native(c)
    assert np.isfinite(greedy(native(context(attn_implementation="eager")))).all()


def test_native_refuses_layers_that_bypass_the_attention_interface() -> None:
    c = context()
    attention = c.model.model.layers[0].self_attn
    forward = attention.forward
    attention.forward = lambda *args, shared=None, **options: forward(*args, **options)
    with refused(ConfigError, "hf", key="rollout.engine", code="config.unsupported"):
        native(c)


def test_native_refuses_a_model_whose_decoded_logits_differ() -> None:
    """DiffLlama rearranges values before the attention interface, and subtracts one attention from another."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = DiffLlamaForCausalLM(DiffLlamaConfig(**sizes, num_key_value_heads=2)).eval()
    with refused(ConfigError, "hf", key="rollout.engine", code="config.unsupported"):
        native(dataclasses.replace(context(), model=model))


def test_native_refuses_a_sliding_window_without_layer_types() -> None:
    torch.manual_seed(0)
    sizes = dict(vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    c = context()
    for window in (8, None):
        model = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=1, sliding_window=window))
        assert reads_in_pieces(model) is (window is None)
        if window is None:
            assert np.isfinite(greedy(native(dataclasses.replace(c, model=model)))).all()
        else:
            with refused(ConfigError, "sliding_window", key="rollout.engine", code="config.unsupported"):
                native(dataclasses.replace(c, model=model))


def test_a_copy_in_another_precision_keeps_its_rotary_frequencies() -> None:
    """They are a table, not a weight: in bfloat16 they would be off by radians at position 1,000."""
    model = native(context(), dtype="bfloat16")._model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_copy_in_another_precision_is_stale_until_it_loads() -> None:
    c = context()
    engine = native(c, dtype="bfloat16")
    before = greedy(engine)
    assert 0 < np.abs(before - greedy(native(c))).max() < engine.logprob_tolerance.tail
    perturb(c.model)
    np.testing.assert_array_equal(greedy(engine), before)
    engine.load({name: p.detach() for name, p in c.model.named_parameters()}, version=1)
    assert np.abs(greedy(engine) - greedy(native(c))).max() < engine.logprob_tolerance.tail
    assert np.abs(greedy(engine) - before).max() > 0.1
    assert c.model.dtype == torch.float32


def test_an_evaluation_samples_on_the_policy_and_later_steps_on_the_copy() -> None:
    c = context()
    engine = native(c, dtype="bfloat16")
    before = greedy(engine)
    perturb(c.model)
    with evaluating(engine) as bits:
        assert bits == 32
        np.testing.assert_array_equal(greedy(engine), greedy(native(c)))
    np.testing.assert_array_equal(greedy(engine), before)
    with pytest.raises(RuntimeError), evaluating(engine):
        raise RuntimeError
    np.testing.assert_array_equal(greedy(engine), before)


def test_without_memory_or_whole_weights_evaluations_use_the_copy() -> None:
    for changes in ({"exact_evaluation": False}, {"sharded": True}):
        c = dataclasses.replace(context(), **changes)
        engine = native(c, dtype="bfloat16")
        before = greedy(engine)
        perturb(c.model)
        with evaluating(engine) as bits:
            assert bits == 16
            np.testing.assert_array_equal(greedy(engine), before)


def test_an_engine_in_the_policy_s_precision_reports_no_bits() -> None:
    half = context()
    half.model.to(torch.bfloat16)
    for engine in (native(context()), hf(context()), native(half, dtype="bfloat16")):
        with evaluating(engine) as bits:
            assert bits is None
