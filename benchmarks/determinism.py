"""How many rollouts change when others are sampled beside them: batch limits 1, 7 and 512, ten seeds.

    python benchmarks/determinism.py

Every rollout has random numbers of its own, so the limit must change none but those in which a number falls within
1e-5 of a boundary between two tokens. Writes benchmarks/results/<date>_determinism.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace

import dated
import numpy as np
import torch
from bundled import bundled

from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.records import Prompt, Rollout, Sampling

LIMITS = (1, 7, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {"prompts": 16, "rollouts": 8, "seeds": 10, "threads": 2}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    context, prompts = bundled(options.prompts, at_once=1)
    contexts = {limit: replace(context, max_rollouts_at_once=limit) for limit in LIMITS}
    found = {limit: _sample(of, prompts, options.rollouts, options.seeds) for limit, of in contexts.items()}
    report = {
        "settings": vars(options),
        "rollouts": len(found[1]),
        "tokens": sum(len(rollout.tokens) for rollout in found[1]),
        "differing": {f"{a} and {b}": _differing(found[a], found[b]) for a, b in itertools.combinations(LIMITS, 2)},
        "largest_logprob_gap": max(_gap(found[1], found[limit]) for limit in LIMITS[1:]),
    }
    print(json.dumps(report, indent=1))
    print(f"written: {dated.write('determinism', report, packages=('winnow-rl', 'torch', 'transformers'))}")


def _sample(context: EngineContext, prompts: list[Prompt], rollouts: int, seeds: int) -> list[Rollout]:
    engine = native(context)
    counts, sampling = [rollouts] * len(prompts), Sampling(max_new_tokens=64)
    groups = [g for seed in range(seeds) for g in engine.generate(prompts, counts, sampling, seed=(seed,))]
    return [rollout for group in groups for rollout in group.rollouts]


def _differing(one: list[Rollout], other: list[Rollout]) -> int:
    return sum(not np.array_equal(a.tokens, b.tokens) for a, b in zip(one, other, strict=True))


def _gap(one: list[Rollout], other: list[Rollout]) -> float:
    same = [(a, b) for a, b in zip(one, other, strict=True) if np.array_equal(a.tokens, b.tokens)]
    return max(float(np.abs(a.logprobs - b.logprobs).max()) for a, b in same)


if __name__ == "__main__":
    main()
