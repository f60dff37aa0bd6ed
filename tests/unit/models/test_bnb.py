"""A base of 4 bits: what it means, what is saved of it, and what it takes."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from refusals import refused
from winnow.engines.base import Tolerance
from winnow.engines.native.linear import packed_bytes
from winnow.engines.served import ServerEngine
from winnow.errors import ConfigError, DataError
from winnow.learner.policy import Policy
from winnow.memory.footprint import parameter_bytes, unpacked_bytes
from winnow.models.adapter import (
    adapter_off,
    adapter_on,
    adapter_weights,
    add_lora,
    merges,
    plain_model,
    plain_names,
    set_frozen_adapter,
)
from winnow.models.bnb import dequantized, is_4bit, to_4bit_shapes, without_hub_kernels
from winnow.models.load import load
from winnow.models.meta import meta_model, weight_bytes
from winnow.models.save import write_model_folder
from winnow.records import Prompt, Rollout, TrainingSequence

# Found, not imported: to import it takes a second, and every worker collects this file
pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (winnow-rl[bnb])")

LORA = {"rank": 4, "alpha": 8.0, "targets": "all-linear", "seed": 0}
TOKENS = torch.arange(3, 15)[None]
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def packed(dtype: str = "float32", *, targets: Sequence[str] | str = "all-linear", taught: bool = False) -> nn.Module:
    """The bundled policy in 4 bits, with an adapter, which changes something where it is `taught`."""
    model = add_lora(load("bundled", dtype=dtype, quantization="nf4").model, **{**LORA, "targets": targets})
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        if taught and "lora_B" in name:
            p.data.normal_(std=0.02, generator=generator)
    return model


def as_plain(model: nn.Module, dtype: str) -> nn.Module:
    """A plain model with the weights that would be saved."""
    plain = load("bundled", dtype=dtype).model
    state = dict(plain_names(plain_model(model).state_dict().items()))
    plain.load_state_dict({**state, **{name: make() for name, make in merges(model).items()}})
    return plain


def matrices(model: nn.Module) -> dict[str, Tensor]:
    return {n: p for n, p in plain_names(plain_model(model).named_parameters()) if is_4bit(p)}


@DTYPES
def test_it_computes_with_what_its_weights_mean(dtype: str) -> None:
    """Before its adapter changes anything, as the plain model does that is saved; with gradients and without."""
    model = packed(dtype)
    plain = as_plain(model, dtype)
    assert len(matrices(model)) == 3 * 7
    with torch.no_grad():
        logits = model(input_ids=TOKENS).logits
        assert torch.equal(logits, plain(input_ids=TOKENS).logits)
    assert torch.equal(model(input_ids=TOKENS).logits, logits), "a pass with gradients is of the same weights"
    assert not torch.equal(logits, load("bundled", dtype=dtype).model(input_ids=TOKENS).logits)


def test_4_bits_are_near_the_weights_and_the_same_each_time() -> None:
    """The widest gap of nf4's codes is from -1 to -0.6962 of a block's largest number. Its scale is one of 8 bits,
    half of 0.9 / 64 off at most, of the largest difference between 256 scales and the mean of all.
    """
    one, other, files = matrices(packed()), matrices(packed()), load("bundled").model.state_dict()
    for name, weight in one.items():
        assert torch.equal(weight, other[name])
        assert torch.equal(dequantized(weight), dequantized(other[name]))
        blocks = files[name].reshape(-1, 64)
        largest = blocks.abs().amax(dim=1, keepdim=True)
        scale_error = 0.9 / 64 / 2 * (largest - largest.mean()).abs().max()
        off = (dequantized(weight).reshape(-1, 64) - blocks).abs()
        assert (off <= (1 - 0.6962) / 2 * largest + scale_error + 1e-6).all()
        assert off.max() > 1e-3


@DTYPES
@pytest.mark.parametrize("targets", ["all-linear", ("q_proj",)])
def test_the_merged_model_is_summed_in_float32_and_rounded_once(dtype: str, targets: object) -> None:
    model = packed(dtype, targets=targets, taught=True)
    merged = {name: make() for name, make in merges(model).items()}
    assert merged.keys() == matrices(model).keys(), "and no matrix stays packed, adapted or not"
    changes = {}
    for name, p in model.named_parameters():
        if "lora_B" in name:
            a = model.get_parameter(name.replace("lora_B", "lora_A"))
            changes[name.removeprefix("base_model.model.").split(".lora_B")[0] + ".weight"] = 2.0 * (p @ a).detach()
    for name, weight in matrices(model).items():
        whole = dequantized(weight) + changes[name] if name in changes else dequantized(weight)
        assert whole.dtype == torch.float32
        assert torch.equal(merged[name], whole.to(getattr(torch, dtype)))


@DTYPES
def test_it_is_saved_as_a_plain_model(dtype: str, tmp_path) -> None:
    model = packed(dtype, taught=True)
    write_model_folder(model, load("bundled").files, tmp_path)
    saved, wanted = load(str(tmp_path), dtype=dtype).model, as_plain(model, dtype)
    assert getattr(saved.config, "quantization_config", None) is None
    for name, weight in saved.named_parameters():
        assert torch.equal(weight, wanted.get_parameter(name)), name
    assert sum(p.numel() * p.element_size() for p in saved.parameters()) == parameter_bytes(model) - sum(
        p.numel() * 4 for p in model.parameters() if p.requires_grad
    )


def test_only_the_adapter_is_trained_and_it_is_float32() -> None:
    model = packed("bfloat16")
    trained = {n: p.dtype for n, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert set(trained.values()) == {torch.float32}
    assert all(".lora_" in name for name in trained)


def sequences() -> list[TrainingSequence]:
    prompt = Prompt(id="p", tokens=np.arange(3, 8), text="", answer=None, task="")
    rollouts = [
        Rollout(index=i, tokens=np.arange(9, 14) + i, logprobs=np.zeros(5), text="", finish="stop", version=0)
        for i in range(3)
    ]
    return [TrainingSequence(prompt=prompt, rollout=r, group=0, advantage=1.0, weight=1.0) for r in rollouts]


def test_log_probs_and_gradient_norms_are_those_of_what_the_weights_mean() -> None:
    model = packed()
    four, plain = (
        Policy(m, temperature=1.0, pad_token=0, tokens_per_micro_batch=1000)
        for m in (model, as_plain(model, "float32"))
    )
    for matrix in ("embedding", "output_head"):
        norms = [policy.gradient_norms(sequences(), of=matrix) for policy in (four, plain)]
        np.testing.assert_allclose(*norms, rtol=1e-5)
    one, other = (policy.forward(next(iter(policy.micro_batches(sequences())))).logprobs for policy in (four, plain))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    one.sum().backward()
    reached = [p.grad.abs().max() for n, p in four.parameters.items() if "lora_B" in n]
    assert min(reached) > 0, "gradients pass through every matrix of 4 bits"


def test_a_copy_is_a_copy() -> None:
    """As the engine `hf` makes one: what the policy becomes does not change it."""
    model = packed(taught=True)
    twin = copy.deepcopy(model)
    before = twin(input_ids=TOKENS).logits
    assert torch.equal(before, model(input_ids=TOKENS).logits)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(twin(input_ids=TOKENS).logits, before)


def test_the_base_and_a_frozen_second_adapter_come_and_go() -> None:
    """What a KL term compares with: the base, or the policy as it was."""
    model = packed(taught=True)
    set_frozen_adapter(model, "second", {name: p for name, p in model.named_parameters() if p.requires_grad})
    first = model(input_ids=TOKENS).logits
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B.default" in name:
                p.mul_(-1)
    assert not torch.allclose(model(input_ids=TOKENS).logits, first)
    with adapter_on(model, "second"):
        assert torch.equal(model(input_ids=TOKENS).logits, first)
    with adapter_off(model):
        assert torch.equal(model(input_ids=TOKENS).logits, packed()(input_ids=TOKENS).logits)


@DTYPES
def test_what_it_takes_is_what_is_planned(dtype: str) -> None:
    model = packed(dtype)
    drawn = add_lora(meta_model("bundled", dtype=dtype, adaptable=True, quantization="nf4"), **LORA)
    scales = [m.weight.quant_state for m in plain_model(model).modules() if is_4bit(getattr(m, "weight", None))]
    scales = {id(s): s for s in scales}.values()
    held = [*model.parameters(), *model.buffers(), *(s.absmax for s in scales), *(s.state2.absmax for s in scales)]
    held += [s.offset for s in scales]
    assert weight_bytes(drawn) == sum(t.numel() * t.element_size() for t in held)
    assert parameter_bytes(drawn) == parameter_bytes(model)
    whole = add_lora(meta_model("bundled", dtype=dtype, adaptable=True), **LORA)
    assert parameter_bytes(drawn) == parameter_bytes(whole)
    assert unpacked_bytes(drawn) == 256 * 128 * (4 if dtype == "float32" else 2)


def test_native_packs_no_matrix_of_4_bits() -> None:
    """Of matrices twice 2^16 bytes large, only the output layer is packed, as it is the only one left whole."""
    sizes = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 4}
    with torch.device("meta"):
        drawn = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1))
    head = 512 * 512 * 4
    assert packed_bytes(drawn, torch.float32) == 8 * head
    to_4bit_shapes(drawn)
    assert packed_bytes(drawn, torch.float32) == head


class Server:
    """Remembers what it was given."""

    logprob_tolerance = Tolerance(mean=0.5, tail=0.5)
    generate = close = None
    version = -1

    def __init__(self) -> None:
        self.loaded: list[dict[str, Tensor]] = []

    def load(self, weights, version) -> None:
        self.loaded.append(dict(weights))


def test_an_engine_with_weights_of_its_own_gets_what_they_mean() -> None:
    """In the precision that the policy computes in, and the adapter beside them as it is."""
    model, server = packed("bfloat16", taught=True), Server()
    ServerEngine(server, model, adapter=True)
    (first,) = server.loaded
    for name, weight in matrices(model).items():
        assert torch.equal(first[name], dequantized(weight).bfloat16())
    for name, weight in adapter_weights(model).items():
        assert torch.equal(first[name], weight)
    assert not any(weight.dtype == torch.uint8 for weight in first.values())
    assert merges(model).keys() == matrices(model).keys()


def test_a_base_that_is_quantized_already_is_refused(tmp_path) -> None:
    loaded = load("bundled")
    loaded.model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    loaded.model.config.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    for quantization in ("nf4", None):
        with refused(DataError, tmp_path, "quantization_config", key="model.path", code="data.unfit_model"):
            load(str(tmp_path), quantization=quantization)


def test_layers_with_transposed_matrices_are_refused(tmp_path) -> None:
    tiny = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    write_model_folder(tiny, load("bundled").files, tmp_path)
    with refused(
        ConfigError, "'transformer.h.0.attn.c_attn'", "Conv1D", key="model.quantization", code="config.unsupported"
    ):
        meta_model(str(tmp_path), dtype="float32", adaptable=True, quantization="nf4")


def test_the_output_layer_of_a_drawn_model_stays_whole() -> None:
    model = meta_model("bundled", dtype="bfloat16", adaptable=True)
    to_4bit_shapes(model)
    assert model.lm_head.weight.dtype == model.model.embed_tokens.weight.dtype == torch.bfloat16


def test_no_kernel_is_downloaded_and_the_package_is_restored(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    with without_hub_kernels():
        assert importlib.util.find_spec("kernels") is None
        with pytest.raises(ImportError):
            importlib.import_module("kernels")
    assert "kernels" not in sys.modules
    there = types.ModuleType("kernels")
    monkeypatch.setitem(sys.modules, "kernels", there)  # somebody uses it: not ours to hide
    with without_hub_kernels():
        assert sys.modules["kernels"] is there
