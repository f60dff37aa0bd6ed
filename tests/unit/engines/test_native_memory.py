"""The native engine's memory: its allocations, their reuse, and the effect of a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from refusals import refused
from winnow.engines.base import EngineContext
from winnow.engines.hf import hf
from winnow.engines.native.cuda import round_up
from winnow.engines.native.decoder import Decoder
from winnow.engines.native.engine import native
from winnow.engines.native.sampler import Native
from winnow.engines.native.scheduler import share_prompts
from winnow.engines.policy_copy import KVCacheSpec
from winnow.engines.requests import pending_rollouts
from winnow.errors import EngineError
from winnow.models.load import load_tokenizer
from winnow.records import Group, Prompt, Sampling

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, their width, float32


def context(*, at_once: int = 512, stop: tuple[int, ...] = (0,)) -> EngineContext:
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=20)
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_key_value_heads=2))
    with torch.no_grad():
        model.lm_head.weight.mul_(12)
    return EngineContext(
        model=model, tokenizer=load_tokenizer("bundled"), stop_tokens=stop, max_rollouts_at_once=at_once
    )


def prompts(*lengths: int) -> list[Prompt]:
    return [
        Prompt(id=f"p{i}", tokens=np.arange(1, n + 1) % 20, text="", answer=None, task="")
        for i, n in enumerate(lengths)
    ]


def lengths(groups: list[Group]) -> list[int]:
    return [len(rollout.tokens) for group in groups for rollout in group.rollouts]


def check_same(one: list[Group], other: list[Group]) -> None:
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.rollouts, b.rollouts, strict=True):
            np.testing.assert_array_equal(x.tokens, y.tokens)
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)


def test_the_cache_of_a_group_of_32_holds_its_prompt_once() -> None:
    engine = native(context(stop=()))
    assert isinstance(engine, Native)
    engine.generate(prompts(*[9] * 16), [32] * 16, Sampling(max_new_tokens=6), seed=(0,))
    assert engine.key_value_bytes == 16 * (9 + 32 * 6) * BYTES_PER_TOKEN


class Allocations(TorchDispatchMode):
    """Counts the large results whose memory belongs to none of the arguments."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.large, self.count = large, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        held = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        fresh = isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in held
        self.count += fresh and out.nbytes >= self.large
        return out


@pytest.mark.parametrize(("engine", "expected"), [(native, 0), (hf, 280)], ids=["native", "hf"])
def test_no_key_or_value_table_is_reallocated_from_step_to_step(engine: Callable[..., Any], expected: int) -> None:
    """`hf` shows that the counter works: its cache copies keys and values of every layer at every step. A rollout's
    second block begins within these 70 steps.
    """
    sampler, wanted = engine(context(stop=())), prompts(60)
    sampling = Sampling(max_new_tokens=71)
    sampler.generate(wanted, [4], sampling, seed=(0,))
    with Allocations(large=4 * 60 * 2 * 8 * 4) as allocations:  # one layer's keys of four copies of the prompt
        sampler.generate(wanted, [4], sampling, seed=(0,))
    assert allocations.count >= expected
    assert expected or allocations.count == 0


def test_a_step_of_few_rows_allocates_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has at most 260 scores: 4 heads, and 5 tokens of its prompt with 60 of its own."""
    engine, decode, large = native(context()), Decoder.decode, dict[int, int]()

    def watched(decoder: Decoder, tokens: np.ndarray, *arrays: np.ndarray) -> Tensor:
        with Allocations(large=len(tokens) * 280 * 4) as allocations:
            logits = decode(decoder, tokens, *arrays)
        large[len(tokens)] = large.get(len(tokens), 0) + allocations.count
        return logits

    monkeypatch.setattr(Decoder, "decode", watched)
    engine.generate(prompts(5), [150], Sampling(max_new_tokens=60), seed=(0,))
    assert max(large) > 120
    assert min(large) <= 16
    assert sum(large.values()) == 0


def test_the_cache_is_reused_by_the_next_request_that_fits() -> None:
    engine = native(context())
    engine.generate(prompts(5, 9), [4, 4], Sampling(max_new_tokens=6), seed=(0,))
    kept = engine._decoder
    engine.generate(prompts(7), [3], Sampling(max_new_tokens=5), seed=(0,))
    assert engine._decoder is kept
    engine.generate(prompts(70), [3], Sampling(max_new_tokens=5), seed=(0,))
    assert engine._decoder is not kept


def test_a_closed_engine_holds_no_keys_and_values() -> None:
    engine = native(context())
    engine.generate(prompts(5), [2], Sampling(max_new_tokens=3), seed=(0,))
    assert engine.key_value_bytes > 0
    engine.close()
    assert engine.key_value_bytes == 0


def test_earlier_requests_change_no_bit() -> None:
    """A resumed run repeats none of the evaluations of the run that it continues."""
    wanted, counts, sampling = prompts(5, 9), [30, 20], Sampling(max_new_tokens=20)
    fresh, used = native(context(at_once=24)), native(context(at_once=24))
    used.generate(prompts(40, 3, 17, 8), [10, 40, 1, 5], Sampling(max_new_tokens=33), seed=(9,))
    one, other = (engine.generate(wanted, counts, sampling, seed=(0,)) for engine in (fresh, used))
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.rollouts, b.rollouts, strict=True):
            np.testing.assert_array_equal(x.tokens, y.tokens)
            np.testing.assert_array_equal(x.logprobs, y.logprobs)


def test_a_bound_holds_for_requests_of_different_shapes() -> None:
    engine = native(context(at_once=600), key_value_mb=1)
    for request in (prompts(300), prompts(5)):
        engine.generate(request, [100], Sampling(max_new_tokens=30), seed=(0,))
        assert engine.key_value_bytes <= 2**20


def test_a_prompt_is_read_once_for_all_its_rollouts() -> None:
    c, fed = context(), Counter[int]()
    engine = native(c)
    c.model.model.embed_tokens.register_forward_pre_hook(lambda module, inputs: fed.update([inputs[0].shape[1]]))
    engine.generate(prompts(9, 9), [32, 32], Sampling(max_new_tokens=4), seed=(0,))
    assert fed == {9: 1, 1: 3}


def test_free_rows_are_refilled_with_waiting_rollouts() -> None:
    """Waves would need a pass per token of the longest rollout of every wave; refilled rows save the difference."""
    wanted, sampling = prompts(3, 5, 4), Sampling(max_new_tokens=100)
    widths: list[int] = []
    c = context(at_once=8)
    engine = native(c)
    c.model.lm_head.register_forward_pre_hook(lambda module, inputs: widths.append(inputs[0].shape[0]))
    narrow = engine.generate(wanted, [20, 20, 20], sampling, seed=(4,))
    wide = native(context()).generate(wanted, [20, 20, 20], sampling, seed=(4,))
    check_same(wide, narrow)
    sampled = np.array(lengths(wide))
    waves = sum(int(sampled[np.arange(60) // 8 == wave].max()) for wave in range(8))
    assert sampled.max() > 2 * sampled.mean()
    assert len(widths) < 0.8 * waves
    assert max(widths) <= 8


def test_a_reused_row_contains_nothing_of_its_previous_rollout() -> None:
    wanted, sampling = prompts(2, 6), Sampling(max_new_tokens=5)
    check_same(
        native(context()).generate(wanted, [25, 25], sampling, seed=(1,)),
        native(context(at_once=3)).generate(wanted, [25, 25], sampling, seed=(1,)),
    )


def test_a_memory_bound_admits_fewer_rollouts_and_changes_none() -> None:
    wanted, counts, sampling = prompts(40, 30), [120, 120], Sampling(max_new_tokens=20)
    free, bound = native(context(at_once=600)), native(context(at_once=600), key_value_mb=1)
    check_same(free.generate(wanted, counts, sampling, seed=(2,)), bound.generate(wanted, counts, sampling, seed=(2,)))
    assert bound.key_value_bytes <= 2**20 < free.key_value_bytes
    assert bound.key_value_bytes > 0.95 * 2**20


def test_a_bound_too_small_for_one_rollout_is_refused() -> None:
    with refused(EngineError, 4096, 5057, key="rollout.engine.key_value_mb", code="engine.memory"):
        native(context(), key_value_mb=1).generate(prompts(1), [1], Sampling(max_new_tokens=5000), seed=(0,))


def test_a_prompt_with_many_rollouts_is_held_several_times() -> None:
    of = [rollout.shared for rollout in share_prompts(pending_rollouts(prompts(5, 5, 5, 5), [1, 37, 1, 1]))]
    assert Counter(shared.prompt.id for shared in of) == {"p0": 1, "p1": 37, "p2": 1, "p3": 1}
    assert max(Counter(map(id, of)).values()) == 10
    even = [rollout.shared for rollout in share_prompts(pending_rollouts(prompts(5, 5), [8, 8]))]
    assert sorted(Counter(map(id, even)).values()) == [8, 8]
    uneven, other = (
        engine(context()).generate(prompts(5, 5, 5, 5), [1, 37, 1, 1], Sampling(max_new_tokens=8), seed=(0,))
        for engine in (native, hf)
    )
    check_same(uneven, other)


class NotRecorded:
    """A fake of CudaGraphs that runs the same fixed shapes without recording them."""

    def __init__(self) -> None:
        self.shapes: list[Hashable] = []

    def run(self, shape: Hashable, step: Callable[[], Tensor]) -> Tensor:
        self.shapes.append(shape)
        return step()


def recorded_engine(tokens: int) -> tuple[Native, NotRecorded]:
    """An engine with the shapes of recorded steps, in a cache of at least `tokens` tokens."""
    engine, recorded = native(context(at_once=24)), NotRecorded()
    assert isinstance(engine, Native)
    engine._graphs = True
    engine._decoder = Decoder(engine._model, tokens, 24, recorded)  # type: ignore[arg-type]
    return engine, recorded


def test_the_fixed_shapes_of_recorded_steps_change_no_rollout() -> None:
    wanted, counts, sampling = prompts(5, 90, 7), [30, 3, 20], Sampling(max_new_tokens=140)
    c = context(at_once=24)
    plain = native(c).generate(wanted, counts, sampling, seed=(3,))
    engine, recorded = recorded_engine(10_000)
    check_same(plain, engine.generate(wanted, counts, sampling, seed=(3,)))
    steps = len(recorded.shapes)
    assert max(lengths(plain)) > 64
    assert steps > 100
    assert len(set(recorded.shapes)) <= steps / 2


@pytest.mark.parametrize(
    ("lengths", "counts", "longest", "blocks"),
    [
        ((5,), [9], 135, 0),
        ((400, 400, 400), [1, 1, 1], 64, 0),
        pytest.param((5,), [24], 130, 45, marks=pytest.mark.slow),  # by the next, and by the first, which has 3 blocks
        ((5, 5, 5, 5), [16, 16, 16, 16], 70, 70),
        ((5,), [64], 60, 34),
    ],
)
def test_recorded_steps_read_no_more_blocks_than_the_request_may_take(monkeypatch, lengths, counts, longest, blocks):
    """Sizes are rounded up, but never beyond the cache, which has exactly the blocks of the request. float64 makes a
    block too many or too few visible.
    """
    monkeypatch.setattr("winnow.engines.native.sampler.CudaGraphs", NotRecorded)
    wanted, sampling, contexts = prompts(*lengths), Sampling(max_new_tokens=longest), [context(stop=()) for _ in "ab"]
    for each in contexts:
        each.model.to(torch.float64)
    plain = native(contexts[0]).generate(wanted, counts, sampling, seed=(1,))
    engine = native(contexts[1])
    assert isinstance(engine, Native)
    engine._graphs = True
    engine._tokens = 64 * blocks or engine._tokens
    check_same(plain, engine.generate(wanted, counts, sampling, seed=(1,)))
    assert (engine.preemptions > 0) == (longest > 64 and blocks > 0)


def test_recorded_steps_do_not_depend_on_earlier_requests() -> None:
    """Padding rows attend to what earlier requests wrote; without any visible column their softmax would be NaN."""
    wanted, counts, sampling = prompts(3, 5), [6, 5], Sampling(max_new_tokens=12)
    (fresh, shapes_of_fresh), (used, shapes_of_used) = recorded_engine(10_000), recorded_engine(20_000)
    used.generate(prompts(90, 70), [20, 20], Sampling(max_new_tokens=130), seed=(8,))
    shapes_of_used.shapes.clear()
    for step in range(2):
        one, other = (engine.generate(wanted, counts, sampling, seed=(step,)) for engine in (fresh, used))
        for a, b in zip(one, other, strict=True):
            for x, y in zip(a.rollouts, b.rollouts, strict=True):
                np.testing.assert_array_equal(x.logprobs, y.logprobs)
                assert np.isfinite(y.logprobs).all()
    assert shapes_of_used.shapes == shapes_of_fresh.shapes


def test_a_failed_request_does_not_affect_the_next() -> None:
    engine, wanted = native(context()), prompts(3, 3, 3, 3, 9)
    weight = engine._policy.model.layers[0].mlp.up_proj.weight
    healthy = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
    with refused(EngineError, code="engine.diverged"):
        engine.generate(wanted, [2] * 5, Sampling(max_new_tokens=6), seed=(0,))
    with torch.no_grad():
        weight.copy_(healthy)
    check_same(
        engine.generate(wanted, [2] * 5, Sampling(max_new_tokens=6), seed=(0,)),
        native(context()).generate(wanted, [2] * 5, Sampling(max_new_tokens=6), seed=(0,)),
    )


def test_rows_are_padded_by_at_most_a_half_to_few_sizes() -> None:
    assert [round_up(n, 4) for n in (1, 2, 3, 5, 8, 9, 33, 49, 500)] == [1, 2, 3, 6, 8, 12, 48, 64, 512]
    assert all(n <= round_up(n, 4) <= 1.5 * n for n in range(1, 513))
    assert len({round_up(n, 4) for n in range(1, 513)}) < 20


def test_a_cache_spec_gives_the_bytes_of_a_token() -> None:
    assert KVCacheSpec.of(context().model).bytes_per_token == BYTES_PER_TOKEN
