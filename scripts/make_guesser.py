#!/usr/bin/env python
"""Make a policy that plays guess-the-number badly: a warm start of the bundled policy on games of a demonstrator.

    python scripts/make_guesser.py --out src/winnow/models/bundled_guess_number

In each turn the demonstrator writes the numbers between which the secret is, `8 16</think> <answer>12</answer>`. Often
it then guesses any number from 1 to 31, and sometimes it forgets the answer's end tag. So the policy learns the rules
and the form, and reinforcement learning has to find the good guesses. Games are of the train split. Only the
demonstrator's tokens are learned. The same seed, thread count and versions give the same weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).parent))

from make_policy import END, make_tokenizer, save

from winnow.models.load import load
from winnow.seeds import generator
from winnow.tasks.dialogue import Dialogue
from winnow.tasks.guess_number import guess_number
from winnow.tasks.templates import render

MOST, TURNS = 31, 5
PEAK = 2e-3  # learning rate


@dataclass(frozen=True)
class Habits:
    """Probabilities of the demonstrator's mistakes, in each turn."""

    wander: float  # the guess is any number, and not one of the range that is left
    forget: float  # the end tag of the answer is missing


def play(secret: int, habits: Habits, rng: np.random.Generator) -> tuple[list[str], list[str], bool]:
    """A game: the demonstrator's turns, the texts between them, and whether the number was found."""
    low, high, turns, answers = 0, MOST + 1, list[str](), list[str]()  # the secret is between low and high
    for turn in range(TURNS):
        first, last = (1, MOST) if rng.random() < habits.wander else (low + 1, high - 1)
        guess, forgotten = int(rng.integers(first, last + 1)), rng.random() < habits.forget
        turns.append(f"{low} {high}</think> <answer>{guess}{'' if forgotten else '</answer>'}")
        if guess == secret and not forgotten:
            return turns, answers, True
        if turn < TURNS - 1:
            answers.append("no number" if forgotten else "higher" if guess < secret else "lower")
        if not forgotten:
            low, high = (max(low, guess), high) if guess < secret else (low, min(high, guess))
    return turns, answers, False


def rows(tokenizer: Any, habits: Habits, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (tokens, labels) of games, without end; only the demonstrator's tokens have labels."""
    games = guess_number("train", most=MOST)
    prompts = render(games, tokenizer, template="chat", max_prompt_tokens=64).prompts
    dialogue, (end,) = Dialogue.of(tokenizer), tokenizer.encode(END, add_special_tokens=False)
    while True:
        prompt = prompts[int(rng.integers(len(prompts)))]
        turns, answers, _ = play(int(prompt.answer), habits, rng)
        tokens = prompt.tokens.tolist()
        labels = [-100] * len(tokens)
        for turn, answer in zip(turns, [*answers, None], strict=True):
            own = [*tokenizer.encode(turn, add_special_tokens=False), end]
            between = [] if answer is None else dialogue.tokens(answer, last=end).tolist()
            tokens += own + between
            labels += own + [-100] * len(between)
        yield torch.tensor(tokens), torch.tensor(labels)


def warm_start(model: Any, tokenizer: Any, games: Iterator[tuple[Tensor, Tensor]], *, size: int, steps: int) -> None:
    """Supervised training on `size` games in each of `steps` steps."""
    optimizers = make_optimizers(model)
    for step in range(steps):
        batch = [next(games) for _ in range(size)]
        tokens = pad_sequence([row for row, _ in batch], batch_first=True, padding_value=tokenizer.pad_token_id)
        labels = pad_sequence([row for _, row in batch], batch_first=True, padding_value=-100)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = PEAK * min((step + 1) / 50, 1.0, 2 * (1 - step / steps))
        loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


def make_optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """As in make_policy.py, with a Muon whose small matrices cost a sixth of the time."""
    inner = {name: weight.ndim == 2 and "embed" not in name for name, weight in model.named_parameters()}
    matrices = [weight for name, weight in model.named_parameters() if inner[name]]
    others = [weight for name, weight in model.named_parameters() if not inner[name]]
    return [Muon(matrices, {"lr": PEAK}), torch.optim.AdamW(others, lr=PEAK, betas=(0.9, 0.98), weight_decay=0.0)]


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon with adjust_lr_fn="match_rms_adamw", in float32: a CPU multiplies bfloat16 slowly."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - 0.95)
                update = orthogonal(weight.grad.lerp(momentum, 0.95))  # Nesterov's momentum
                weight.add_(update, alpha=-group["lr"] * 0.2 * max(weight.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with singular values near 1, by five steps of Newton-Schulz (Jordan et al. 2024)."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide is matrix else x.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wander", type=float, default=0.6)
    parser.add_argument("--forget", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="games per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    habits = Habits(wander=arguments.wander, forget=arguments.forget)
    loaded = load("bundled", dtype="float32", device="cpu")
    games = rows(loaded.tokenizer, habits, generator("make_guesser", arguments.seed))
    warm_start(loaded.model, loaded.tokenizer, games, size=arguments.batch, steps=arguments.steps)
    save(loaded.model, make_tokenizer(), arguments.out)


if __name__ == "__main__":
    main()
