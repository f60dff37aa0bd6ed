"""Tokens per second of the native engine, of the hf engine, and of transformers' own sampling.

    python benchmarks/engines.py

Every round runs all three in turn in one process, so that a busy machine slows all of them; what counts is the median
of the per-round ratios. The model is the bundled policy, or, where that is not there yet, a random one of its size
whose rollouts end with a fixed probability per token. Writes benchmarks/results/<date>_engines.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import dated
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from winnow.engines.base import EngineContext
from winnow.engines.batching import left_pad
from winnow.engines.hf import hf
from winnow.engines.native import native
from winnow.errors import DataError
from winnow.models.load import load
from winnow.records import Prompt, Sampling
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.templates import render

Contestant = Callable[[int], int]  # seed -> completion tokens sampled


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    name, context, prompts = _setting(options)
    sampling = Sampling(max_new_tokens=options.max_new_tokens)
    contestants = {
        "native": _engine(native(context), prompts, options.rollouts, sampling),
        "hf": _engine(hf(context), prompts, options.rollouts, sampling),
        "generate": _generate(context, prompts, options.rollouts, sampling),
    }
    for contestant in contestants.values():
        contestant(0)  # warm up
    rounds = [{k: _speed(run, seed) for k, run in contestants.items()} for seed in range(1, options.rounds + 1)]
    _write({"model": name, "settings": vars(options), "prompt_tokens": [len(p.tokens) for p in prompts]}, rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {"prompts": 16, "rollouts": 32, "max-new-tokens": 64, "threads": 2, "rounds": 5}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    return parser.parse_args()


def _setting(options: argparse.Namespace) -> tuple[str, EngineContext, list[Prompt]]:
    at_once = options.prompts * options.rollouts
    try:
        loaded = load("bundled")
    except DataError:
        return _random_setting(options.prompts, at_once)
    problems = arithmetic("validation")[: options.prompts]
    prompts = render(problems, loaded.tokenizer, template="chat", max_prompt_tokens=512).prompts
    context = EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=at_once,
    )
    return "bundled", context, prompts


def _random_setting(number: int, at_once: int) -> tuple[str, EngineContext, list[Prompt]]:
    """20 of 500 tokens stop, so a random policy's rollouts are about 25 tokens long."""
    words = WordLevel({f"w{i} ": i for i in range(500)}, unk_token="w0 ")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=500,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    rng = np.random.default_rng(0)
    prompts = [
        Prompt(id=str(i), tokens=rng.integers(0, 480, rng.integers(20, 41)), text="", answer=None, task="random")
        for i in range(number)
    ]
    context = EngineContext(
        model=transformers.Qwen2ForCausalLM(config).eval(),
        tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)),
        stop_tokens=tuple(range(480, 500)),
        max_rollouts_at_once=at_once,
    )
    return "random qwen2, hidden 128, 4 layers", context, prompts


def _engine(engine: Any, prompts: list[Prompt], rollouts: int, sampling: Sampling) -> Contestant:
    def run(seed: int) -> int:
        groups = engine.generate(prompts, [rollouts] * len(prompts), sampling, seed=(seed,))
        return sum(len(rollout.tokens) for group in groups for rollout in group.rollouts)

    return run


def _generate(context: EngineContext, prompts: list[Prompt], rollouts: int, sampling: Sampling) -> Contestant:
    """What a user of transformers alone would call; its texts and log-probs are not even asked for."""
    stop = torch.tensor(context.stop_tokens)
    tokens, real = left_pad(prompts, pad=int(stop[0]), device=context.model.device)
    settings = transformers.GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=sampling.max_new_tokens,
        num_return_sequences=rollouts,
        eos_token_id=stop.tolist(),
        pad_token_id=int(stop[0]),
    )

    def run(seed: int) -> int:
        torch.manual_seed(seed)
        out = context.model.generate(input_ids=tokens, attention_mask=real, generation_config=settings)
        ends = torch.isin(out[:, tokens.shape[1] :], stop)
        lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, ends.shape[1])
        return int(lengths.sum())

    return run


def _speed(run: Contestant, seed: int) -> float:
    start = time.perf_counter()
    tokens = run(seed)
    return tokens / (time.perf_counter() - start)


def _write(setting: dict[str, Any], rounds: list[dict[str, float]]) -> None:
    report = {
        **setting,
        "seeds": list(range(1, len(rounds) + 1)),
        "tokens_per_second": {k: [round(r[k]) for r in rounds] for k in rounds[0]},
        "median": {k: round(statistics.median(r[k] for r in rounds)) for k in rounds[0]},
        "native_over": {
            k: round(statistics.median(r["native"] / r[k] for r in rounds), 2) for k in rounds[0] if k != "native"
        },
    }
    print(json.dumps({k: report[k] for k in ("model", "median", "native_over")}, indent=2))
    print(f"written: {dated.write('engines', report, packages=('winnow-rl', 'torch', 'transformers'))}")


if __name__ == "__main__":
    main()
