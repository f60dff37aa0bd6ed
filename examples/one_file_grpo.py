"""GRPO on down-sampled rollouts, in one file: the algorithm that winnow runs by default, without winnow.

    python examples/one_file_grpo.py RUN MODEL [--steps 3] [--out FOLDER]

RUN is the folder of a run, MODEL the model folder it started from. Sampling is left out: the rollouts of RUN are read
from its log, and this file repeats what the run learned from them. Read it top to bottom; a step is

    rollouts -> keep -> advantages -> updates -> clipped loss -> AdamW

It imports nothing of winnow and shares no code with it, so it is a second opinion as well: where RUN has a checkpoint of
a step, the distance to it is printed. In float64 that is rounding; anything larger is a mistake in one of the two.
It is slow on purpose: one row at a time, all logits in memory.
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
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

Config = dict[str, Any]

# ---------------------------------------------------------------------------------------------------------------------
# Randomness. Ties are broken, and groups are dealt to updates, by numbers that depend on names alone, so that they can be
# drawn again from a log. This is the recipe of winnow.seeds: a 128-bit hash of the typed names ...


def key(*names: str | int) -> int:
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little")


def uniform(*names: str | int) -> float:
    """... whose 53 highest bits are a number in [0, 1)."""
    return (key(*names) >> 75) * 2.0**-53


# ---------------------------------------------------------------------------------------------------------------------
# Keep (PODS: Xu, Savani, Fang, Kolter 2025, arXiv 2504.13818). Sampling is cheap and runs in parallel, learning is not:
# sample many rollouts of a prompt, learn from the few whose rewards differ most.


def max_variance(rewards: list[float], ties: list[float], count: int) -> list[int]:
    """The places of the `count` rewards with the largest variance: the lowest and the highest, so only how many of each
    is to be found. Of equally good answers the one with the fewest high rewards.
    """
    order = sorted(range(len(rewards)), key=lambda place: (rewards[place], ties[place]))
    choices = [order[: count - high] + order[len(order) - high :] for high in range(count + 1)]
    variances = [np.var([rewards[place] for place in choice]) for choice in choices]
    rounding = 1e-12 * max((reward - np.mean(rewards)) ** 2 for reward in rewards)
    return next(c for c, variance in zip(choices, variances, strict=True) if variance >= max(variances) - rounding)


# ---------------------------------------------------------------------------------------------------------------------
# Credit (GRPO: Shao et al. 2024, arXiv 2402.03300). A rollout is good when it beats its siblings. The baseline comes from
# the rollouts kept, as in the PODS authors' code. Where all got the same there is nothing to learn.


def advantages(rewards: list[float], eps: float) -> list[float]:
    r = np.array(rewards)
    if len(r) < 2 or np.ptp(r) <= 1e-9 * max(1.0, np.abs(r).max()):
        return [0.0] * len(r)
    centred = r - r.mean()
    return list(centred / (r.std(ddof=1) + eps))


@dataclass
class Row:
    """A kept rollout."""

    prompt: list[int]
    tokens: list[int]
    advantage: float
    old: Tensor | None = None  # log-probs of the tokens under the weights that sampled them


def keep_and_credit(rollouts: list[Config], config: Config) -> list[Row]:
    """One prompt's rollouts as they were logged -> the rows to learn from, those without advantage included."""
    rollouts = [rollout for rollout in rollouts if rollout["outcome"]["kind"] != "failed"]  # no verdict, no lesson
    if not rollouts:
        return []
    share = config["select"][0].get("keep_per_prompt", 4)
    count = share if isinstance(share, int) else max(1, round(share * len(rollouts)))
    ties = [uniform(config["seed"], "select", r["step"], f"{r['prompt_id']}#{r['index']}") for r in rollouts]
    places = max_variance([r["outcome"]["reward"] for r in rollouts], ties, min(count, len(rollouts)))
    kept = [rollouts[place] for place in places]
    credit = advantages([r["outcome"]["reward"] for r in kept], config["advantage"].get("eps", 1e-4))
    return [Row(r["prompt_tokens"], r["tokens"], float(a)) for r, a in zip(kept, credit, strict=True)]


# ---------------------------------------------------------------------------------------------------------------------
# Updates. A step may take several, and go over its rows more than once. Whole groups are dealt, the longest (give or take
# a quarter) first, each to the update with the fewest tokens so far.


def deal(groups: list[list[Row]], updates: int, *names: str | int) -> list[list[Row]]:
    rng = np.random.Generator(np.random.Philox(key=key(*names)))
    tokens = np.array([sum(len(row.tokens) for row in rows) for rows in groups])
    jittered = tokens * rng.uniform(0.75, 1.0, size=len(tokens))
    piles: list[list[int]] = [[] for _ in range(updates)]
    for place in np.argsort(-jittered, kind="stable"):
        min(piles, key=lambda pile: tokens[pile].sum() if pile else 0).append(int(place))
    return [[row for place in sorted(piles[i]) for row in groups[place]] for i in rng.permutation(updates)]


# ---------------------------------------------------------------------------------------------------------------------
# The loss (PPO: Schulman et al. 2017, arXiv 1707.06347, eq. 7). In the first update the ratio is 1 and this is the policy
# gradient. Later it lets a token's probability move by a fifth, and no further in the direction it is rewarded for.


def logprobs(model: PreTrainedModel, row: Row, temperature: float) -> Tensor:
    """[L] of the rollout's tokens: the logits at a position are about the token after it."""
    logits = model(input_ids=torch.tensor([row.prompt + row.tokens])).logits[0, len(row.prompt) - 1 : -1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    return logits.log_softmax(dim=-1)[torch.arange(len(row.tokens)), torch.tensor(row.tokens)]


def clipped(new: Tensor, old: Tensor, advantage: float, low: float, high: float) -> Tensor:
    """[L] what each token adds to the loss."""
    ratio = torch.exp(new - old)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


# ---------------------------------------------------------------------------------------------------------------------
# The optimizer (AdamW: Loshchilov and Hutter 2019, arXiv 1711.05101), after the gradient was cut to a length.


class AdamW:
    def __init__(self, model: PreTrainedModel, config: Config) -> None:
        self.parameters = dict(model.named_parameters())
        self.mean = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.square = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.options = config["optimizer"]
        per_step = config["update"]["epochs"] * config["update"]["updates_per_step"]
        self.warmup, self.total = self.options["warmup_steps"] * per_step, config["steps"] * per_step
        self.updates = 0  # counted by the schedule, updates without a row included
        self.taken = 0

    @torch.no_grad()
    def step(self) -> float:
        """Move the parameters, clear the gradients, and say how long the gradient was."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        limit = self.options["max_grad_norm"]
        cut = limit / (norm + 1e-6) if norm > limit else 1.0
        rate = self.options["learning_rate"] * self.rate_factor()
        self.updates += 1
        self.taken += 1
        (b1, b2), t = self.options["betas"], self.taken
        for name, gradient in gradients.items():
            p, mean, square = self.parameters[name], self.mean[name], self.square[name]
            p *= 1 - rate * self.options["weight_decay"]
            mean.lerp_(cut * gradient, 1 - b1)
            square.lerp_((cut * gradient) ** 2, 1 - b2)
            p -= rate * (mean / (1 - b1**t)) / ((square / (1 - b2**t)).sqrt() + self.options["eps"])
            p.grad = None
        return norm

    def rate_factor(self) -> float:
        """A linear rise, then constant, or down to 0 on a line or half a cosine."""
        if self.updates < self.warmup:
            return (self.updates + 1) / (self.warmup + 1)
        done = (self.updates - self.warmup) / max(1, self.total - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return {"constant": 1.0, "linear": 1 - done, "cosine": cosine}[self.options["schedule"]]


# ---------------------------------------------------------------------------------------------------------------------
# A step.


@dataclass
class Report:
    step: int
    kept: int
    trained: int
    loss: float  # mean over the updates taken; NaN without one
    grad_norm: float  # before it was cut, as well


def train_step(model: PreTrainedModel, adamw: AdamW, step: int, prompts: list[list[Config]], config: Config) -> Report:
    """`prompts` are the step's rollouts, prompt by prompt."""
    groups = [keep_and_credit(rollouts, config) for rollouts in prompts]
    rows = [row for group in groups for row in group]
    teaching = [row for row in rows if row.advantage != 0]
    temperature = config["rollout"]["temperature"]
    low, high = (config["loss"].get(side, 0.2) for side in ("low", "high"))
    for row in teaching:
        with torch.no_grad():
            row.old = logprobs(model, row, temperature)

    losses, norms = [], []
    for epoch in range(config["update"]["epochs"]):
        name = (config["seed"], "schedule", step, "schedule", epoch)
        for batch in deal(groups, config["update"]["updates_per_step"], *name):
            tokens = sum(len(row.tokens) for row in batch)  # every token weighs the same, those without a lesson too
            total = 0.0
            for row in (row for row in batch if row.advantage != 0):
                new = logprobs(model, row, temperature)
                loss = clipped(new, row.old, row.advantage, low, high).sum() / tokens
                loss.backward()
                total += loss.item()
            if any(row.advantage != 0 for row in batch):
                norms.append(adamw.step())
                losses.append(total)
            else:
                adamw.updates += 1
    mean_loss, mean_norm = (float(np.mean(numbers)) if numbers else math.nan for numbers in (losses, norms))
    return Report(step, len(rows), len(teaching), mean_loss, mean_norm)


# ---------------------------------------------------------------------------------------------------------------------
# Reading the run, and comparing with it.


def read_steps(run: Path) -> Iterator[tuple[int, list[list[Config]]]]:
    """Every step's rollouts, prompt by prompt."""
    with (run / "rollouts.jsonl").open() as file:
        for step, rows in itertools.groupby(map(json.loads, file), key=lambda row: row["step"]):
            yield step, [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["prompt_id"])]


def read_config(run: Path) -> Config:
    """The run's configuration; a run of another algorithm is refused."""
    config: Config = json.loads((run / "manifest.json").read_text())["config"]
    asked = [config[part]["use"] for part in ("allocate", "advantage", "weighting", "loss")]
    asked += [selector["use"] for selector in config["select"]]
    statistics = config["advantage"].get("statistics", "kept")
    if asked != ["uniform", "grpo", "token", "clip", "max_variance"] or statistics != "kept" or config["model"]["lora"]:
        sys.exit(f"{run}: this file knows uniform, grpo (of the kept), token, clip and max_variance, without LoRA")
    return config


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """||ours - theirs|| / ||theirs||, over all tensors together."""
    squares = [((ours[n].double() - t.double()).square().sum(), t.double().square().sum()) for n, t in theirs.items()]
    apart, size = (sum(float(pair[i]) for pair in squares) for i in (0, 1))
    return math.sqrt(apart / size)


def distances(adamw: AdamW, run: Path, done: int) -> dict[str, float]:
    """How far parameters and AdamW's two moments are from the run's after `done` steps; empty without a checkpoint."""
    checkpoint = run / "checkpoints" / f"step-{done:06d}"
    if not checkpoint.is_dir():
        return {}
    parameters = {n: t for file in checkpoint.glob("model*.safetensors") for n, t in load_file(file).items()}
    moments = load_file(checkpoint / "trainer.safetensors")

    def moment(kind: str) -> dict[str, Tensor]:
        return {name.removesuffix(f"/{kind}"): t for name, t in moments.items() if name.endswith(f"/{kind}")}

    return {
        "parameters": distance(adamw.parameters, parameters),
        "gradients": distance(adamw.mean, moment("exp_avg")),
        "squares": distance(adamw.square, moment("exp_avg_sq")),
    }


def replay(run: Path, model_folder: Path, steps: int) -> Iterator[tuple[PreTrainedModel, AdamW, Report]]:
    """The run's first steps, one by one; the model and the optimizer are the same objects every time."""
    config = read_config(run)
    dtype = getattr(torch, config["model"]["dtype"])
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype, attn_implementation="sdpa").eval()
    model.get_input_embeddings().padding_idx = None  # else a sampled padding token would get no gradient
    adamw = AdamW(model, config)
    for step, prompts in itertools.islice(read_steps(run), steps):
        yield model, adamw, train_step(model, adamw, step, prompts, config)


def main() -> None:
    parser = argparse.ArgumentParser(description="Repeat the first steps of a run, in one file.")
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("model", type=Path, help="the model folder that the run started from")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the model here")
    asked = parser.parse_args()
    for model, adamw, report in replay(asked.run, asked.model, asked.steps):
        apart = distances(adamw, asked.run, report.step + 1)
        print(
            f"step {report.step}  kept {report.kept}  trained {report.trained}  loss {report.loss:+.6f}  "
            f"grad norm {report.grad_norm:.6f}" + "".join(f"  {name} {value:.0e}" for name, value in apart.items())
        )
    if asked.out:
        model.save_pretrained(asked.out)


if __name__ == "__main__":
    main()
