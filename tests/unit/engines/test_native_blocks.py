"""The native engine's cache blocks, preemption under a memory bound, prefill in pieces, and recorded shapes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from test_native_memory import BYTES_PER_TOKEN, check_same, context, lengths, prompts

from winnow.engines.base import EngineContext
from winnow.engines.native.cache import KVCache
from winnow.engines.native.cuda import MOST_SHAPES, rounded_shape
from winnow.engines.native.decoder import batches
from winnow.engines.native.engine import native
from winnow.engines.native.sampler import Native
from winnow.engines.native.scheduler import BlockPool, BlockTable, Scheduler, fill_gaps
from winnow.engines.requests import pending_rollouts
from winnow.records import Sampling

LONG = Sampling(max_new_tokens=200)
THREE_BLOCKS = Sampling(max_new_tokens=130)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def exact_context(*, at_once: int = 512, stop: tuple[int, ...] = (0,)) -> EngineContext:
    made = context(at_once=at_once, stop=stop)
    made.model.double()
    return made


def test_the_last_places_move_into_the_gaps() -> None:
    source, target = fill_gaps(numbers(1, 4), 6)
    assert (source.tolist(), target.tolist()) == ([5], [1])
    source, target = fill_gaps(numbers(4, 5), 6)
    assert (source.tolist(), target.tolist()) == ([], [])


def test_sequences_get_blocks_as_they_grow() -> None:
    table = BlockTable(width=4)
    assert table.blocks(numbers(0, 1, 4, 5)).tolist() == [0, 1, 1, 2]
    assert table.add(numbers(2, 0, 1)).tolist() == [0, 1, 2]
    table.extend(numbers(1, 2))
    assert [table.table[s, : table.held[s]].tolist() for s in range(3)] == [[0, 2], [3], [1, 4]]
    assert (table.used, table.tokens, table.longest()) == (5, 20, 2)


def test_a_removed_sequence_leaves_no_hole() -> None:
    """Rows have blocks 0 [0, 2], 1 [3], 2 [1, 4]. Row 0 ends: blocks 3 and 4 move to 0 and 2, and row 2 to row 0."""
    table = BlockTable(width=4)
    table.add(numbers(2, 0, 1))
    table.extend(numbers(1, 2))
    source, target = table.remove(numbers(0))
    assert (source.tolist(), target.tolist()) == ([3, 4], [0, 2])
    assert [table.table[s, : table.held[s]].tolist() for s in range(2)] == [[1, 2], [0]]
    assert table.owner[: table.used].tolist() == [1, 0, 0]
    assert table.ordinal[: table.used].tolist() == [0, 0, 1]


def test_tables_are_consistent_after_random_changes() -> None:
    random, table, held = np.random.default_rng(0), BlockTable(width=8), list[int]()
    for _ in range(300):
        if random.random() < 0.5 or not held:
            more = random.integers(0, 4, size=3)
            table.add(more)
            held += more.tolist()
        elif random.random() < 0.5:
            some = np.flatnonzero(random.random(len(held)) < 0.5)
            table.extend(some)
            held = [n + (s in some) for s, n in enumerate(held)]
        else:
            gone = np.flatnonzero(random.random(len(held)) < 0.3)
            source, target = fill_gaps(gone, len(held))
            for before, now in zip(source, target, strict=True):
                held[now] = held[before]
            held = held[: len(held) - len(gone)]
            table.remove(gone)
        assert table.held[: table.sequences].tolist() == held
        assert sorted(b for s, n in enumerate(held) for b in table.table[s, :n]) == list(range(sum(held)))
        assert all(table.owner[table.table[s, k]] == s for s, n in enumerate(held) for k in range(n))


def test_blocks_are_no_longer_than_the_texts_of_a_short_request() -> None:
    def widths(longest: int, prompt: int, *, fixed: bool = False) -> tuple[int, int]:
        pool = Scheduler(pending_rollouts(prompts(prompt), [2]), rows=2, longest=longest, fixed=fixed).pool
        return pool.own.width, pool.prompts.width

    assert widths(48, 30) == (48, 30)
    assert widths(65, 300) == (64, 64)
    assert widths(48, 30, fixed=True) == (64, 64)


# 512 rows are slow: memory ends before either number of rows; test_a_bounded_cache_gives_the_same_bits_again has them
@pytest.mark.parametrize("at_once", [pytest.param(512, marks=pytest.mark.slow), 5])
def test_preempted_rollouts_continue_with_the_same_tokens(at_once: int) -> None:
    """A cache of 448 tokens holds about one and a half rollouts of full length, and some start together."""
    wanted, counts = prompts(5, 70, 9), [3, 3, 3]
    bound = native(exact_context(at_once=at_once, stop=()))
    assert isinstance(bound, Native)
    bound._tokens = 448
    free = native(exact_context(at_once=at_once, stop=())).generate(wanted, counts, THREE_BLOCKS, seed=(5,))
    again = bound.generate(wanted, counts, THREE_BLOCKS, seed=(5,))
    assert bound.preemptions > 3
    assert set(lengths(free)) == {130}
    for one, other in zip(free, again, strict=True):
        for x, y in zip(one.rollouts, other.rollouts, strict=True):
            np.testing.assert_array_equal(x.tokens, y.tokens)
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-10)
    assert bound.key_value_bytes <= 448 * 2 * BYTES_PER_TOKEN


def test_the_youngest_rollout_is_preempted_and_admitted_first() -> None:
    rollouts = pending_rollouts(prompts(3), [9])
    scheduler = Scheduler(rollouts, rows=9, longest=200, tokens=1000)
    running = scheduler.admit(0)
    assert len(running) > 2
    row = scheduler.preempt_youngest(running)
    assert row == len(running) - 1
    assert scheduler.preemptions == 1
    assert scheduler.admit(len(running) - 1)[0] is running[row]


def test_a_bounded_cache_gives_the_same_bits_again() -> None:
    engine = native(context(stop=()))
    assert isinstance(engine, Native)
    engine._tokens = 512
    one, other = (engine.generate(prompts(5, 70), [3, 3], THREE_BLOCKS, seed=(5,)) for _ in range(2))
    assert engine.preemptions > 0
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.rollouts, b.rollouts, strict=True):
            np.testing.assert_array_equal(x.logprobs, y.logprobs)


def test_prompts_read_in_pieces_give_the_rollouts_of_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, counts = prompts(5, 150, 9, 64, 65, 30), [3] * 6
    whole = native(exact_context()).generate(wanted, counts, Sampling(max_new_tokens=20), seed=(1,))
    monkeypatch.setattr("winnow.engines.native.memory.PIECE", 40)
    c, fed = exact_context(), Counter[int]()
    engine = native(c)
    c.model.model.embed_tokens.register_forward_pre_hook(lambda module, inputs: fed.update([inputs[0].numel()]))
    pieces = engine.generate(wanted, counts, Sampling(max_new_tokens=20), seed=(1,))
    assert max(fed) == 40
    for one, other in zip(whole, pieces, strict=True):
        for x, y in zip(one.rollouts, other.rollouts, strict=True):
            np.testing.assert_array_equal(x.tokens, y.tokens)
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-10)


def test_texts_of_similar_length_are_read_together() -> None:
    assert list(batches([10, 3000, 20, 9000, 15])) == [[0, 4, 2], [1], [3]]
    assert list(batches([2048, 2048, 2048])) == [[0, 1], [2]]


def test_the_cache_holds_only_written_tokens_in_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step, the blocks that are read equal the rollouts' tokens rounded up to whole blocks."""
    ratios: list[float] = []
    begin_step = KVCache.begin_step

    def watched(cache: KVCache, shape: object, arrays: dict[str, torch.Tensor], together: int | None) -> None:
        running = cache.pool.own.sequences
        positions = arrays["position"][:running]
        tokens = arrays["block"].new_tensor(cache.pool.own.held[:running]) * 64
        assert (positions < 200 + 70).all()
        assert (tokens >= arrays["column"][:running] + 1).all()
        ratios.append(shape.blocks * 64 / int(tokens.sum()))  # type: ignore[attr-defined]
        begin_step(cache, shape, arrays, together)  # type: ignore[arg-type]

    monkeypatch.setattr(KVCache, "begin_step", watched)
    engine = native(context(at_once=24))
    groups = engine.generate(prompts(5, 70), [40, 40], LONG, seed=(2,))
    assert max(lengths(groups)) > 100
    assert set(ratios) == {1.0}
    assert isinstance(engine, Native)
    naive = (70 + 5) * BYTES_PER_TOKEN + 24 * 200 * BYTES_PER_TOKEN
    assert engine.key_value_bytes < 0.75 * naive


def test_recorded_steps_of_a_long_request_have_few_shapes() -> None:
    """Every step of 1,000 rollouts of up to 8,192 tokens, 512 at once, half of them short, without a model."""
    rollouts = pending_rollouts(prompts(*range(20, 220, 20)), [100] * 10)
    scheduler = Scheduler(rollouts, rows=512, longest=8192, fixed=True)
    random, own, queries = np.random.default_rng(0), scheduler.pool.own, scheduler.pool.prompts
    wanted = np.minimum(8192, random.geometric(1 / 1000, size=1000))
    shapes, shape, started, ends, length = set(), None, 0, numbers(), numbers()
    for _ in range(30_000):
        admitted = scheduler.admit(own.sequences)
        for each in admitted:
            if each.shared.number < 0:
                blocks = queries.blocks(numbers(len(each.shared.prompt.tokens)))
                each.shared.number = int(queries.add(blocks)[0])
        own.add(np.zeros(len(admitted), dtype=np.int64))
        ends = np.concatenate([ends, wanted[started : started + len(admitted)]])
        length = np.concatenate([length, np.zeros(len(admitted), dtype=np.int64)]) + 1
        started += len(admitted)
        over = np.flatnonzero(length >= ends)
        source, target = fill_gaps(over, len(ends))
        ends[target], length[target] = ends[source], length[source]
        ends, length = ends[: len(ends) - len(over)], length[: len(length) - len(over)]
        own.remove(over)
        if not len(ends):
            break
        own.extend(np.flatnonzero(length > own.held[: own.sequences] * own.width))
        shape = rounded_shape(scheduler, shape)
        assert shape.blocks >= own.used
        assert shape.longest >= own.longest()
        shapes.add(shape)
    assert started == 1000
    assert not len(ends)
    assert len(shapes) <= MOST_SHAPES


def test_a_pool_counts_its_free_tokens() -> None:
    pool = BlockPool(1000, own_width=64, prompt_width=10)
    pool.own.add(numbers(2, 1))
    pool.prompts.add(numbers(3))
    assert pool.free == 1000 - 3 * 64 - 3 * 10


def test_a_prompt_in_several_blocks_gives_the_same_rollouts() -> None:
    """The same prompt in blocks of 64 tokens, beside a longer prompt, and in one block, alone."""
    wanted = prompts(64)
    one, two = (
        native(exact_context()).generate(
            [*wanted, *more], [4] * (1 + len(more)), Sampling(max_new_tokens=30), seed=(7,)
        )
        for more in ([], prompts(64, 130)[1:])
    )
    check_same(one, two[:1])
