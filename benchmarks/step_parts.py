"""Seconds of sampling and of an update, part by part, in float32 and bfloat16, against the time of their products.

    python benchmarks/step_parts.py --model FOLDER                 both, 2 threads
    python benchmarks/step_parts.py --model FOLDER --only update   or sampling
    python benchmarks/step_parts.py --model FOLDER --before TREE   also of another tree, in turns

Prompts and completions have random tokens. Sampling draws --rollouts of each prompt, and an update trains --keep of
them, all of full length. Both are repeated for --rounds, in a process for each precision (and tree), in turns, so that
a busy machine slows all of them. The result is the least of the rounds, in seconds. A further round is profiled by
torch's profiler, which slows many small operations: its shares of the seconds are in "parts". The products' floor is
the time of aten::mm and oneDNN's linear in it.

Writes benchmarks/results/<date>_step_parts.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import frame

PARTS = {  # operations of torch by part; the rest is "other"
    "products": ("aten::mm", "aten::addmm", "mkldnn::_linear_pointwise", "aten::linear"),
    "attention": ("_scaled_dot_product", "aten::bmm", "aten::_softmax", "_Attend", "_Short", "index_select"),
    "output layer and tokens": ("log_softmax", "_Logprobs", "_InChunks", "aten::exp", "aten::sub", "aten::amax"),
    "optimizer": ("_fused_adamw", "aten::linalg_vector_norm", "aten::mul_", "AccumulateGrad"),
    "packed weights": ("_reorder_linear_weight",),
    "copies and fills": ("aten::copy_", "aten::fill_", "aten::cat"),
    "elementwise": ("aten::mul", "aten::add", "aten::silu", "aten::pow", "aten::neg", "aten::sum", "aten::mean"),
}
WHAT = ("sampling", "update")


def main() -> None:
    made = frame.parser(__doc__, rounds=4, prompts=16, rollouts=16, keep=4, prompt_tokens=30, tokens=16, threads=2)
    made.add_argument("--model", default="bundled")
    made.add_argument("--only", choices=WHAT)
    made.add_argument("--before", type=Path, help="the src folder of another tree")
    made.add_argument("--tokens-per-micro-batch", type=int, default=2048)
    made.add_argument("--serve", help=argparse.SUPPRESS)
    options = frame.parse(made)
    if options.serve:
        serve(options)
        return
    trees = {"": None} if options.before is None else {"before, ": options.before, "": None}
    servers = {
        f"{name}{dtype}": start(dtype, tree) for name, tree in trees.items() for dtype in ("float32", "bfloat16")
    }
    asked = [options.only] if options.only else WHAT
    report: dict[str, Any] = {}
    for what in asked:
        seconds: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for number in range(options.rounds + 1):  # the first is the warm-up
            for name, server in servers.items():
                found = ask(server, {"what": what, "seed": number, "profile": False})
                seconds[name] += [found] if number else []
        least = {n: {k: round(min(f[k] for f in of), 3) for k in of[0]} for n, of in seconds.items()}
        parts = {n: ask(s, {"what": what, "seed": 0, "profile": True}) for n, s in servers.items()}
        report[what] = {name: {**least[name], "parts": parts[name]} for name in servers}
        base = least.get("before, float32", least["float32"])["all"]
        report[what]["times as fast as float32"] = {n: round(base / of["all"], 2) for n, of in least.items()}
    for server in servers.values():
        server.kill()
    options.before = options.before and "another tree"
    del options.serve
    frame.finish("step_parts", report, options)


def start(dtype: str, tree: Path | None) -> subprocess.Popen[str]:
    """A process that measures in one precision."""
    environment = {**os.environ, **({} if tree is None else {"PYTHONPATH": str(tree)})}
    command = [sys.executable, __file__, *sys.argv[1:], "--serve", dtype]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def ask(server: subprocess.Popen[str], question: dict[str, Any]) -> dict[str, float]:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(question) + "\n")
    server.stdin.flush()
    while line := server.stdout.readline():
        if line.startswith("{"):
            found: dict[str, float] = json.loads(line)
            return found
    raise SystemExit("a measuring process has ended; its error is above")


def serve(options: argparse.Namespace) -> None:
    """Answer questions until the end of input."""
    from torch.profiler import ProfilerActivity, profile

    measured = Measured(options)
    for line in sys.stdin:
        question = json.loads(line)
        work = getattr(measured, question["what"])
        if not question["profile"]:
            print(json.dumps(work(question["seed"])), flush=True)
            continue
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            work(question["seed"])
        print(json.dumps(shares(profiled)), flush=True)


def shares(profiled: Any) -> dict[str, float]:
    """The share of each part in the time of all operations."""
    found: Counter[str] = Counter()
    for event in profiled.key_averages():
        part = next((p for p, names in PARTS.items() if any(name in event.key for name in names)), "other")
        if event.key in PARTS["optimizer"]:  # "aten::mul_" is no "aten::mul"
            part = "optimizer"
        found[part] += event.self_cpu_time_total
    return {part: round(time_of / found.total(), 3) for part, time_of in found.most_common()}


class Measured:
    """A model in one precision with its engine and its learner."""

    def __init__(self, options: argparse.Namespace) -> None:
        import numpy as np

        from winnow.config_file import load
        from winnow.learner.learner import make_learner
        from winnow.models.load import load as load_model
        from winnow.recipes import recipe_paths
        from winnow.records import Prompt

        place = "winnow.training.resolve"
        if importlib.util.find_spec(place) is None:  # a tree of before 2026-11-28
            place = "winnow.training.setup.resolve"
        resolve_members = importlib.import_module(place).resolve_members
        keys = (
            f"model.path={options.model}",
            f"model.dtype={options.serve}",
            f"rollout.max_new_tokens={options.tokens}",
        )
        micro = f"update.tokens_per_micro_batch={options.tokens_per_micro_batch}"
        config = load(recipe_paths()["arithmetic"], [*keys, micro])
        self.options = options
        self.loaded = load_model(options.model, dtype=options.serve, masters=options.serve == "bfloat16")
        self.learner = make_learner(config, self.loaded, needs=(), resumed=False)
        self.members = resolve_members(config, Path())
        self.vocabulary = self.loaded.model.config.vocab_size
        rng = np.random.default_rng(0)
        tokens = rng.integers(self.vocabulary, size=(options.prompts, options.prompt_tokens))
        self.prompts = [Prompt(id=str(i), tokens=t, text="", answer=None, task="") for i, t in enumerate(tokens)]

    def sampling(self, seed: int) -> dict[str, float]:
        """Seconds of a request; rollouts end only at full length."""
        from winnow.engines.base import EngineContext
        from winnow.engines.native.sampler import Native
        from winnow.records import Sampling

        context = EngineContext(
            model=self.loaded.model, tokenizer=self.loaded.tokenizer, stop_tokens=(), max_rollouts_at_once=512
        )
        engine, counts = Native(context), [self.options.rollouts] * len(self.prompts)
        begin = time.perf_counter()
        engine.generate(self.prompts, counts, Sampling(max_new_tokens=self.options.tokens), seed=(seed,))
        return {"all": time.perf_counter() - begin}

    def update(self, seed: int) -> dict[str, float]:
        """Seconds of the parts of an update of kept rollouts with random tokens."""
        from winnow.records import Batch

        batch, spent = Batch(epoch=0, sequences=tuple(self.sequences(seed))), Counter[str]()
        begin = time.perf_counter()
        for mb in self.learner.micro_batches(batch):
            at = time.perf_counter()
            out = self.learner.forward(mb, self.members.needs)
            objective = self.members.objective(out, mb)
            spent["forward"] += (now := time.perf_counter()) - at
            self.learner.backward(objective.total)
            spent["backward"] += time.perf_counter() - now
        at = time.perf_counter()
        self.learner.step()
        end = time.perf_counter()
        return {**spent, "optimizer": end - at, "all": end - begin}

    def sequences(self, seed: int) -> Any:
        import numpy as np

        from winnow.records import Rollout, TrainingSequence

        rng, length = np.random.default_rng(seed), self.options.tokens
        for place, prompt in enumerate(self.prompts):
            for index in range(self.options.keep):
                rollout = Rollout(
                    index=index,
                    tokens=rng.integers(self.vocabulary, size=length),
                    logprobs=np.full(length, -1.0),
                    text="",
                    finish="length",
                    version=0,
                )
                advantage = float(rng.choice((-1.0, 1.0)))
                weight = 1 / (len(self.prompts) * self.options.keep * length)
                yield TrainingSequence(prompt=prompt, rollout=rollout, group=place, advantage=advantage, weight=weight)


if __name__ == "__main__":
    main()
