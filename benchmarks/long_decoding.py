"""Native's decoding of long completions on a CPU: speed by position, and memory of keys and values.

    python benchmarks/long_decoding.py                     64 rollouts of 4,096 tokens: many minutes
    python benchmarks/long_decoding.py --rows 16 --tokens 512
    python benchmarks/long_decoding.py --quick             a smoke test; its figures mean nothing and are not written

The policy is random, in the bundled one's architecture, with 1M parameters.

speed   all rollouts have --tokens tokens. Per eighth of the positions: tokens per second; milliseconds per step; those
        of attention (the cache's `attend` of every layer, timed in the same steps); and those of the rest, which should
        not depend on the position
held    rollouts of natural lengths (geometric, an eighth of --tokens on average), at most --rows concurrently. At the
        step with the most memory: the capacity of the blocks in tokens, relative to the written tokens in whole blocks
        of 64. Then the same with half of that memory, where young rollouts are evicted and read again

Writes benchmarks/results/<date>_long_decoding.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import frame
import numpy as np
import torch
from bundled import bundled

from winnow.engines.base import EngineContext
from winnow.engines.native.cache import KVCache
from winnow.engines.native.decoder import Decoder
from winnow.engines.native.engine import native
from winnow.engines.native.rows import RunningRollouts
from winnow.records import Prompt, Sampling

SHAPE_1M = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 4}
PROMPTS, RANGES = 4, 8


def main() -> None:
    parser = frame.parser(__doc__, threads=2, rows=64, tokens=4096)
    options = frame.parse(parser)
    if options.quick:
        print(json.dumps(measured(rows=8, tokens=160), indent=1))
        return
    frame.finish("long_decoding", measured(rows=options.rows, tokens=options.tokens), options, show=("speed", "held"))


def measured(*, rows: int, tokens: int) -> dict[str, Any]:
    context, prompts = _setting(rows)
    parameters = sum(p.numel() for p in context.model.parameters())
    held = [_held(context, prompts, rows, tokens, None)]
    held.append(_held(context, prompts, rows, tokens, max(held[0]["held_tokens"] // 2, tokens + 192)))
    return {"parameters": parameters, "speed": _speed(context, prompts, rows, tokens), "held": held}


def _setting(at_once: int) -> tuple[EngineContext, list[Prompt]]:
    context, prompts = bundled(PROMPTS, at_once=at_once, dtype="float32")
    torch.manual_seed(0)
    settings = {**context.model.config.to_dict(), **SHAPE_1M, "layer_types": None, "max_position_embeddings": 2**15}
    model = type(context.model)(type(context.model.config)(**settings))
    return replace(context, model=model.eval(), stop_tokens=(), context_tokens=None), prompts


def _speed(context: EngineContext, prompts: list[Prompt], rows: int, tokens: int) -> list[dict[str, Any]]:
    engine = native(context)
    with _timed(Decoder, "decode") as decoding, _timed(KVCache, "attend") as attend:
        start = time.perf_counter()
        engine.generate(prompts, [rows // PROMPTS] * PROMPTS, Sampling(max_new_tokens=tokens), seed=(0,))
        whole = time.perf_counter() - start
    layers = context.model.config.num_hidden_layers
    steps = [end for _, end in decoding]
    attending = np.array([end - begin for begin, end in attend]).reshape(-1, layers).sum(axis=1)
    each, found = len(steps) // RANGES, []
    for number in range(RANGES):
        first, last = number * each, (number + 1) * each
        seconds = steps[last - 1] - (steps[first - 1] if first else decoding[0][0])
        attention = float(attending[first:last].sum())
        found.append(
            {
                "positions": f"{first}-{last}",
                "tokens_per_second": round(rows * each / seconds),
                "step_ms": round(1e3 * seconds / each, 2),
                "attention_ms": round(1e3 * attention / each, 2),
                "rest_ms": round(1e3 * (seconds - attention) / each, 2),
            }
        )
    return [*found, {"whole_seconds": round(whole, 1), "tokens_per_second": round(rows * tokens / whole)}]


def _held(context: EngineContext, prompts: list[Prompt], rows: int, tokens: int, bound: int | None) -> dict[str, Any]:
    """An engine with natural lengths: one token of the vocabulary, which a random policy sometimes draws, stops."""
    often = context.model.config.vocab_size * 8 // tokens or 1
    engine = native(replace(context, stop_tokens=tuple(range(often))))
    peak = {"held": 0, "ideal": 0}
    begin_step = KVCache.begin_step

    def watched(cache: KVCache, *step: Any) -> None:
        pool = cache.pool
        held = pool.own.tokens + pool.prompts.tokens
        if held > peak["held"]:
            running = _RUNNING[-1]
            written = running._length[: len(running)]
            texts = [len(shared.prompt.tokens) for shared in running._prompts]
            ideal = sum(-(-int(length) // 64) * 64 for length in (*written, *texts))
            peak.update(held=held, ideal=ideal)
        begin_step(cache, *step)

    if bound is not None:
        engine._tokens = bound  # type: ignore[attr-defined]
    KVCache.begin_step = watched  # type: ignore[method-assign]
    try:
        with _remembered():
            start = time.perf_counter()
            groups = engine.generate(prompts, [rows] * PROMPTS, Sampling(max_new_tokens=tokens), seed=(1,))
            seconds = time.perf_counter() - start
    finally:
        KVCache.begin_step = begin_step  # type: ignore[method-assign]
    lengths = [len(rollout.tokens) for group in groups for rollout in group.rollouts]
    return {
        "bound_tokens": bound,
        "rollouts": len(lengths),
        "length_mean": round(float(np.mean(lengths))),
        "length_most": max(lengths),
        "held_tokens": peak["held"],
        "ideal_tokens": peak["ideal"],
        "held_over_ideal": round(peak["held"] / peak["ideal"], 4),
        "a_table_of_full_rows": rows * tokens + PROMPTS * max(len(prompt.tokens) for prompt in prompts),
        "put_back": engine.preemptions,  # type: ignore[attr-defined]
        "tokens_per_second": round(sum(lengths) / seconds),
    }


_RUNNING: list[RunningRollouts] = []


@contextmanager
def _remembered() -> Iterator[None]:
    """Record the running rollouts of a request while it is sampled."""
    init = RunningRollouts.__init__

    def remember(self: RunningRollouts, *args: Any) -> None:
        init(self, *args)
        _RUNNING.append(self)

    RunningRollouts.__init__ = remember  # type: ignore[method-assign]
    try:
        yield
    finally:
        RunningRollouts.__init__ = init  # type: ignore[method-assign]
        _RUNNING.clear()


@contextmanager
def _timed(owner: type, name: str) -> Iterator[list[tuple[float, float]]]:
    """Record the start and the end of each call of a method."""
    method, calls = getattr(owner, name), list[tuple[float, float]]()

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        out = method(*args, **kwargs)
        calls.append((begin, time.perf_counter()))
        return out

    setattr(owner, name, timed)
    try:
        yield calls
    finally:
        setattr(owner, name, method)


if __name__ == "__main__":
    main()
