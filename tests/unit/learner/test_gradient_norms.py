"""The reference everywhere: the rollout alone, unpadded, the model's own logits, and autograd on the real parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from test_policy import (
    SMALL,
    V,
    build,
    flat_gradient,
    micro,
    plain_logprobs,
    policy,
    row,
    rows_of_many_lengths,
    tiny,
)
from torch import nn
from transformers import Gemma3TextConfig, Qwen2Config, Qwen2ForCausalLM

from refusals import refused
from winnow.errors import ConfigError
from winnow.learner import head
from winnow.learner.gradient_norms import check_embedding
from winnow.models.adapter import add_lora
from winnow.records import Matrix, TrainingSequence

PRECISION = {torch.float64: 1e-10, torch.float32: 1e-5}
MATRICES: tuple[Matrix, ...] = ("embedding", "output_head")


def reference(model: nn.Module, rows: Sequence[TrainingSequence], of: Matrix, temperature: float) -> list[float]:
    matrix = (model.get_input_embeddings() if of == "embedding" else model.get_output_embeddings()).weight
    matrix.requires_grad_(True)
    norms = []
    for r in rows:
        trained = slice(None) if r.rollout.trainable is None else torch.from_numpy(r.rollout.trainable)
        (gradient,) = torch.autograd.grad(plain_logprobs(model, r, temperature)[trained].sum(), matrix)
        norms.append(gradient.double().norm().item())
    return norms


def rows() -> list[TrainingSequence]:
    """Ten rows, each with tokens that occur in it more than once, in its prompt, its completion or both."""
    return [*rows_of_many_lengths(), row([2, 5, 2], [5, 2, 2, 5, 1], group=9)]


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize(("of", "tied"), [("embedding", True), ("embedding", False), ("output_head", False)])
def test_norms_equal_one_backward_per_rollout(family: str, dtype: torch.dtype, of: Matrix, tied: bool) -> None:
    model = tiny(family, dtype, tie_word_embeddings=tied)
    got = policy(model, temperature=0.7, tokens_per_micro_batch=10_000).gradient_norms(rows(), of=of)
    np.testing.assert_allclose(got, reference(model, rows(), of, 0.7), rtol=PRECISION[dtype])


def test_output_head_of_a_tied_model_is_that_role_alone() -> None:
    tied, untied = tiny(), tiny(tie_word_embeddings=False)
    untied.load_state_dict(tied.state_dict())
    got = policy(tied).gradient_norms(rows(), of="output_head")
    np.testing.assert_allclose(got, reference(untied, rows(), "output_head", 1.0), rtol=1e-10)


@pytest.mark.parametrize("of", MATRICES)
def test_cuts_and_order_of_the_rows_do_not_matter(of: Matrix) -> None:
    model = tiny()
    whole = policy(model, tokens_per_micro_batch=10_000, chunk_tokens=10_000).gradient_norms(rows(), of=of)
    for cut in ({"tokens_per_micro_batch": 1}, {"chunk_tokens": 25}, {"chunk_tokens": 1}, {"chunk_tokens": 3}):
        got = policy(model, **{"tokens_per_micro_batch": 10_000, **cut}).gradient_norms(rows()[::-1], of=of)
        np.testing.assert_allclose(got[::-1], whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("chunk", "dtype"), [(1, torch.float64), (4, torch.float64), (64, torch.float64), (4, torch.float32)]
)
@pytest.mark.parametrize(("of", "tied"), [("embedding", True), ("embedding", False), ("output_head", False)])
def test_a_head_s_gradient_in_pairs_and_as_a_matrix_has_one_norm(
    monkeypatch: pytest.MonkeyPatch, of: Matrix, tied: bool, chunk: int, dtype: torch.dtype
) -> None:
    model = tiny(dtype=dtype, tie_word_embeddings=tied)
    long = [*rows(), row([2, 5, 2], [5, 2, 2, 5, 1] * 8, group=10), row([3], list(range(V)), group=11)]
    expected = reference(model, long, of, 0.7)
    for matrix in (False, True):
        monkeypatch.setattr(head, "sums_head_gradient", lambda *a, matrix=matrix, **k: matrix)
        got = policy(model, temperature=0.7, chunk_tokens=chunk, tokens_per_micro_batch=200)
        np.testing.assert_allclose(got.gradient_norms(long, of=of), expected, rtol=PRECISION[dtype])


@pytest.mark.parametrize(("tokens", "calls"), [(4, 1), (8, 3), (12, 3), (160, 40)])
def test_a_long_rollout_goes_through_the_head_once(tokens: int, calls: int) -> None:
    """In chunks of 4 with H = 16. Two chunks meet: 2 x 4 x 4 + 4 x (16 + 4) = 112 multiplications per logit are less
    than 8 x 16 for the matrix. Three would take 288, and the matrix takes 192.
    """
    model, count = tiny(tie_word_embeddings=False, max_position_embeddings=256), 0

    def add(module: nn.Module, inputs: object) -> None:
        nonlocal count
        count += 1

    p = policy(model, chunk_tokens=4)
    with model.get_output_embeddings().register_forward_pre_hook(add):
        p.gradient_norms([row([2, 3], [4] * tokens)], of="output_head")
    assert count == calls


@pytest.mark.parametrize(("temperature", "length"), [(1.0, 1), (0.5, 1), (1.0, 3)])
def test_output_head_by_hand(temperature: float, length: int) -> None:
    """Under a head of zeros every token has p = 1/V, so |d|^2 = (1 - 1/V) / temperature^2. When the last norm answers
    ones, |h|^2 = H = 16. The same token `length` times adds up `length` equal products: a sum, not a mean.
    """
    model = tiny(tie_word_embeddings=False)
    model.get_output_embeddings().weight.data.zero_()
    model.get_decoder().norm.register_forward_hook(lambda module, inputs, output: torch.ones_like(output))
    (got,) = policy(model, temperature=temperature).gradient_norms([row([2, 3], [4] * length)], of="output_head")
    assert got == pytest.approx(length * math.sqrt(16 * (1 - 1 / V)) / temperature, rel=1e-12)


@pytest.mark.parametrize("of", MATRICES)
def test_tokens_that_are_not_trainable_are_left_out(of: Matrix) -> None:
    model = tiny(tie_word_embeddings=of == "embedding")
    masked = [row([2, 3], [4, 5, 6, 7], trainable=[True, False, True, False])]
    got = policy(model).gradient_norms(masked, of=of)
    np.testing.assert_allclose(got, reference(model, masked, of, 1.0), rtol=1e-10)
    assert policy(model).gradient_norms([row([2, 3], [4], trainable=[False])], of=of).tolist() == [0.0]


@pytest.mark.parametrize("of", MATRICES)
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_adapters_freeze_the_matrix_but_not_its_norm(of: Matrix, checkpointing: str) -> None:
    adapted = add_lora(tiny(tie_word_embeddings=of == "embedding"), rank=2, alpha=4.0, targets="all-linear", seed=0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    got = policy(adapted, gradient_checkpointing=checkpointing).gradient_norms(rows(), of=of)
    np.testing.assert_allclose(got, reference(adapted.merge_and_unload(), rows(), of, 1.0), rtol=1e-10)


@pytest.mark.parametrize("of", MATRICES)
def test_the_gradient_under_way_and_the_trained_parameters_stay(of: Matrix) -> None:
    model = tiny(tie_word_embeddings=False)
    frozen = model.get_output_embeddings().weight.requires_grad_(False)
    plain_logprobs(model, rows()[0]).sum().backward()
    before, trained = flat_gradient(model), [p.requires_grad for p in model.parameters()]
    with torch.no_grad():  # a caller's own no_grad does not matter
        policy(model).gradient_norms(rows(), of=of)
    assert torch.equal(flat_gradient(model), before)
    assert [p.requires_grad for p in model.parameters()] == trained
    assert frozen.grad is None


def kept_for_backward(model: nn.Module, action: Callable[[], object]) -> int:
    """Bytes of activations that autograd holds on to."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        action()
    return sum(storage.nbytes() for storage in kept.values())


def test_no_activation_is_kept_for_the_sake_of_a_weight() -> None:
    model = tiny()
    p = policy(model, tokens_per_micro_batch=10_000, chunk_tokens=10_000)
    trained = kept_for_backward(model, lambda: p.forward(micro(rows())))
    assert kept_for_backward(model, lambda: p.gradient_norms(rows(), of="embedding")) < 0.85 * trained
    assert kept_for_backward(model, lambda: p.gradient_norms(rows(), of="output_head")) == 0


def test_bfloat16_weights_give_norms_near_those_of_float64() -> None:
    model = build(Qwen2Config(**SMALL), torch.bfloat16)
    got = policy(model).gradient_norms(rows(), of="embedding")
    np.testing.assert_allclose(got, reference(model.double(), rows(), "embedding", 1.0), rtol=0.05)


@pytest.mark.parametrize("of", MATRICES)
def test_no_rows_no_norms(of: Matrix) -> None:
    assert policy(tiny()).gradient_norms([], of=of).shape == (0,)


def test_an_embedding_with_an_adapter_is_refused_from_its_shapes() -> None:
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**{**SMALL, "tie_word_embeddings": False}))
    check_embedding(model)
    adapted = add_lora(model, rank=2, alpha=4.0, targets=["embed_tokens"], seed=0)
    with refused(ConfigError, "'output_head'", key="probe.gradient_norm", code="config.unsupported"):
        check_embedding(adapted)


def test_an_embedding_that_scales_is_refused_and_its_head_is_not() -> None:
    config = Gemma3TextConfig(**{**SMALL, "head_dim": 4, "layer_types": ["full_attention"] * 2})
    scaling = policy(build(config, torch.float64))
    with refused(ConfigError, "'output_head'", key="probe.gradient_norm", code="config.unsupported"):
        scaling.gradient_norms(rows(), of="embedding")
    assert np.all(scaling.gradient_norms(rows(), of="output_head") > 0)
