#!/usr/bin/env python
"""Make a policy of 2.6M parameters for examples/word_problems.py: a new tokenizer, and a warm start.

    python scripts/make_word_policy.py --out configs/policies/words_qwen2

The careful demonstrator solves a problem in one or two steps. The imperfect one guesses, uses the wrong operation, uses
an irrelevant number, or miscalculates. The policy imitates the mixture, like that of make_policy.py. Only texts of the
train split are used.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "examples"), str(Path(__file__).parent)]

from make_policy import END, make_tokenizer, save, slip, warm_start  # noqa: E402
from word_problems import OPERATIONS, Story, story  # noqa: E402

from winnow.models.architecture import architecture  # noqa: E402
from winnow.seeds import generator  # noqa: E402
from winnow.tasks.problems import split_of  # noqa: E402

SHAPE = {"hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "intermediate": 512}
CONTEXT = 512
VOCABULARY = 640
CAREFUL, MIXED = 1500, 250  # steps
GUESS, SLIP, WRONG = 0.45, 0.08, 0.3  # how often the work is skipped, a result is off, an operation is wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32, help="demonstrations per step")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = itertools.islice(stories(generator("make_word_policy", arguments.seed, "tokenizer")), 3000)
    tokenizer = make_tokenizer("\n".join(re.sub(r"\d", "", one.question) for one in texts), VOCABULARY)
    model = architecture("qwen2", tokenizer, context=CONTEXT, seed=arguments.seed, **SHAPE)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    size = arguments.batch
    warm_start(model, tokenizer, course(arguments.seed, size), size=size, steps=CAREFUL + MIXED, peak=1.5e-3)
    save(model, tokenizer, arguments.out)


def course(seed: int, size: int) -> Iterator[tuple[str, str]]:
    """Train on careful demonstrations, then on imperfect ones."""
    for careful, steps in (True, CAREFUL), (False, MIXED):
        rng = generator("make_word_policy", seed, "careful" if careful else "mixed")
        for one in itertools.islice(stories(rng), steps * size):
            yield one.question, demonstrate(one, rng, careful=careful)


def stories(rng: np.random.Generator) -> Iterator[Story]:
    """Yield problems of the train split, without end."""
    while True:
        if split_of((one := story(rng)).question) == "train":
            yield one


def demonstrate(one: Story, rng: np.random.Generator, *, careful: bool) -> str:
    """One answer, which follows the opening think tag."""
    steps, answer = (list(one.steps), one.answer) if careful else work(one, rng)
    if not careful and rng.random() < GUESS:
        steps, answer = [], max(0, one.answer + int(rng.integers(-9, 10)))
    return f"{' '.join(steps)}</think> <answer>{answer}</answer>{END}"


def work(one: Story, rng: np.random.Generator) -> tuple[list[str], int]:
    """The steps of a careless demonstrator; a later step uses the result of an earlier one."""
    numbers = [int(number) for number in re.findall(r"\d+", one.question)]
    done, results = list[str](), dict[int, int]()
    value = 0
    for text in one.steps:
        left, sign, right, right_result = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", text).groups()  # type: ignore[union-attr]
        a, b = (results.get(int(number), int(number)) for number in (left, right))
        if rng.random() < WRONG:
            sign = "+-*"[int(rng.integers(3))]
        elif rng.random() < WRONG / 2:
            b = numbers[int(rng.integers(len(numbers)))]
        value = slip(max(0, OPERATIONS[sign](a, b)), SLIP, rng)
        done.append(f"{a}{sign}{b}={value}")
        results[int(right_result)] = value
    return done, value


if __name__ == "__main__":
    main()
