"""Seconds of training until a held-out accuracy: TRL and winnow on the published model, one after the other.

    python benchmarks/trl_race.py --folder FOLDER --seeds 0 1 2    finished runs are not repeated

Task, prompts, their order, reward, rate, AdamW and evaluation are those of the recipe smollm2_arithmetic on both sides;
TRL's weights are evaluated by winnow's engine and reward. The clock runs during training steps alone. REGISTERED says
what is compared. Needs TRL, and a machine without other work. Writes benchmarks/results/<date>_trl_race.json.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
from trl_peer import Peer
from trl_sides import Measured, Setting
from trl_winnow import first_prompts

from winnow.config_file import load
from winnow.core.evaluation import evaluate
from winnow.core.plan import plan
from winnow.core.run import Run, evaluation_sampling
from winnow.core.step import train_step
from winnow.engines.base import evaluating
from winnow.recipes import recipe_paths
from winnow.records import Group, Prompt, Rollout
from winnow.training.build import build
from winnow.training.resolve import resolve_members

REGISTERED = """
Written before any run that counts. Five arms: TRL with n = m = 16 in float32 and in bfloat16 (weights and moments),
winnow with n = m = 16 in float32, PODS 16 -> 4 in float32, and PODS 16 -> 4 in bfloat16 without masters and with
stochastic rounding. All at 1e-5, the rate of the recipe, for which no arm was tuned. Seeds 0, 1 and 2, their arms back
to back and in rotated order. Every sequence counts alike in the loss, and TRL's micro-batch is the faster of 16 and 32.
Accuracy: 128 held-out problems x 4 rollouts, before training and after every fifth step. A run ends with an accuracy of
50%, or after 40 steps. Measure: seconds of training before the first of 30% and of 50%.
"""
PODS, ROUNDED = "select={use='max_variance', keep_per_prompt=4}", "optimizer.stochastic_rounding=true"
ARMS = {
    "trl, n = m, float32": ("float32", "select='all'"),
    "trl, n = m, bfloat16": ("bfloat16", "select='all'"),
    "winnow, n = m, float32": ("float32", "select='all'"),
    "winnow, PODS, float32": ("float32", PODS),
    "winnow, PODS, bfloat16": ("bfloat16", PODS, "optimizer.master_weights=false", ROUNDED),
}
LEVELS = (0.3, 0.5)
MICRO_BATCHES = {"float32": 16, "bfloat16": 32}  # TRL's faster ones, of the results trl_1_16_0_published_*
Curve = list[tuple[int, float, float]]  # steps, seconds of training, and accuracy, at each evaluation


def main() -> None:
    parser = frame.parser(__doc__, threads=2, steps=40, every=5, prompts=16, problems=128)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arm", choices=list(ARMS), help="run one arm with the first seed in this process")
    options = frame.parse(parser)
    if options.arm:
        origin = {"commit": os.environ.get(frame.COMMIT), "cpu": frame.cpu()}  # other runs may have others
        text = json.dumps(origin | {"curve": run(options.arm, options.seeds[0], options)})
        _file(options, options.arm, options.seeds[0]).write_text(text)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for place in range(len(ARMS)):
            arm = list(ARMS)[(place + seed) % len(ARMS)]
            if not _file(options, arm, seed).exists():
                own = ["--arm", arm, "--seeds", str(seed), "--folder", str(options.folder)]
                subprocess.run([sys.executable, __file__, *sys.argv[1:], *own], check=True)
    runs = {arm: {seed: json.loads(_file(options, arm, seed).read_text()) for seed in options.seeds} for arm in ARMS}
    seconds = {
        f"{arm}: {level}": [next((at for _, at, right in one["curve"] if right >= level), None) for one in of.values()]
        for arm, of in runs.items()
        for level in LEVELS
    }
    report = {"registered": REGISTERED.strip().splitlines(), "seconds to a level": seconds, "runs": runs}
    del options.folder, options.arm
    frame.finish("trl_race", report, options, packages=(*frame.PACKAGES, "trl"), show=("seconds to a level",))


def _file(options: Any, arm: str, seed: int) -> Path:
    return Path(options.folder, f"{arm.replace(', ', '_').replace(' = ', '')}_{seed}.json")


def run(arm: str, seed: int, options: Any) -> Curve:
    """One run of an arm, in this process."""
    dtype, *keys = ARMS[arm]
    keys += [f"seed={seed}", f"model.dtype={dtype}", "verify.workers=0", "weighting='sequence'"]
    keys += [f"evaluate.problems={options.problems}", f"rollout.prompts_per_step={options.prompts}"]
    config = load(recipe_paths()["smollm2_arithmetic"], keys)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    built = build(resolve_members(config, folder), folder=folder, device=torch.device("cpu"))
    curve = [(0, 0.0, accuracy(built.run))]
    step, spent = 0, 0.0

    def after(seconds: float) -> bool:
        """Count a step, and evaluate after every few. Returns whether the run goes on."""
        nonlocal step, spent
        step, spent = step + 1, spent + seconds
        if step % options.every == 0:
            curve.append((step, round(spent, 2), accuracy(built.run)))
            print(arm, seed, *curve[-1], flush=True)
        return step < options.steps and curve[-1][2] < LEVELS[-1]

    if arm.startswith("trl"):
        _train_trl(built.run, options, after, folder)
    else:
        going = True
        while going:
            begin = time.perf_counter()
            plan(built.run, built.progress, step)
            train_step(built.run, built.progress, step)
            going = after(time.perf_counter() - begin)
    built.close()
    shutil.rmtree(folder)
    return curve


def accuracy(run: Run) -> float:
    """The share of held-out rollouts that are right, with the engine's weights."""
    with evaluating(run.engine):
        found = evaluate(
            run.engine, run.verifiers, run.held_out[None], evaluation_sampling(run.config),
            rollouts_per_prompt=4, greedy=False, seed=(run.seed, "evaluate"),
        )  # fmt: skip
    return found.metrics["eval/accuracy_sampled"]


def _train_trl(run: Run, options: Any, after: Callable[[float], bool], folder: Path) -> None:
    """TRL's loop on the prompts that the run would draw; the run's policy gets TRL's weights before `after`."""
    config, drawn = run.config, first_prompts(run, options.steps)
    setting = Setting(
        model=config.model.path, dtype=config.model.dtype, prompts=config.rollout.prompts_per_step, rollouts=16,
        max_new_tokens=config.rollout.max_new_tokens, learning_rate=config.optimizer.learning_rate,
    )  # fmt: skip

    def reward(completion_ids: list[list[int]], row: list[int], **columns: Any) -> list[float]:
        groups = [_judgeable(drawn[place], tokens, peer) for place, tokens in zip(row, completion_ids, strict=True)]
        for group in groups:
            run.verifiers.submit(group.prompt, group.rollouts[0])
        return [group.outcomes[0].reward for group in run.verifiers.collect(groups)]

    def measured(step: Measured) -> bool:
        trained = dict(peer.trainer.model.named_parameters())
        for name, weight in run.learner.weights().items():
            weight.data.copy_(trained[name])  # the native engine reads the weights of the run's policy
        return after(step.seconds)

    peer = Peer(setting, drawn, folder, micro_batch=min(MICRO_BATCHES[setting.dtype], setting.total), reward=reward)
    torch.manual_seed(run.seed)  # TRL's own seed is 0 in every run
    peer.run(measured)


def _judgeable(prompt: Prompt, tokens: list[int], peer: Peer) -> Group:
    tokenizer = peer.trainer.processing_class
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    finish = "stop" if tokens[-1] == tokenizer.eos_token_id else "length"
    one = Rollout(index=0, tokens=np.array(tokens), logprobs=np.zeros(len(tokens)), version=0, text=text, finish=finish)
    return Group(prompt=prompt, rollouts=(one,))


if __name__ == "__main__":
    main()
