"""Estimated memory of a model against the memory that it uses, and the shares of a rank."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, OPTConfig

import forked
from winnow.algos.objective import Objective
from winnow.learner.gradient_sums import _buckets
from winnow.learner.optimizer import Optimizer
from winnow.learner.policy import Policy
from winnow.memory import footprint
from winnow.memory.footprint import (
    activation_bytes,
    forward_bytes,
    gradient_bytes,
    layer_backward_bytes,
    logits_bytes,
    master_bytes,
    optimizer_bytes,
    sample_bytes,
)
from winnow.memory.usage import MIB
from winnow.models.adapter import add_lora
from winnow.models.load import load
from winnow.models.meta import meta_model, weight_bytes
from winnow.models.saved_weights import on_meta_device
from winnow.records import Batch, Prompt, Rollout, TrainingSequence

LORA = {"rank": 4, "alpha": 8.0, "targets": "all-linear", "seed": 0}


def sized(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def bundled(dtype="float32", *, lora=False):
    """The bundled policy twice: as it is, and without its weights."""
    real, drawn = load("bundled", dtype=dtype).model, meta_model("bundled", dtype=dtype, adaptable=lora)
    return (add_lora(real, **LORA), add_lora(drawn, **LORA)) if lora else (real, drawn)


def rows(count, *, prompt, length, shared=False):
    """Rollouts of one prompt, or of a prompt each."""
    tokens = np.arange(3, 3 + prompt)
    prompts = [Prompt(id=f"p{i}", tokens=tokens, text="", answer=None, task="") for i in range(1 if shared else count)]
    rollouts = [
        Rollout(index=i, tokens=np.full(length, 5), logprobs=np.zeros(length), text="", finish="stop", version=0)
        for i in range(count)
    ]
    return tuple(
        TrainingSequence(prompt=prompts[r.index % len(prompts)], rollout=r, group=0, advantage=1.0, weight=1.0)
        for r in rollouts
    )


def policy(model, **options):
    return Policy(model, temperature=1.0, pad_token=0, tokens_per_micro_batch=10**6, **options)


def saved_bytes(of, batch):
    """What autograd holds after a forward pass, parameters not counted."""
    return held_for_backward(of, lambda: of.forward(next(of.micro_batches(batch.sequences))))


def held_for_backward(of, action):
    parameters = {p.untyped_storage().data_ptr() for p in of.model.parameters()}
    storages, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # so that no storage's address is used twice
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        action()
    return sum(size for address, size in storages.items() if address not in parameters)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kept", ["float32", "masters", "rounded"])
def test_weights_masters_gradients_and_moments_are_exact(kept, lora):
    """Against the tensors after a real update of the bundled policy."""
    dtype = "float32" if kept == "float32" else "bfloat16"
    real, drawn = bundled(dtype, lora=lora)
    trained = policy(real)
    masters = {name: p.detach().float() for name, p in trained.parameters.items()} if kept == "masters" else {}
    optimizer = Optimizer(
        trained.parameters,
        learning_rate=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.0,
        max_grad_norm=1.0,
        schedule="constant",
        warmup_updates=0,
        total_updates=1,
        masters=masters if not lora else {},
    )
    batch = Batch(epoch=0, sequences=rows(2, prompt=3, length=4))
    for mb in trained.micro_batches(batch.sequences):
        out = trained.forward(mb)
        Objective(lambda out, mb: (-out.logprobs, {}))(out, mb).total.backward()
    assert gradient_bytes(drawn) == sized(optimizer.gradients())
    optimizer.step()
    state = optimizer.state()
    rest = sized(value for name, value in state.items() if not name.endswith("/master"))
    assert optimizer_bytes(drawn) + sample_bytes(drawn, masters=bool(optimizer.saves_masters)) == rest
    saved = [value for name, value in state.items() if name.endswith("/master")]
    assert bool(saved) == (kept == "masters" and not lora)
    assert not saved or master_bytes(drawn) == sized(saved)
    assert weight_bytes(drawn) == sized([*real.parameters(), *real.buffers()])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("lora", [False, True])
def test_activations_are_what_autograd_saves_to_a_twentieth(dtype, lora):
    real, drawn = bundled(dtype, lora=lora)
    batch = Batch(epoch=0, sequences=rows(8, prompt=20, length=45))
    estimate = activation_bytes(drawn, 8 * (20 + 45 - 1), checkpointing="none")
    # In 16 bits on a CPU, keys and values are saved once for the queries that share them (models/attention.py)
    assert estimate == pytest.approx(saved_bytes(policy(real), batch), rel=0.06 if dtype == "bfloat16" else 0.05)


@pytest.mark.parametrize(("prompt", "length"), [(20, 45), (60, 8)])
def test_a_shared_prompt_needs_fewer_activations_than_estimated(prompt, length):
    real, drawn = bundled()
    batch = Batch(epoch=0, sequences=rows(8, prompt=prompt, length=length, shared=True))
    estimate = activation_bytes(drawn, 8 * (prompt + length), checkpointing="none")
    for packed, least in ((False, estimate / 4), (True, estimate / 5)):  # a packed row saves a prompt's keys once
        assert least < saved_bytes(policy(real, packed=packed), batch) < estimate


def test_with_checkpointing_layers_save_their_input_alone():
    real, drawn = bundled()
    batch = Batch(epoch=0, sequences=rows(8, prompt=20, length=45))
    estimate = activation_bytes(drawn, 8 * 64, checkpointing="full")
    assert estimate == pytest.approx(saved_bytes(policy(real, gradient_checkpointing="full"), batch), rel=0.2)


@pytest.mark.parametrize("lora", [False, True])
def test_between_none_and_full_is_selective(lora):
    """Per token and layer of the bundled policy: 11 x 128 float32 numbers and 2 x 384, and what 7 adapters' A give."""
    _, drawn = bundled(lora=lora)
    none, selective, full = (activation_bytes(drawn, 10, checkpointing=how) for how in ("none", "selective", "full"))
    assert full < selective < 0.7 * none
    config = drawn.config
    queries, keys = 128, config.num_key_value_heads * 32
    numbers = 2 * 128 + 2 * queries + 2 * keys + 2 * config.intermediate_size + (7 * 4 if lora else 0)
    assert selective - full == 10 * config.num_hidden_layers * 4 * numbers


def test_a_layer_s_backward_exceeds_forward_by_recomputed_activations():
    _, drawn = bundled()
    layers, ways = drawn.config.num_hidden_layers, ("none", "selective", "full")
    wide = [layer_backward_bytes(drawn, 10, checkpointing=how) for how in ways]
    kept = [activation_bytes(drawn, 10, checkpointing=how) for how in ways]
    config = drawn.config
    assert wide[0] == 10 * 4 * (2 * config.intermediate_size + config.hidden_size)
    assert layer_backward_bytes(drawn, 10, checkpointing="none", frozen=True) == forward_bytes(drawn, 10)
    assert [wide[0] + (kept[0] - most) / layers for most in kept] == wide


@pytest.mark.parametrize("how", ["none", "selective", "full"])
@pytest.mark.parametrize("lora", [False, True])
def test_norms_of_the_embedding_save_no_more_than_estimated(lora, how):
    real, drawn = bundled(lora=lora)
    sequences = rows(8, prompt=20, length=45)
    of = policy(real, gradient_checkpointing=how)
    saved = held_for_backward(of, lambda: of.gradient_norms(sequences, of="embedding"))
    estimate = activation_bytes(drawn, 8 * 64, checkpointing=how, frozen=True)
    assert saved < 1.05 * estimate
    assert how == "selective" or saved > 0.75 * estimate  # with selective checkpointing the hooks get only the inputs


def test_the_output_layer_takes_its_chunk_and_its_gradient_twice():
    """[T, 512] float32 three times, five with an entropy, or once beside the chunk's gradient [512, 128] float32, which
    is made after it. The summed gradient exists always. With an adapter there is no gradient.
    """
    _, drawn = bundled()
    assert logits_bytes(drawn, 10, entropy=False) == 10 * 512 * 4 + 2 * 512 * 128 * 4
    assert logits_bytes(drawn, 1000, entropy=False) == 1000 * 512 * 4 * 3 + 512 * 128 * 4
    _, rounded = bundled("bfloat16")
    assert logits_bytes(rounded, 10, entropy=False) == 10 * 512 * (4 + 2) + 512 * 128 * (4 + 2)
    _, adapted = bundled(lora=True)
    assert logits_bytes(adapted, 10, entropy=True) == 10 * 512 * 4 * 5


def test_a_model_without_weights_takes_no_memory():
    assert {p.device.type for p in meta_model("bundled", dtype="float32").parameters()} == {"meta"}


PEAK = """
import ctypes
import sys
from winnow.memory.usage import Gauge, reset_peak
from winnow.learner.policy import Policy
from winnow.models.load import load

sys.path.insert(0, {folder!r})
from test_footprint import rows

libc = ctypes.CDLL(None)
for option in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    assert libc.mallopt(option, 65536)
libc.malloc_trim(0)  # what the imports have freed
reset_peak()

def peak(policy, count, prompt, length):
    (mb,) = policy.micro_batches(rows(count, prompt=prompt, length=length))
    policy.forward(mb).logprobs.sum().backward()
    gauge = Gauge()
    gauge.read("update")
    return gauge.metrics()["memory/update/cpu/peak_resident"]

for checkpointing in ("full", "selective", "none"):  # the largest one last: the peak is that of the process
    policy = Policy(load("bundled").model, temperature=1.0, pad_token=0, tokens_per_micro_batch=10**6,
                    gradient_checkpointing=checkpointing)
    before = peak(policy, 1, 4, 4) if checkpointing == "full" else before
    print(peak(policy, 8, 449, 64) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's settings for returning memory at once")
def test_a_process_grows_by_the_estimate_of_an_update(tmp_path):
    """Where memory that is freed goes back to the system; by default the C library keeps some."""
    script = tmp_path / "peak.py"
    script.write_text(PEAK.format(folder=str(Path(__file__).parent)))
    done = forked.python(script)
    assert done.returncode == 0, done.stderr
    _, drawn = bundled()
    estimate = [
        activation_bytes(drawn, 8 * 512, checkpointing=how)
        + max(logits_bytes(drawn, 8 * 64, entropy=False), layer_backward_bytes(drawn, 8 * 512, checkpointing=how))
        for how in ("full", "selective", "none")
    ]
    grown = [float(line) for line in done.stdout.split()]
    assert grown == [pytest.approx(most / MIB, abs=16) for most in estimate]
    assert estimate[2] - estimate[1] > 20 * MIB
    assert estimate[1] - estimate[0] > 20 * MIB


class Tiny(nn.Module):
    """An embedding of 10 x 4, two layers of 6 x 4 and 6 numbers, a table of 3 and an output layer of its own."""

    def __init__(self, *, dtype=torch.bfloat16, tied=False):
        super().__init__()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=2))
        self.embedding = nn.Embedding(10, 4, dtype=dtype)
        self.layers = nn.ModuleList(nn.Linear(4, 6, dtype=dtype) for _ in range(2))
        self.head = nn.Linear(4, 10, bias=False, dtype=dtype)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.zeros(3))

    def get_output_embeddings(self):
        return self.head


# Rows are rounded up: of 4 ranks the first has 3 of 10 rows and 2 of 6.
ROOT, LAYER = 2 * 3 * 4, 2 * 4 + 2


def test_a_share_is_of_rows_and_trained_in_float32():
    model, numbers = Tiny(), ROOT + 2 * LAYER
    assert footprint.share_bytes(model, 4) == 4 * numbers + 3 * 4
    assert footprint.gradient_bytes(model, 4) == 4 * numbers
    assert footprint.optimizer_bytes(model, ranks=4) == 2 * 4 * numbers + 4 * 6
    assert footprint.frozen_share_bytes(model, 4) == 2 * numbers
    samples = 2 * 3 + 2 * (2 + 2)  # one number of each row
    assert footprint.sample_bytes(model, masters=True, ranks=4) == 4 * samples
    model.embedding.weight.requires_grad_(False)  # as it is, and never updated
    assert footprint.share_bytes(model, 4) == 2 * 12 + 4 * (numbers - 12) + 3 * 4
    assert footprint.gradient_bytes(model, 4) == 4 * (numbers - 12)


def test_the_root_and_two_layers_are_gathered_in_the_computing_precision():
    assert footprint.gathered_bytes(Tiny(), 4) == 2 * 4 * (ROOT + 2 * LAYER)
    assert footprint.gathered_bytes(Tiny(dtype=torch.float32), 4) == 4 * 4 * (ROOT + 2 * LAYER)
    assert footprint.gathered_root_bytes(Tiny(), 4) == 2 * 4 * ROOT
    assert footprint.gathered_root_bytes(Tiny(tied=True), 4) == 2 * 4 * ROOT // 2


def test_gradients_before_they_are_scattered():
    """As they are summed with rows rounded up, and as computed, which is more than the share; the output layer's waits,
    as computed.
    """
    layer, root = 30 * 2 + 4 * LAYER * 4, 80 * 2 + 4 * ROOT * 4
    assert footprint.unscattered_bytes(Tiny(), 4) == layer
    assert footprint.scattering_bytes(Tiny(), 4) == 4 * LAYER * 4 + 24 * 2
    assert footprint.waiting_bytes(Tiny()) == 40 * 2
    assert footprint.unscattered_root_bytes(Tiny(), 4) == root


@pytest.mark.parametrize(("most", "numbers"), [(1000, 140), (70, 70), (69, 64), (40, 30), (29, 0)])
def test_a_bucket_is_a_copy_of_several_gradients(most, numbers, monkeypatch):
    """40, 24, 6, 24, 6 and 40 numbers in their order; one that is alone is summed in place."""
    monkeypatch.setattr("winnow.learner.gradient_sums.BUCKET", most)
    model = Tiny()
    buckets = _buckets([torch.zeros(p.shape) for p in model.parameters()])
    assert footprint.bucket_bytes(model, most) == 4 * numbers
    assert numbers == max(sum(g.numel() for g in bucket) if len(bucket) > 1 else 0 for bucket in buckets)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=64),
        OPTConfig(
            vocab_size=32,
            hidden_size=16,
            word_embed_proj_dim=16,
            ffn_dim=64,
            num_hidden_layers=1,
            num_attention_heads=2,
        ),
    ],
)
def test_the_width_of_an_mlp_has_several_names(config):
    assert forward_bytes(on_meta_device(config, torch.float32), 10) == 10 * 4 * (3 * 64 + 4 * 16)
