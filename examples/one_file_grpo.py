"""GRPO on down-sampled rollouts, in one file: winnow's default algorithm, without winnow.

    python examples/one_file_grpo.py RUN MODEL [--steps 3] [--out FOLDER]

RUN is the folder of a run, MODEL the model folder from which it started. There is no sampling: the rollouts are read
from the log of RUN, and this file repeats the updates of the run. Read it from top to bottom; a step is

    rollouts -> 1 keep -> 2 advantages -> 3 updates -> 4 clipped loss -> 5 AdamW

It shares no code with winnow, so it is also a check of winnow: where RUN has a checkpoint of a step, the distance to it
is printed. In float64 that is rounding; a larger distance is a mistake in one of the two. The code is simple and slow:
it processes one row at a time, with all of its logits in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

Config = dict[str, Any]
Tensors = dict[str, Tensor]


def key(*names: str | int) -> int:
    """winnow.seeds.derive: random numbers are hashes of names, so they can be drawn again for a log."""
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little")


def uniform(*names: str | int) -> float:
    """winnow.seeds.uniform: the 53 highest bits of the hash, as a number in [0, 1)."""
    return (key(*names) >> 75) * 2.0**-53


# 1. Keep. Sampling is cheap and parallel, updates are not: sample many rollouts of a prompt, and train on the few whose
# rewards differ most (PODS: Xu, Savani, Fang, Kolter 2025, arXiv 2504.13818).


def max_variance(rewards: list[float], ties: list[float], count: int) -> list[int]:
    """Places of the `count` rewards with the largest variance. These are the lowest and the highest ones, so only their
    numbers are searched. Of equally good choices, the one with the fewest high rewards is taken.
    """
    order = sorted(range(len(rewards)), key=lambda place: (rewards[place], ties[place]))
    choices = [order[: count - high] + order[len(order) - high :] for high in range(count + 1)]
    variances = [np.var([rewards[place] for place in choice]) for choice in choices]
    rounding = 1e-12 * max((reward - np.mean(rewards)) ** 2 for reward in rewards)
    return sorted(choices[int(np.argmax(np.array(variances) >= max(variances) - rounding))])


# 2. Advantages. A rollout is compared with the other kept rollouts of its prompt (GRPO: Shao et al. 2024,
# arXiv 2402.03300), as in the code of PODS. Where all rewards are equal, all advantages are 0.


def advantages(rewards: list[float], eps: float) -> list[float]:
    r = np.array(rewards)
    if len(r) < 2 or np.ptp(r) <= 1e-9 * max(1.0, np.abs(r).max()):
        return [0.0] * len(r)
    return [float(a) for a in (r - r.mean()) / (r.std(ddof=1) + eps)]


@dataclass
class Row:
    """A kept rollout."""

    prompt: list[int]
    tokens: list[int]
    advantage: float
    old: Tensor | None = None  # log-probs of the tokens under the weights that sampled them


def rows_of(rollouts: list[Config], config: Config) -> list[Row]:
    """One prompt's rollouts, as logged -> the kept ones with their advantages; those without a verdict are dropped."""
    rollouts = [r for r in rollouts if r["kind"] != "failed"]
    if not rollouts:
        return []
    rewards = [r["reward"] for r in rollouts]
    ties = [uniform(config["seed"], "select", r["step"], f"{r['prompt_id']}#{r['index']}") for r in rollouts]
    share = config["select"][0].get("keep_per_prompt", 4)  # a count, or a share of the rollouts
    count = share if isinstance(share, int) else max(1, round(share * len(rollouts)))
    kept = max_variance(rewards, ties, min(count, len(rollouts)))
    credit = advantages([rewards[place] for place in kept], config["advantage"].get("eps", 1e-4))
    return [Row(rollouts[i]["prompt_tokens"], rollouts[i]["tokens"], a) for i, a in zip(kept, credit, strict=True)]


# 3. Updates. A step may have several updates and epochs. Whole groups are assigned: the longest (with a random factor
# of 0.75 to 1) first, each to the update that has the fewest tokens so far.


def deal(groups: list[list[Row]], updates: int, *names: str | int) -> list[list[Row]]:
    rng = np.random.Generator(np.random.Philox(key=key(*names)))
    tokens = np.array([sum(len(row.tokens) for row in rows) for rows in groups])
    longest_first = np.argsort(-tokens * rng.uniform(0.75, 1.0, size=len(tokens)), kind="stable")
    piles: list[list[int]] = [[] for _ in range(updates)]
    for place in longest_first:
        min(piles, key=lambda pile: sum(tokens[pile])).append(int(place))
    return [[row for place in sorted(piles[i]) for row in groups[place]] for i in rng.permutation(updates)]


# 4. The clipped loss (PPO: Schulman et al. 2017, arXiv 1707.06347, eq. 7). In a step's first update the ratio is 1, and
# this is the policy gradient. Later, a token whose ratio has moved far in the rewarded direction has no gradient.


def logprobs(model: Any, row: Row, temperature: float) -> Tensor:
    """[L] log-probs of the rollout's tokens. The logits at a position predict the next token."""
    logits = model(input_ids=torch.tensor([row.prompt + row.tokens])).logits[0, len(row.prompt) - 1 : -1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    every: Tensor = logits.log_softmax(dim=-1)
    return every[torch.arange(len(row.tokens)), torch.tensor(row.tokens)]


def clipped(new: Tensor, old: Tensor, advantage: float, clip_low: float = 0.2, clip_high: float = 0.2) -> Tensor:
    """[L] each token's loss."""
    ratio = torch.exp(new - old)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)


# 5. AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), after the gradient was clipped to a norm.


class AdamW:
    def __init__(self, model: Any, config: Config) -> None:
        self.parameters: Tensors = dict(model.named_parameters())
        self.mean = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.square = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.options = config["optimizer"]
        per_step = config["update"]["epochs"] * config["update"]["updates_per_step"]
        self.warmup, self.total = self.options["warmup_steps"] * per_step, config["steps"] * per_step
        self.updates = self.skipped = 0

    @torch.no_grad()
    def step(self) -> float:
        """Update the parameters, clear the gradients, and return the gradient's norm before clipping."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        limit, rate = self.options["max_grad_norm"], self.options["learning_rate"] * self.rate_factor()
        self.updates += 1
        (b1, b2), t = self.options["betas"], self.updates - self.skipped
        for name, gradient in gradients.items():
            p, mean, square = self.parameters[name], self.mean[name], self.square[name]
            if norm > limit:
                gradient *= limit / (norm + 1e-6)
            mean += (1 - b1) * (gradient - mean)
            square += (1 - b2) * (gradient**2 - square)
            p *= 1 - rate * self.options["weight_decay"]
            p -= rate * (mean / (1 - b1**t)) / ((square / (1 - b2**t)).sqrt() + self.options["eps"])
            p.grad = None
        return norm

    def skip(self) -> None:
        """An update without rows: only the schedule advances."""
        self.updates += 1
        self.skipped += 1

    def rate_factor(self) -> float:
        """A linear rise, then constant, or falling to 0 linearly or along half a cosine."""
        if self.updates < self.warmup:
            return float((self.updates + 1) / (self.warmup + 1))
        done = (self.updates - self.warmup) / max(1, self.total - self.warmup)
        falling = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return float(falling[self.options["schedule"]])


@dataclass
class Report:
    """A step in numbers. Loss and gradient norm (before clipping) are means over its updates, NaN without one."""

    step: int
    kept: int
    trained: int
    loss: float
    grad_norm: float


def train_step(model: Any, adamw: AdamW, step: int, prompts: list[list[Config]], config: Config) -> Report:
    """All of the above, once. `prompts` are the step's rollouts, prompt by prompt."""
    temperature, update = config["rollout"]["temperature"], config["update"]
    bounds = {side: bound for side, bound in config["loss"].items() if side in ("clip_low", "clip_high")}
    groups = [rows_of(rollouts, config) for rollouts in prompts]
    trained = [row for rows in groups for row in rows if row.advantage != 0]
    for row in trained:
        with torch.no_grad():
            row.old = logprobs(model, row, temperature)

    # Every token has the same weight, in any update; rows of advantage 0 are counted, too.
    tokens = sum(len(row.tokens) for rows in groups for row in rows) / update["updates_per_step"]
    losses, norms = [], []
    for epoch in range(update["epochs"]):
        names = (config["seed"], "schedule", step, "schedule", epoch)
        for rows in deal(groups, update["updates_per_step"], *names):
            if all(row.advantage == 0 for row in rows):
                adamw.skip()
                continue
            losses.append(0.0)
            for row in rows:
                if row.old is not None:
                    new = logprobs(model, row, temperature)
                    loss: Any = clipped(new, row.old, row.advantage, **bounds).sum() / tokens
                    loss.backward()
                    losses[-1] += loss.item()
            norms.append(adamw.step())
    mean_loss, mean_norm = (float(np.mean(numbers)) if numbers else math.nan for numbers in (losses, norms))
    return Report(step, sum(map(len, groups)), len(trained), mean_loss, mean_norm)


# The rest of the file reads the run and compares the results.


def read_config(run: Path) -> Config:
    """The run's configuration; exits for one of another algorithm."""
    config: Config = json.loads((run / "manifest.json").read_text())["config"]
    members = [config[part] for part in ("allocate", "advantage", "weighting", "loss")] + config["select"]
    ours = ["uniform", "grpo", "token", "clip", "max_variance"]
    rollout = config["rollout"]
    more = [
        config["model"]["lora"],
        config.get("terms"),
        config["correction"]["use"] != "none",
        config["correction"]["old"] != "policy",
        rollout.get("dynamic_sampling_rounds"),
        config["loss"].get("dual"),
        config["select"][0].get("chunk") or config["advantage"].get("chunk"),
        config["update"].get("max_trained_tokens"),
        config.get("environment"),
        config.get("critic"),
        config["cut"]["use"] != "none",
        config["plan"]["use"] != "fixed",
        config["log"] != {"rollouts": "all", "every": 1},
        config["model"]["dtype"] == "bfloat16",  # its updates are of float32 masters
        config["optimizer"]["moments"] != "float32",
    ]
    whole_group = config["advantage"].get("statistics", "kept") != "kept"
    if [member["use"] for member in members] != ours or whole_group or any(more):
        sys.exit(f"{run}: this file implements only {', '.join(ours)}, with the statistics of the kept rollouts")
    return config


def read_steps(run: Path) -> Iterator[tuple[int, list[list[Config]]]]:
    """Every step's rollouts, prompt by prompt."""
    columns = ["step", "prompt_id", "index", "prompt_tokens", "tokens", "kind", "reward"]
    for file in sorted((run / "rollouts").glob("step-*.parquet")):
        rows = pq.read_table(file, columns=columns).to_pylist()
        yield rows[0]["step"], [list(of_one) for _, of_one in itertools.groupby(rows, key=lambda row: row["prompt_id"])]


def distance(ours: Tensors, theirs: Tensors) -> float:
    """||ours - theirs|| / ||theirs||, over all of our tensors together."""
    difference = sum((ours[name].detach().double() - theirs[name].double()).square().sum().item() for name in ours)
    return math.sqrt(difference / sum(theirs[name].double().square().sum().item() for name in ours))


def distances(adamw: AdamW, checkpoint: Path) -> dict[str, float]:
    """From the checkpoint's parameters, and from its running means of gradients and their squares."""
    parameters = {name: t for file in checkpoint.glob("model*.safetensors") for name, t in load_file(file).items()}
    trainer = load_file(checkpoint / "trainer.tensors")
    return {
        "parameters": distance(adamw.parameters, parameters),
        "gradients": distance({f"{name}/exp_avg": t for name, t in adamw.mean.items()}, trainer),
        "squares": distance({f"{name}/exp_avg_sq": t for name, t in adamw.square.items()}, trainer),
    }


def replay(run: Path, folder: Path, steps: int, out: Path | None = None) -> Iterator[tuple[Report, dict[str, float]]]:
    """The run's first steps, from the model in `folder`, each with its distances from the run's own checkpoint."""
    config = read_config(run)
    dtype = getattr(torch, config["model"]["dtype"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    model.get_input_embeddings().padding_idx = None  # else the embedding of a sampled padding token has no gradient
    adamw = AdamW(model, config)
    for step, prompts in itertools.islice(read_steps(run), steps):
        report = train_step(model, adamw, step, prompts, config)
        checkpoint = run / "checkpoints" / f"step-{step + 1:06d}"
        yield report, distances(adamw, checkpoint) if checkpoint.is_dir() else {}
    if out is not None:
        model.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Repeat the first steps of a run, in one file.")
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("model", type=Path, help="the model folder that the run started from")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the model here")
    options = parser.parse_args()
    for report, errors in replay(options.run, options.model, options.steps, options.out):
        print(f"step {report.step}  kept {report.kept}  trained {report.trained}", end="  ")
        print(f"loss {report.loss:+.6f}  grad norm {report.grad_norm:.6f}", end="  ")
        print(*(f"{name} off by {value:.0e}" for name, value in errors.items()), sep="  ")


if __name__ == "__main__":
    main()
