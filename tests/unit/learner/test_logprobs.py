"""Log-probs in chunks: how much exists at once, and what is lost to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_policy import V, batch, micro, policy, rows_of_many_lengths, scalar, tiny
from torch import nn

from winnow.learner.head import CHUNK_LOGITS, default_chunk_tokens, token_logprobs
from winnow.learner.learner import compute_logprobs
from winnow.models.adapter import add_lora, add_value_adapter, value_adapter
from winnow.models.meta import meta_model


def test_logits_exist_for_a_chunk_at_a_time() -> None:
    """In an update, in a pass without gradients and for gradient norms, whatever a rollout's length."""
    model, sequences, seen = tiny(tie_word_embeddings=True), rows_of_many_lengths(), list[int]()
    p = policy(model, chunk_tokens=3, tokens_per_micro_batch=10_000)
    head = model.get_output_embeddings()
    forward = head.forward  # hooks of the head do not see it inside an autograd function
    head.forward = lambda hidden: seen.append(len(hidden)) or forward(hidden)
    mb = micro(sequences)
    passes = [
        lambda: scalar(p.forward(mb, {"entropy"}).logprobs, mb).backward(),
        lambda: compute_logprobs(p, [batch(sequences)], {"old_logprobs"}),
        lambda: p.gradient_norms(sequences, of="embedding"),
        lambda: p.gradient_norms(sequences, of="output_head"),
    ]
    for passes_once in passes:
        seen.clear()
        passes_once()
        assert max(seen) == 3


@pytest.mark.parametrize(("vocabulary", "tokens"), [(512, 4096), (16_384, 4096), (151_936, 441), (2**27, 1)])
def test_a_chunk_is_bounded_by_its_logits(vocabulary: int, tokens: int) -> None:
    model = nn.Module()
    model.get_output_embeddings = lambda: nn.Linear(2, vocabulary, device="meta")
    assert default_chunk_tokens(model) == tokens
    assert tokens == 1 or tokens * vocabulary <= CHUNK_LOGITS


def test_the_policy_s_chunk_is_the_one_that_is_planned_for() -> None:
    assert policy(tiny(), chunk_tokens=None)._chunk_tokens == default_chunk_tokens(
        meta_model("bundled", dtype="float32")
    )


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 3, 4096])
def test_gradients_are_those_of_a_plain_softmax(chunk: int, temperature: float, with_entropy: bool) -> None:
    torch.manual_seed(0)
    targets, found = torch.randint(V, (8,)), []
    for plain in (False, True):
        torch.manual_seed(1)
        head = nn.Linear(16, V, dtype=torch.float64)
        hidden = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
        if plain:
            all_logprobs = (head(hidden) / temperature).log_softmax(-1)
            logprobs, entropy = all_logprobs[range(8), targets], -(all_logprobs.exp() * all_logprobs).sum(-1)
        else:
            options = {"temperature": temperature, "chunk": chunk, "with_entropy": with_entropy}
            logprobs, entropy = token_logprobs(hidden, head, targets, **options)
        weights = torch.linspace(-1, 2, 8, dtype=torch.float64)
        total = (weights * logprobs).sum() + ((weights * entropy).sum() if with_entropy else 0)
        found.append([logprobs.detach(), *torch.autograd.grad(total, (hidden, *head.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_many_chunks_round_a_sixteen_bit_head_s_gradient_once(with_entropy: bool, temperature: float) -> None:
    """512 chunks of one token. Summed in bfloat16, all but the first few would be rounded away: 8 bits of mantissa."""
    torch.manual_seed(0)
    hidden, targets = torch.rand(512, 16).bfloat16(), torch.randint(V, (512,))
    gradients = {}
    for dtype, chunk in ((torch.float64, 512), (torch.bfloat16, 1)):
        head = nn.Linear(16, V, dtype=dtype)
        head.load_state_dict({"weight": torch.linspace(-1, 1, 16 * V).view(V, 16), "bias": torch.zeros(V)})
        options = {"temperature": temperature, "chunk": chunk, "with_entropy": with_entropy}
        logprobs, entropy = token_logprobs(hidden.to(dtype), head, targets, **options)
        (logprobs.sum() + (0 if entropy is None else entropy.sum())).backward()
        gradients[dtype] = [p.grad.double() for p in head.parameters()]
    for exact, rounded in zip(gradients[torch.float64], gradients[torch.bfloat16], strict=True):
        assert (rounded - exact).norm() < 0.01 * exact.norm()


def test_an_adapter_on_the_head_learns_chunk_by_chunk() -> None:
    found = []
    for chunk in (1, 4096):
        model = add_lora(tiny(tie_word_embeddings=False), rank=2, alpha=4.0, targets=["lm_head"], seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.fill_(0.05)
        p, mb = policy(model, chunk_tokens=chunk), micro(rows_of_many_lengths())
        scalar(p.forward(mb).logprobs, mb).backward()
        found.append([q.grad.numpy() for q in p.parameters.values()])
    assert len(found[0]) == 2
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        assert np.abs(one).max() > 0


def test_a_value_model_s_adapter_on_the_head_takes_no_part_in_log_probs() -> None:
    model = add_lora(tiny(tie_word_embeddings=False), rank=2, alpha=4.0, targets=["lm_head"], seed=0)
    add_value_adapter(model, rank=2, alpha=4.0, seed=0)
    p, mb = policy(model), micro(rows_of_many_lengths())
    scalar(p.forward(mb).logprobs, mb).backward()
    assert all(parameter.grad is not None for parameter in p.parameters.values())
    assert all(parameter.grad is None for parameter in value_adapter(model).values())
