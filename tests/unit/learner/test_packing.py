"""Sequences one behind the other in a row: every layout gives the same log-probs and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from test_policy import (
    FAMILIES,
    PAD,
    SMALL,
    STOP,
    V,
    batch,
    build,
    distance,
    flat_gradient,
    plain_logprobs,
    policy,
    row,
    rows_of_groups,
    scalar,
    tiny,
    tokens_read,
)
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_mask, flex_attention
from transformers import Olmo2Config, PreTrainedConfig, Qwen3Config
from transformers.integrations.flex_attention import WrappedFlexAttention

from refusals import refused
from winnow.errors import ConfigError
from winnow.learner.learner import compute_logprobs
from winnow.learner.micro_batches import fill, micro_batches
from winnow.learner.model_input import hidden_states
from winnow.learner.packing import BLOCK, Packing, Segment, attend_packed, block_mask, read
from winnow.learner.policy import FrozenCopy, Policy
from winnow.models.adapter import add_lora
from winnow.records import TrainingSequence


def group(prompt: int, completions: Sequence[int], *, number: int = 0) -> list[TrainingSequence]:
    """Rollouts of so many tokens, of one prompt."""
    rng = np.random.default_rng(number)
    first = row(rng.integers(2, V, prompt), [2], group=number).prompt
    made = [row([], rng.integers(0, V, n), group=number, index=i) for i, n in enumerate(completions)]
    return [dataclasses.replace(r, prompt=first, weight=0.1 + i, advantage=1.0 - 2 * i) for i, r in enumerate(made)]


CASES: dict[str, Callable[[], list[TrainingSequence]]] = {
    "one sequence": lambda: group(3, [5]),
    "one token": lambda: group(3, [1]),
    "prompts shared": rows_of_groups,
    "prompts apart": lambda: [r for n in range(4) for r in group(1 + n, [2 * n + 1], number=n)],
    "single tokens beside others": lambda: group(4, [1, 6, 1]) + group(2, [1, 1], number=1),
    "unequal": lambda: group(2, [40, 1, 3]) + group(20, [2, 19, 20, 21], number=1) + group(1, [7], number=2),
}


def by_row(p: Policy, rows: Sequence[TrainingSequence], tokens: int) -> tuple[Tensor, Tensor]:
    """Log-probs in the order of the rows, and the flat gradient, of micro-batches of so many tokens."""
    p.model.zero_grad()
    found: dict[tuple[int, int], Tensor] = {}
    packed = p.layout == "packed"
    for mb in micro_batches(
        rows, tokens=tokens, layout="packed" if packed else "padded", device=p.device, dtype=p.dtype
    ):
        logprobs = p.forward(mb).logprobs
        scalar(logprobs, mb).backward()
        pieces = logprobs.detach().split([len(r.rollout.tokens) for r in mb.sequences])
        found |= {r.key: piece for r, piece in zip(mb.sequences, pieces, strict=True)}
    return torch.cat([found[r.key] for r in rows]), flat_gradient(p.model)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("family", "dtype"), [*((family, torch.float64) for family in FAMILIES), ("qwen2", torch.float32)]
)
def test_all_layouts_give_equal_logprobs_and_gradients(family: str, dtype: torch.dtype, case: str) -> None:
    rows, model = CASES[case](), tiny(family, dtype)
    exact = 1e-12 if dtype == torch.float64 else 1e-5
    alone = torch.cat([plain_logprobs(model, r) for r in rows]).detach()
    layouts = [policy(model), policy(model), policy(tiny(family, dtype), packed=True)]
    layouts[0].layout, layouts[1].layout = "padded", "shared"
    _, expected = by_row(layouts[0], rows, 10_000)
    for p in layouts:
        for tokens in (10_000, 30):
            logprobs, gradient = by_row(p, rows, tokens)
            torch.testing.assert_close(logprobs, alone.to(logprobs), rtol=0, atol=exact)
            assert distance(gradient, expected) < exact, (p.layout, tokens)


@pytest.mark.parametrize("case", CASES)
def test_short_texts_are_joined_in_one_row_in_16_bits(case: str) -> None:
    rows, reads = CASES[case](), []
    p = policy(tiny(dtype=torch.bfloat16))
    assert (p.layout, policy(tiny(dtype=torch.float32)).layout) == ("joined", "shared")
    p.model.get_decoder().register_forward_pre_hook(
        lambda module, args, given: reads.append(given["input_ids"].shape), with_kwargs=True
    )
    joined, gradient = by_row(p, rows, 10_000)
    tokens = sum({id(r.prompt): len(r.prompt.tokens) for r in rows}.values())
    assert reads == [(1, tokens + sum(len(r.rollout.tokens) - 1 for r in rows))]  # no padding, each prompt once
    p.layout = "padded"
    padded, expected = by_row(p, rows, 10_000)
    assert (joined - padded).abs().max() < 0.05
    assert distance(gradient.float(), expected.float()) < 0.05


def test_a_long_text_is_not_joined() -> None:
    p, reads = policy(tiny(dtype=torch.bfloat16)), []
    p.model.get_decoder().register_forward_pre_hook(
        lambda module, args, given: reads.append(given["input_ids"].shape), with_kwargs=True
    )
    by_row(p, group(70, [60]), 10_000)
    assert reads == [(1, 129)]
    by_row(p, group(70, [8, 8]), 10_000)
    assert reads[1:] == [(1, 84)]
    by_row(p, group(130, [8, 8]), 10_000)
    assert reads[2:] == [(1, 130), (2, 7)]


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("lora", [False, True])
def test_checkpointing_and_adapters_change_nothing(checkpointing: str, lora: bool) -> None:
    found = []
    for options in ({"layout": "padded"}, {"layout": "packed", "gradient_checkpointing": checkpointing}):
        model = add_lora(tiny(), rank=2, alpha=4.0, targets="all-linear", seed=0) if lora else tiny()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.fill_(0.05)
        layout = options.pop("layout")
        found.append(by_row(policy(model, packed=layout == "packed", **options), rows_of_groups(), 40))
    (alone, expected), (packed, gradient) = found
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
    assert distance(gradient, expected) < 1e-12


@pytest.mark.parametrize("config", [Qwen3Config(**SMALL, head_dim=4), Olmo2Config(**SMALL)], ids=["qwen3", "olmo2"])
def test_other_families(config: PreTrainedConfig) -> None:
    rows = rows_of_groups()
    alone, expected = by_row(policy(build(config, torch.float32)), rows, 10_000)
    packed, gradient = by_row(policy(build(config, torch.float32), packed=True), rows, 10_000)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)
    assert distance(gradient, expected) < 1e-5


def test_a_row_has_no_padding_and_every_prompt_once() -> None:
    rows = rows_of_groups()
    read = sum(len(r.rollout.tokens) - 1 for r in rows) + 6 + 4 + 3
    assert tokens_read(policy(tiny(), packed=True), rows) == read


def test_the_pad_token_and_stop_token_are_ordinary_tokens() -> None:
    rows, model = [row([PAD, 3], [PAD, STOP, PAD], group=0), row([STOP], [PAD, PAD, 4, STOP], group=1)], tiny()
    got, _ = by_row(policy(model, packed=True), rows, 10_000)
    torch.testing.assert_close(got, torch.cat([plain_logprobs(model, r) for r in rows]).detach(), rtol=0, atol=1e-12)


def test_the_reference_of_a_packed_policy_is_packed() -> None:
    p, rows = policy(tiny(), packed=True), rows_of_groups()
    reference = FrozenCopy(p.module, tiny())
    (filled,) = compute_logprobs(p, [batch(rows)], {"old_logprobs", "ref_logprobs"}, reference=reference)
    for r in filled.sequences:
        np.testing.assert_array_equal(r.old_logprobs, r.ref_logprobs)


def test_other_passes_of_a_packed_policy_attend_as_before() -> None:
    """The engine, and gradient norms, read rows with a padding mask or side by side."""
    model, rows = tiny(), rows_of_groups()
    before = policy(tiny()).gradient_norms(rows, of="embedding")
    padded = torch.tensor([[2, 3, 4, 5], [PAD, PAD, 6, 7]])
    seen = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    expected = model(input_ids=padded, attention_mask=seen).logits
    packed = policy(model, packed=True)
    torch.testing.assert_close(model(input_ids=padded, attention_mask=seen).logits[seen == 1], expected[seen == 1])
    np.testing.assert_allclose(packed.gradient_norms(rows, of="embedding"), before, rtol=1e-12)


WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: tiny(**WINDOWED), "tokens"),
        (lambda: own_attention(tiny()), "hidden"),
        (lambda: mute(tiny()), "TypeError"),
    ],
)
def test_a_model_with_another_attention_is_refused(make: Callable[[], nn.Module], named: str) -> None:
    model = make()
    with refused(ConfigError, named, "'padded'", key="update.layout", code="config.unsupported"):
        policy(model, packed=True)
    assert model.config._attn_implementation == "sdpa"


def own_attention(model: nn.Module) -> nn.Module:
    """Its layers drop every argument besides the hidden states: they attend as if nothing was packed."""
    for layer in model.model.layers:
        forward = layer.self_attn.forward

        def causal(*inputs: Tensor, forward: Callable[..., object] = forward, **options: object) -> object:
            options = {key: value for key, value in options.items() if key != "packing"}
            return forward(*inputs, **{**options, "attention_mask": None})

        layer.self_attn.forward = causal
    return model


def mute(model: nn.Module) -> nn.Module:
    def refuse(module: nn.Module, inputs: object, options: dict[str, object]) -> None:
        if "packing" in options:
            raise TypeError("no such argument")

    model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    return model


# -- flex attention's blocks, which a GPU computes with


def segments_of(*sizes: tuple[int, Sequence[int]]) -> list[Segment]:
    """Prompts of so many tokens, each with completions of so many."""
    segments, end = list[Segment](), 0
    for prompt, completions in sizes:
        start = end
        segments.append(Segment(start, start + prompt, start, start))
        end += prompt
        for length in completions:
            segments.append(Segment(end, end + length, start, start + prompt))
            end += length
    return segments


def seen_by(segments: Sequence[Segment]) -> np.ndarray:
    """[S, S] token by token."""
    seen = np.zeros((segments[-1].end,) * 2, dtype=bool)
    for s in segments:
        for query in range(s.start, s.end):
            seen[query, s.start : query + 1] = True
            seen[query, s.prompt_start : s.prompt_end] = True
    return seen


ROWS = [
    segments_of((3, [2, 4])),
    segments_of((BLOCK, [BLOCK, 2 * BLOCK])),
    segments_of((300, [5, 700, 1]), (2, [3] * 50), (400, [])),
]


@pytest.mark.parametrize(("segments", "whole"), zip(ROWS, (0, 4, 16), strict=True))
def test_blocks_cover_what_is_seen_and_no_more_than_is_needed(segments: list[Segment], whole: int) -> None:
    length = segments[-1].end
    seen = seen_by(segments)
    blocks = block_mask(segments, torch.device("cpu"))
    assert create_mask(blocks.mask_mod, 1, 1, length, length, device="cpu")[0, 0].numpy().tolist() == seen.tolist()
    count = -(-length // BLOCK)
    padded = np.zeros((count * BLOCK,) * 2, dtype=bool)
    padded[:length, :length] = seen
    parts = padded.reshape(count, BLOCK, count, BLOCK)
    assert (blocks.to_dense()[0, 0].numpy() == parts.any(axis=(1, 3))).all()
    counts, keys = blocks.full_kv_num_blocks[0, 0].tolist(), blocks.full_kv_indices[0, 0].tolist()
    every = [(query, key) for query, n in enumerate(counts) for key in keys[query][:n]]
    assert all(parts[query, :, key].all() for query, key in every)
    assert len(every) == whole  # of those that lie within one segment


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("segments", ROWS[:2])
def test_flex_attention_over_the_blocks_is_the_attention_of_each_segment(segments: list[Segment]) -> None:
    generator = torch.Generator().manual_seed(0)
    length = segments[-1].end
    q, k, v = (torch.randn(1, 2, length, 8, dtype=torch.float64, generator=generator) for _ in range(3))
    got = flex_attention(q, k, v, block_mask=block_mask(segments, torch.device("cpu")))
    seen = torch.from_numpy(seen_by(segments))
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_row_through_flex_attention_has_the_hidden_states_of_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, through the model and transformers, but without the compiler."""
    model, segments = tiny(), [Segment(0, 3, 0, 0), Segment(3, 5, 0, 3), Segment(5, 7, 0, 3)]
    attend_packed(model)
    tokens, positions = torch.tensor([5, 6, 7, 8, 9, 10, 11]), torch.tensor([0, 1, 2, 3, 4, 3, 4])
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(WrappedFlexAttention, "_is_flex_compiled", False)
    monkeypatch.setattr(WrappedFlexAttention, "_instance", None)
    with torch.no_grad():
        by_segment = read(model.get_decoder(), tokens, positions, Packing(segments))
        by_blocks = read(
            model.get_decoder(), tokens, positions, Packing(segments, block_mask(segments, torch.device("cpu")))
        )
    torch.testing.assert_close(by_blocks, by_segment, rtol=0, atol=1e-10)


# -- how a row is filled


def sized(*lengths: int) -> list[TrainingSequence]:
    return [row([2], [3] * (n - 1), group=i) for i, n in enumerate(lengths)]


def test_parts_are_filled_by_tokens_without_padding() -> None:
    assert fill(sized(5, 12, 3, 6, 2, 5), tokens=12) == [[0], [1], [2, 3, 4], [5]]
    assert fill(sized(5, 12, 3, 6, 2, 5), tokens=100) == [[0, 1, 2, 3, 4, 5]]


def test_a_sequence_above_the_limit_is_a_part_by_itself() -> None:
    assert fill(sized(20, 3, 4), tokens=8) == [[0], [1, 2]]
    assert fill(sized(3, 20, 4), tokens=8) == [[0], [1], [2]]
    assert fill([], tokens=8) == []


def test_sequences_of_a_prompt_are_adjacent() -> None:
    first, second = group(2, [3, 3]), group(2, [3, 3], number=1)
    assert fill([first[0], second[0], first[1], second[1]], tokens=10) == [[0, 2], [1, 3]]


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="'p0'"):
        hidden_states(tiny().model, [row([], [2])], pad_token=PAD, layout="packed")
