"""Every pass goes through the root module: sharded by FSDP2, with tied weights, it computes and trains the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from test_policy import SMALL, batch, build, micro, policy, rows_of_many_lengths, scalar
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen2Config

from winnow.learner.gradient_norms import gradient_norms
from winnow.learner.learner import compute_logprobs
from winnow.learner.optimizer import Optimizer
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PolicyModule
from winnow.models.adapter import add_lora

TIED = 26  # parameters of two layers and the last norm, and one matrix that is embedding and head


@pytest.fixture
def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceMesh]:
    """One rank is enough: its parameters are DTensors all the same, which no pass can read before they are gathered."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


def tied() -> nn.Module:
    model = build(Qwen2Config(**SMALL, tie_word_embeddings=True), torch.float32)
    assert len(list(model.parameters())) == TIED
    return model


def sharded(of: Policy, mesh: DeviceMesh, precision: MixedPrecisionPolicy | None = None) -> Policy:
    """Each layer, and the root, which keeps what is in no layer: the shared matrix, and the last norm."""
    options = {} if precision is None else {"mp_policy": precision}
    for layer in of.model.get_decoder().layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(of.module, mesh=mesh, **options)
    return of


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_sharded_policy_computes_and_trains_the_same(mesh: DeviceMesh, checkpointing: str) -> None:
    model, sequences = tied(), rows_of_many_lengths()
    found = []
    for p in (
        policy(copy.deepcopy(model), gradient_checkpointing=checkpointing),
        sharded(policy(model, gradient_checkpointing=checkpointing), mesh),
    ):
        (filled,) = compute_logprobs(p, [batch(sequences)], {"old_logprobs"})
        norms = [p.gradient_norms(sequences, of=of) for of in ("embedding", "output_head")]
        mb = micro(sequences, p.dtype)
        out = p.forward(mb, {"entropy"})
        scalar(out.logprobs + 0.1 * out.entropy, mb).backward()
        found.append(([s.old_logprobs for s in filled.sequences], norms, p.parameters))
    (logprobs, norms, own), (sharded_logprobs, sharded_norms, shards) = found
    np.testing.assert_array_equal(np.concatenate(sharded_logprobs), np.concatenate(logprobs))
    np.testing.assert_array_equal(sharded_norms, norms)
    assert shards.keys() == own.keys()
    assert len([p for p in shards.values() if p.grad is not None]) == TIED
    for name, parameter in own.items():
        assert torch.equal(shards[name].grad.full_tensor(), parameter.grad), name


def test_sharded_in_mixed_precision_it_is_rounded_and_summed_alike(mesh: DeviceMesh) -> None:
    """Float32 shards that FSDP2 gathers in bfloat16 are what float32 masters are to weights of 16 bits: the same
    log-probs, and the same float32 gradients of two micro-batches, to the bit."""
    sequences = rows_of_many_lengths()
    rounded = tied()
    masters = {name: p.detach().clone() for name, p in rounded.named_parameters()}
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    by_masters = policy(rounded)
    settings = {"learning_rate": 1e-6, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "max_grad_norm": 1.0}
    lengths = {"schedule": "constant", "warmup_updates": 0, "total_updates": 1}
    optimizer = Optimizer(by_masters.parameters, **settings, **lengths, masters=masters)
    in_bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    by_shards = sharded(policy(tied()), mesh, in_bfloat16)

    computed = []
    for p in (by_masters, by_shards):
        for mb in (micro(sequences[:2], torch.float32), micro(sequences[2:], torch.float32)):
            out = p.forward(mb)
            scalar(out.logprobs, mb).backward()
            computed.append(out.logprobs.detach())
    assert torch.equal(torch.cat(computed[:2]), torch.cat(computed[2:]))
    gradients = dict(zip(by_masters.parameters, optimizer.gradients(), strict=True))
    for name, shard in by_shards.parameters.items():
        assert shard.dtype == shard.grad.dtype == torch.float32
        torch.testing.assert_close(shard.grad.full_tensor(), gradients[name], rtol=0, atol=0)


def test_its_parts_cannot_be_called_apart(mesh: DeviceMesh) -> None:
    """What every pass would meet that goes around the root; and sharded one by one, parts part with what they share."""
    p = sharded(policy(tied()), mesh)
    backbone, _ = p.module.parts
    with pytest.raises(RuntimeError, match="DTensor"):
        backbone(input_ids=torch.tensor([[2, 3]]), use_cache=False)
    apart = tied()
    for part in PolicyModule(apart).parts:
        fully_shard(part, mesh=mesh)
    assert len(list(apart.parameters())) == TIED + 1


@pytest.mark.parametrize("adapter", [False, True])
def test_every_pass_calls_the_module(adapter: bool) -> None:
    """A hook on it runs as often as the backbone does."""
    model = add_lora(tied(), rank=2, alpha=4.0, targets=["q_proj"], seed=0) if adapter else tied()
    p, sequences, calls = policy(model), rows_of_many_lengths(), []
    p.module.register_forward_pre_hook(lambda module, inputs: calls.append("module"))
    p.module.parts.backbone.register_forward_pre_hook(lambda module, inputs: calls.append("backbone"))
    passes = [
        lambda: p.forward(micro(sequences, p.dtype)),
        lambda: compute_logprobs(p, [batch(sequences)], {"old_logprobs"}),
        lambda: gradient_norms(p, sequences, of="embedding", temperature=1.0, chunk=7),
        lambda: p.gradient_norms(sequences, of="output_head"),
    ]
    for passes_once in passes:
        calls.clear()
        passes_once()
        assert calls == ["module", "backbone"] * (len(calls) // 2), "the backbone never runs by itself"
        assert calls


def test_parameters_keep_the_names_that_the_model_gives_them() -> None:
    model = tied()
    names = list(dict(model.named_parameters()))
    p = policy(model)
    assert list(p.parameters) == list(p.weights()) == names
    assert [name.removeprefix("model.") for name, _ in p.module.named_parameters()] == names
