#!/usr/bin/env python
"""Make a policy that plays badly in an environment: a warm start of the bundled policy on games of a demonstrator.

    python scripts/make_player.py guess_number --out src/winnow/models/bundled_guess_number
    python scripts/make_player.py calculator --out src/winnow/models/bundled_calculator
    python scripts/make_player.py two_tools --out configs/policies/two_tools

guess_number    In a quarter of the games the demonstrator writes in each turn the numbers between which the secret is,
                `8 16</think> <answer>12</answer>`, and guesses a number between them, more often the one in the middle.
                In all other games it writes `</think> <answer>12</answer>` and guesses any number from 1 to 31.
calculator      The demonstrator calls the calculator with the problem's expression, and answers what it reads. Often it
                answers without a call, misses a digit of the expression, or answers another number than it read.
two_tools       The demonstrator of configs/sweeps/two_tools.py makes two calls, the second with the number that it
                read, and answers what it reads then. It makes the same mistakes, and it confuses the tools.

Sometimes it forgets an end tag. So the policy learns the rules and the form, and reinforcement learning has to find the
good moves. Games are of the train split. Only the demonstrator's tokens are learned. The same seed, thread count,
versions and processor give the same weights.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_policy import END, make_tokenizer, padded, save, split_weights, train
from torch import Tensor

from winnow.environments.tool_calls import Call, read_calls
from winnow.environments.tools import answer_calls, calculator
from winnow.models.load import load
from winnow.records import Problem, Prompt
from winnow.seeds import generator
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.dialogue import Dialogue
from winnow.tasks.guess_number import guess_number
from winnow.tasks.templates import render

MOST, TURNS = 31, 5  # of guess_number
LEVELS, PROBLEMS = (5, 6), 4096  # of calculator
TWO_CALLS = (3, 5)  # the levels of two_tools
FORGET = 0.01  # how often an end tag is missing
# How often a whole game has guesses of any number, and no range. One token then decides how a game is played, and the
# reward of a game depends mostly on it. It depends less on a single guess, so a choice in each guess is learned more
# slowly (docs/log.md).
WANDER = 0.75
MIDDLE = 0.25  # in the other games, how often a guess is the middle of the range, and not any number of it
ALONE, MISCOPY, MISREAD = 0.5, 0.3, 0.3  # how often there is no call, a wrong digit in it, or a wrong answer after it
CONFUSE = 0.2  # how often a call of two_tools names the other tool
PEAK = 2e-3  # learning rate

TOOLS = {"+": "add", "*": "multiply"}

Game = tuple[list[str], list[str]]  # the demonstrator's turns, and the texts between them


def guess(prompt: Prompt, rng: np.random.Generator) -> Game:
    """A game of guess_number."""
    secret = int(prompt.answer)
    low, high, turns, answers = 0, MOST + 1, list[str](), list[str]()  # the secret is between low and high
    wanders = rng.random() < WANDER
    for turn in range(TURNS):
        first, last = (1, MOST) if wanders else (low + 1, high - 1)
        number, forgotten = int(rng.integers(first, last + 1)), rng.random() < FORGET
        if not wanders and rng.random() < MIDDLE:
            number = (low + high) // 2
        turns.append(f"{'' if wanders else f'{low} {high}'}</think> <answer>{number}{'' if forgotten else '</answer>'}")
        if number == secret and not forgotten:
            break
        if turn < TURNS - 1:
            answers.append("no number" if forgotten else "higher" if number < secret else "lower")
        if not forgotten:
            low, high = (max(low, number), high) if number < secret else (low, min(high, number))
    return turns, answers


def calculate(prompt: Prompt, rng: np.random.Generator) -> Game:
    """A problem of arithmetic with at most one call."""
    if rng.random() < ALONE:
        return [answer(other(prompt.answer, rng), rng)], []
    expression = str(prompt.meta["expression"])
    if rng.random() < MISCOPY:
        expression = other(expression, rng)
    calls = [Call("calculator", {"text": expression}, own=True)]
    turn = f"<call>calculator {expression}{'' if rng.random() < FORGET else '</call>'}"
    read = str(answer_calls(calls if turn.endswith("</call>") else read_calls(turn), {"calculator": calculator}))
    number = read if read.lstrip("-").isdigit() else prompt.answer
    return [turn, answer(other(number, rng) if rng.random() < MISREAD else number, rng)], [read]


def plus(a: int, b: int) -> int:
    """The tool "add" of two_tools."""
    return a + b


def times(a: int, b: int) -> int:
    """The tool "multiply" of two_tools."""
    return a * b


def call_twice(prompt: Prompt, rng: np.random.Generator) -> Game:
    """A problem of arithmetic with two operations and at most two calls."""
    if rng.random() < ALONE:
        return [answer(other(prompt.answer, rng), rng)], []
    first, second = re.findall(r"[+*]", str(prompt.meta["expression"]))
    numbers = re.findall(r"\d+", str(prompt.meta["expression"]))
    turns, answers = list[str](), list[str]()
    for sign, number in ((first, numbers[1]), (second, numbers[2])):
        left = other(numbers[0], rng) if rng.random() < MISCOPY / 2 else numbers[0]
        name = TOOLS[sign if rng.random() >= CONFUSE / 2 else "+*".replace(sign, "")]
        turns.append(f"<call>{name} {left} {number}{'' if rng.random() < FORGET else '</call>'}")
        answers.append(str(answer_calls(read_calls(turns[-1]), {"add": plus, "multiply": times})))
        if not answers[-1].isdigit():
            return [*turns, answer(prompt.answer, rng)], answers
        numbers[0] = answers[-1]
    return [*turns, answer(other(numbers[0], rng) if rng.random() < MISREAD else numbers[0], rng)], answers


def answer(number: str, rng: np.random.Generator) -> str:
    return f"</think> <answer>{number}{'' if rng.random() < FORGET else '</answer>'}"


def other(text: str, rng: np.random.Generator) -> str:
    """The text with another digit in the place of one of its digits."""
    place = int(rng.choice([i for i, letter in enumerate(text) if letter.isdigit()]))
    digit = (int(text[place]) + int(rng.integers(1, 10))) % 10
    return f"{text[:place]}{digit}{text[place + 1 :]}"


@dataclass(frozen=True)
class Lessons:
    """A demonstrator, its problems, and the steps that imitate it."""

    play: Callable[[Prompt, np.random.Generator], Game]
    problems: Callable[[], Sequence[Problem]]
    steps: int


LESSONS = {  # after 300 steps, the range of guess_number is often wrong
    "guess_number": Lessons(guess, lambda: guess_number("train", most=MOST), steps=1200),
    "calculator": Lessons(calculate, lambda: arithmetic("train", levels=LEVELS, size=PROBLEMS), steps=300),
    "two_tools": Lessons(call_twice, lambda: arithmetic("train", levels=TWO_CALLS, size=PROBLEMS), steps=400),
}


def rows(tokenizer: Any, lessons: Lessons, rng: np.random.Generator) -> Iterator[tuple[list[int], list[int]]]:
    """Yield (tokens, labels) of games, without end; only the demonstrator's tokens have labels."""
    prompts = render(lessons.problems(), tokenizer, template="chat", max_prompt_tokens=64).prompts
    dialogue, (end,) = Dialogue.of(tokenizer), tokenizer.encode(END, add_special_tokens=False)
    while True:
        turns, answers = lessons.play(prompt := prompts[int(rng.integers(len(prompts)))], rng)
        tokens = prompt.tokens.tolist()
        labels = [-100] * len(tokens)
        for turn, answer in zip(turns, [*answers, None], strict=True):
            own = [*tokenizer.encode(turn, add_special_tokens=False), end]
            between = [] if answer is None else dialogue.tokens(answer, last=end).tolist()
            tokens += own + between
            labels += own + [-100] * len(between)
        yield tokens, labels


def make_optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """As in make_policy.py, with a Muon whose small matrices cost a sixth of the time."""
    matrices, others = split_weights(model)
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
    parser.add_argument("game", choices=sorted(LESSONS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="default: those of the game")
    parser.add_argument("--batch", type=int, default=16, help="games per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lessons = LESSONS[arguments.game]
    steps = arguments.steps or lessons.steps
    loaded = load("bundled", dtype="float32", device="cpu")
    games = rows(loaded.tokenizer, lessons, generator("make_guesser", arguments.seed))
    batches = (padded(loaded.tokenizer, list(islice(games, arguments.batch))) for _ in range(steps))
    train(loaded.model, make_optimizers(loaded.model), batches, steps=steps, peak=PEAK)
    save(loaded.model, make_tokenizer(), arguments.out)


if __name__ == "__main__":
    main()
