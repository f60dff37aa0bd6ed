"""Seconds of native's decoding on a CPU relative to its matrix products alone, in float32 and in bfloat16.

    python benchmarks/decoding.py                          32 and 128 rows at 40M parameters: several minutes
    python benchmarks/decoding.py --rows 8 --threads 1

Per precision and number of rows, in turn in one process, milliseconds per token of every row:

native      rollouts of --tokens tokens for four prompts, including packing of weights, reading of prompts, attention
            and sampling
unpacked    the same with packed = false
packed      only the products of all linear layers with the rows' states, with packed weights
linear      the same with the model's layers
reading     reading all weights of those layers once: the lower bound for a token

Writes benchmarks/results/<date>_decoding.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import frame
import torch
from bundled import bundled
from torch import Tensor, nn

from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.engines.native.linear import packed
from winnow.records import Prompt, Sampling

SHAPE_40M = {"hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 9, "num_attention_heads": 10}
PROMPTS = 4
REPEATS = 4  # of the products, which are fast


def main() -> None:
    parser = frame.parser(__doc__, threads=2, rounds=7, tokens=64)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128])
    options = frame.parse(parser)
    shape = None if options.quick else SHAPE_40M
    report = measured(shape, rows=options.rows, tokens=options.tokens, rounds=options.rounds)
    frame.finish("decoding", report, options, show=tuple(report))


def measured(shape: dict[str, int] | None, *, rows: Sequence[int], tokens: int, rounds: int) -> dict[str, Any]:
    """The model folder of a random policy with a shape, or of the bundled one."""
    report: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        context, prompts = _setting(shape, dtype, max(rows))
        report["parameters"] = sum(p.numel() for p in context.model.parameters())
        for number in rows:
            report[f"{dtype}, {number} rows"] = _race(context, prompts, number, tokens, rounds)
    return report


def _setting(shape: dict[str, int] | None, dtype: str, at_once: int) -> tuple[EngineContext, list[Prompt]]:
    context, prompts = bundled(PROMPTS, at_once=at_once, dtype=dtype)
    model = context.model
    if shape is not None:
        torch.manual_seed(0)
        settings = {**model.config.to_dict(), **shape, "layer_types": None}
        model = type(model)(type(model.config)(**settings)).to(context.model.dtype)
    return replace(context, model=model.eval(), stop_tokens=(), context_tokens=None), prompts


def _race(context: EngineContext, prompts: list[Prompt], rows: int, tokens: int, rounds: int) -> dict[str, Any]:
    layers = [layer for layer in context.model.modules() if isinstance(layer, nn.Linear)]
    states = [torch.randn(rows, 1, layer.in_features).to(context.model.dtype) for layer in layers]
    with torch.inference_mode(), packed(context.model):
        products = [layer.forward for layer in layers]  # with packed weights
    runs = {
        "native": _decoding(context, prompts, rows, tokens, packed=True),
        "unpacked": _decoding(context, prompts, rows, tokens, packed=False),
        "packed": _products(products, states),
        "linear": _products(layers, states),
        "reading": _products([lambda _, weight=layer.weight: weight.sum() for layer in layers], states),
    }
    passes = dict.fromkeys(runs, REPEATS) | {"native": tokens, "unpacked": tokens}
    turns = frame.paired(rounds, runs)
    found = {name: [1e3 * turn[name][1] / passes[name] for turn in turns] for name in runs}
    return {
        "milliseconds_per_token": {name: frame.median(times, 2) for name, times in found.items()},
        "native_over": {name: frame.median_ratio(found["native"], found[name]) for name in ("packed", "linear")},
    }


def _decoding(
    context: EngineContext, prompts: list[Prompt], rows: int, tokens: int, **options: bool
) -> Callable[[int], Any]:
    engine, each = native(context, **options), rows // len(prompts)
    sampling = Sampling(max_new_tokens=tokens)
    return lambda seed: engine.generate(prompts, [each] * len(prompts), sampling, seed=(seed,))


def _products(layers: Sequence[Callable[[Tensor], Tensor]], states: Sequence[Tensor]) -> Callable[[int], None]:
    def run(seed: int) -> None:
        with torch.inference_mode():
            for _ in range(REPEATS):
                for layer, state in zip(layers, states, strict=True):
                    layer(state)

    return run


if __name__ == "__main__":
    main()
