"""The speed of native's generation in two source trees, and whether their rollouts are the same.

    python benchmarks/generation_speed.py --before ../before --after .             all shapes but the long one
    python benchmarks/generation_speed.py --before ../before --after . --shapes bundled eight --write
    python benchmarks/generation_speed.py --before ../before --after . --shapes long --rounds 1 --write

Each tree has one process per shape, and the two sample in turn: the same prompts, seeds and threads. The ratio is
before / after, so above 1 the new tree is faster. `seconds` are wall time, and `cpu` is the processor time of all
threads, which depends less on other work of the machine.

bundled      the bundled policy, 32 prompts x 16 rollouts of up to 48 tokens: the default step
eight        the same policy, 2 prompts x 4 rollouts, --repeats times
float32      40M parameters, random weights, 4 prompts x 8 rollouts of 64 tokens
bfloat16     the same in bfloat16
long         1M parameters, random weights, 4 prompts x 16 rollouts of 4,096 tokens

Rollouts are compared where both trees compute in float32. A rollout that differs is a tie if, at its first different
token, the random number is closer to a step of the cumulative distribution than twice the largest difference of
log-probs. That distribution is computed in float64. --write writes benchmarks/results/<date>_generation_speed.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import frame
import numpy as np

SHAPE_40M = {"hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 9, "num_attention_heads": 10}
SHAPE_1M = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 4}


@dataclass(frozen=True)
class Work:
    """One request, sampled `repeats` times per round."""

    prompts: int
    rollouts: int
    tokens: int
    shape: dict[str, int] | None = None  # of a random policy; None: the bundled one, with its own lengths
    dtype: str = "float32"
    repeats: int = 1


SHAPES = {
    "bundled": Work(32, 16, 48),
    "eight": Work(2, 4, 48, repeats=8),
    "float32": Work(4, 8, 64, SHAPE_40M),
    "bfloat16": Work(4, 8, 64, SHAPE_40M, "bfloat16"),
    "long": Work(4, 16, 4096, SHAPE_1M),
}


class Sampled(NamedTuple):
    """What a tree's process returns for a seed."""

    seconds: float
    cpu: float
    tokens: list[np.ndarray]
    logprobs: list[np.ndarray]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(SHAPES[sys.argv[2]], Path(sys.argv[3]))
        return
    made = frame.parser(__doc__, rounds=7, threads=2)
    made.add_argument("--before", type=Path, required=True)
    made.add_argument("--after", type=Path, required=True)
    made.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=[name for name in SHAPES if name != "long"])
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    report = {}
    for name in options.shapes:
        trees = (options.before, options.after)
        report[name] = measured(name, trees, rounds=options.rounds, threads=options.threads)
        print(name, json.dumps(report[name]), flush=True)
    if options.write:
        settings = {"rounds": options.rounds, "threads": options.threads, "shapes": options.shapes}
        frame.finish("generation_speed", {"settings": settings, "before / after": report})


def measured(name: str, trees: tuple[Path, Path], *, rounds: int, threads: int) -> dict[str, Any]:
    """The report of one shape. The first round, with seed 0, is the warm-up."""
    with sampler(trees[0], name, threads) as before, sampler(trees[1], name, threads) as after:
        pairs = [(before(seed), after(seed)) for seed in range(rounds + 1)][1:]
    report: dict[str, Any] = {"tokens": sum(len(tokens) for _, one in pairs for tokens in one.tokens)}
    for clock in ("seconds", "cpu"):
        ones, others = ([getattr(sampled, clock) for sampled in side] for side in zip(*pairs, strict=True))
        report[clock] = {
            "ratio": frame.median_ratio(ones, others),
            "ratios": [round(a / b, 3) for a, b in zip(ones, others, strict=True)],
            "before": frame.median(ones, 4),
            "after": frame.median(others, 4),
        }
    return report | (compared(SHAPES[name], pairs) if SHAPES[name].dtype == "float32" else {})


@contextmanager
def sampler(tree: Path, name: str, threads: int) -> Iterator[Callable[[int], Sampled]]:
    """A function that samples a shape with a seed in the process of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src"), "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory(prefix="winnow-generation-") as folder:
        command = [sys.executable, __file__, "--child", name, folder]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None

        def sample(seed: int) -> Sampled:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            seconds, cpu = json.loads(process.stdout.readline())
            with np.load(Path(folder, f"{seed}.npz")) as found:
                ends = np.cumsum(found["lengths"])[:-1]
                return Sampled(seconds, cpu, np.split(found["tokens"], ends), np.split(found["logprobs"], ends))

        try:
            yield sample
        finally:
            process.stdin.close()
            process.wait()


def child(work: Work, folder: Path) -> None:
    """Read seeds, a line each; write the rollouts to a file, and the seconds and processor seconds to a line."""
    context, prompts = setting(work)
    engine = make_engine(context)
    from winnow.records import Sampling

    for line in sys.stdin:
        seed, start, used = int(line), time.perf_counter(), time.process_time()
        groups = []
        for repeat in range(work.repeats):
            request = [work.rollouts] * work.prompts, Sampling(max_new_tokens=work.tokens)
            groups += engine.generate(prompts, *request, seed=(seed, repeat))
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        arrays = {
            "tokens": np.concatenate([rollout.tokens for rollout in rollouts]),
            "logprobs": np.concatenate([rollout.logprobs for rollout in rollouts]),
        }
        np.savez(folder / f"{seed}.npz", lengths=[len(rollout.tokens) for rollout in rollouts], **arrays)
        print(json.dumps([seconds, cpu]), flush=True)


def make_engine(context: Any) -> Any:
    """The native engine of this tree; in older trees it is in another module."""
    try:
        from winnow.engines.native.engine import native
    except ImportError:
        from winnow.engines.native import native  # type: ignore[attr-defined, no-redef]

    return native(context)


def setting(work: Work) -> tuple[Any, Any]:
    """The context of the engine, and the prompts."""
    import torch
    from bundled import bundled

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    context, prompts = bundled(work.prompts, at_once=work.prompts * work.rollouts)
    if work.shape is None:
        return context, prompts
    torch.manual_seed(0)
    settings = {**context.model.config.to_dict(), **work.shape, "layer_types": None, "max_position_embeddings": 2**15}
    model = type(context.model)(type(context.model.config)(**settings)).to(getattr(torch, work.dtype))
    return replace(context, model=model.eval(), stop_tokens=()), prompts


def compared(work: Work, pairs: list[tuple[Sampled, Sampled]]) -> dict[str, Any]:
    """How many rollouts differ, the largest difference of log-probs up to there, and which differences are ties."""
    different, gap = list[tuple[int, int, int]](), 0.0  # seed, rollout, first different token
    for seed, (one, other) in enumerate(pairs, start=1):
        rollouts = zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True)
        for number, (a, b, p, q) in enumerate(rollouts):
            same = min(len(a), len(b))
            apart = np.flatnonzero(a[:same] != b[:same])
            first = int(apart[0]) if len(apart) else same
            gap = max(gap, float(np.abs(p[:first] - q[:first]).max(initial=0)))
            if len(apart) or len(a) != len(b):
                different.append((seed, number, first))
    report = {"rollouts": sum(len(one.tokens) for one, _ in pairs), "different": len(different), "largest_gap": gap}
    if different:
        margins = [margin(work, pairs[seed - 1][0].tokens[number], seed, number, at) for seed, number, at in different]
        report |= {"margins": margins, "ties": sum(found <= 2 * gap for found in margins)}
    return report


def margin(work: Work, tokens: np.ndarray, seed: int, number: int, at: int) -> float:
    """Distance of a token's random number from the nearest step of its cumulative distribution, in float64."""
    import torch

    from winnow.engines.requests import pending_rollouts
    from winnow.engines.sampling import uniforms

    context, prompts = setting(work)
    repeat, place = divmod(number, work.prompts * work.rollouts)
    rollout = pending_rollouts(prompts, [work.rollouts] * work.prompts)[place]
    uniform = uniforms((seed, repeat), [rollout], work.tokens)[0, at]
    text = np.concatenate([rollout.prompt.tokens, tokens[:at]])
    with torch.inference_mode():
        logits = context.model.double()(input_ids=torch.from_numpy(text)[None]).logits[0, -1]
    steps = logits.softmax(dim=-1).cumsum(dim=-1).numpy()
    return float(np.abs(steps - uniform).min())


if __name__ == "__main__":
    main()
