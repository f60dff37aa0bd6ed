#!/usr/bin/env python
"""Make the tiny policy: a tokenizer, a random model, and a warm start on imperfect demonstrations.

    python scripts/make_policy.py --out src/winnow/models/bundled            # the one in the package
    python scripts/make_policy.py --arch llama --out tiny_llama
    python scripts/make_policy.py --lessons harder --out configs/policies/harder_qwen2
    python scripts/make_policy.py --lessons mixture --out configs/policies/mixture_qwen2

The demonstrator either guesses or works column by column, and then often forgets the carry or makes a slip. The policy
imitates the mixture: it can produce right answers, but rarely does, which leaves room for reinforcement learning. Only
problems of the train split are used. The same seed, thread count, versions and processor give the same weights. It was
run with torch 2.13 and transformers 5.23.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from winnow.models.architecture import CONFIGS, architecture
from winnow.seeds import generator
from winnow.tasks.arithmetic import LEVELS, split_of

PAD, END, ROLES = "<|pad|>", "<|endoftext|>", ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
VOCABULARY = 512
CONTEXT = 2048
BRACKET = re.compile(r"(?:\((.*)\))?(.*)")
PEAK = 3e-3  # learning rate

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message.role) }}"
    "{% endif %}"
    "{{ '<|' + message.role + '|>' + message.content + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"
)

WORDS = """What is the sum of these numbers? What is the difference? What is the product? Compute the value. Answer
with an integer. How many are there in total? How much does it cost? How much money does she have left? How many more
does he need? How long will it take? Each of the children has some of the apples. There are boxes of pencils in the
school. Every day of the week the farmer sells eggs at the market for a few dollars. He buys a shirt for the price of
one dollar and gives half of the rest to his friends. She reads pages of a book every night, and her brother reads twice
as many. They drive miles per hour for three hours. If the students pay for the tickets, how many tickets can they buy?
The first train was late by ten minutes, the second by twenty. After that, they were given another number of them.
Solve the problem step by step. Let us think about it and then give the final answer. The answer is inside the tags.
A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant first
thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning process is
enclosed within the think tags and the answer is enclosed within the answer tags, respectively, i.e., reasoning process
here, answer here. User: Assistant: You are a helpful assistant. Please reason and put your final answer in a box.
"""


@dataclass(frozen=True)
class Habits:
    """Probabilities of a demonstrator's mistakes."""

    guess: float  # how often the work is skipped and the answer missed by up to 9
    slip: float  # how often the result of one column is off by one or two
    remember: Mapping[str, float]  # how often a carry (or borrow) is used, by operator


CAREFUL = Habits(guess=0.0, slip=0.0, remember={"+": 1.0, "-": 1.0, "*": 1.0})
MIXED = Habits(guess=0.42, slip=0.06, remember={"+": 0.6, "-": 0.35, "*": 0.35})


@dataclass(frozen=True)
class Lessons:
    """The demonstrations: levels of the arithmetic task, repeated by their weight, and the demonstrator's mistakes."""

    levels: Sequence[int]
    habits: Habits
    careful: int = 2400  # steps on careful demonstrations
    mixed: int = 600  # steps on imperfect ones, after that
    mastered: Sequence[int] = ()  # levels without mistakes, also in the imperfect demonstrations


LESSONS = {
    "bundled": Lessons((1, 2, 3, 3, 4), MIXED),  # level 3 (three terms) twice, because it is the hardest to learn
    # With brackets and more guesses: accuracy starts at 10 to 30%, and no method of docs/results.md reaches 100%.
    "harder": Lessons((2, 3, 4, 5, 5), replace(MIXED, guess=0.6), careful=700, mixed=250),
    # For scripts/make_mixture.py: the first level starts near 100%, and the others as those of "harder".
    "mixture": Lessons((2, 2, 3, 4, 5), replace(MIXED, guess=0.6), careful=1000, mixed=250, mastered=(2,)),
}


def make_tokenizer(words: str = WORDS, size: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: every text can be encoded and decoded exactly. Digits are single tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(TAGS),
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(words.split("\n"), trainer)
    core.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=CONTEXT,
    )


def demonstrate(expression: str, habits: Habits, rng: np.random.Generator) -> str:
    """One answer, which follows the opening think tag."""
    steps, value = work(expression, habits, rng)
    if rng.random() < habits.guess:
        steps, value = [], max(0, value + int(rng.integers(-9, 10)))
    return f"{' '.join(steps)}</think> <answer>{value}</answer>{END}"


def work(expression: str, habits: Habits, rng: np.random.Generator) -> tuple[list[str], int]:
    """The steps and their result; an opening bracket is computed first."""
    bracket, rest = BRACKET.fullmatch(expression).groups()  # type: ignore[union-attr] # it matches every text
    steps, inner = ([], []) if bracket is None else work(bracket, habits, rng)
    first = [] if bracket is None else [inner]
    operator = next(sign for sign in METHODS if sign in rest)
    terms = [*first, *(int(n) for n in re.findall(r"\d+", rest))]
    more, value = METHODS[operator](terms, rng.random() < habits.remember[operator], habits.slip, rng)
    return steps + more, value


def add(terms: list[int], remember: bool, slips: float, rng: np.random.Generator) -> tuple[list[str], int]:
    """Units first: `7+5=12 4+8+1=13`."""
    steps, value, carry = [], 0, 0
    for unit in units(terms[0]):
        column = [digit(term, unit) for term in terms] + ([carry] if carry and remember else [])
        result = slip(sum(column), slips, rng)
        steps.append(f"{'+'.join(map(str, column))}={result}")
        carry = result // 10
        value += unit * (result % 10)
    return steps, value + 10 * unit * carry


def subtract(terms: list[int], remember: bool, slips: float, rng: np.random.Generator) -> tuple[list[str], int]:
    """Units first, ten borrowed where needed: `15-7=8 8-4-1=3`."""
    steps, value, borrow = [], 0, 0
    for unit in units(terms[0]):
        taken = borrow if remember else 0
        top, bottom = digit(terms[0], unit), digit(terms[1], unit)
        borrow = int(top < bottom + taken)
        result = slip(top + 10 * borrow - bottom - taken, slips, rng)
        steps.append(f"{top + 10 * borrow}-{bottom}{'-1' if taken else ''}={result}")
        value += unit * result
    return steps, value


def multiply(terms: list[int], remember: bool, slips: float, rng: np.random.Generator) -> tuple[list[str], int]:
    """The long factor's units first: `7*8=56 4*8=32+5=37`."""
    steps, value, carry = [], 0, 0
    factor = min(terms)
    for unit in units(max(terms)):
        result = slip(digit(max(terms), unit) * factor, slips, rng)
        step = f"{digit(max(terms), unit)}*{factor}={result}"
        if carry and remember:
            result += carry
            step += f"+{carry}={result}"
        steps.append(step)
        carry = result // 10
        value += unit * (result % 10)
    return steps, value + 10 * unit * carry


METHODS = {"+": add, "-": subtract, "*": multiply}


def units(number: int) -> list[int]:
    return [10**place for place in range(len(str(number)))]


def digit(number: int, unit: int) -> int:
    return number // unit % 10


def slip(result: int, slips: float, rng: np.random.Generator) -> int:
    return max(0, result + int(rng.choice((-2, -1, 1, 2)))) if rng.random() < slips else result


def batches(tokenizer: Any, pairs: Iterator[tuple[str, str]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (tokens, labels) of `size` pairs; only the demonstration has labels."""
    while rows := [row(tokenizer, *pair) for pair in itertools.islice(pairs, size)]:
        yield padded(tokenizer, rows)


def padded(tokenizer: Any, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Rows of tokens and labels as [N, L], padded on the right."""
    return (
        pad_sequence([torch.tensor(own) for own, _ in rows], batch_first=True, padding_value=tokenizer.pad_token_id),
        pad_sequence([torch.tensor(own) for _, own in rows], batch_first=True, padding_value=-100),
    )


def row(tokenizer: Any, question: str, demonstration: str) -> tuple[list[int], list[int]]:
    prompt = tokenizer.encode(f"<|user|>{question}{END}<|assistant|><think>", add_special_tokens=False)
    answer = tokenizer.encode(demonstration, add_special_tokens=False)
    return prompt + answer, [-100] * len(prompt) + answer


def pairs(lessons: Lessons, habits: Habits, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Yield questions with demonstrations, without end."""
    while True:
        level, expression = draw(rng, lessons.levels)
        own = CAREFUL if level in lessons.mastered else habits
        yield f"What is {expression}?", demonstrate(expression, own, rng)


def course(lessons: Lessons, *, seed: int, size: int) -> Iterator[tuple[str, str]]:
    """Train on careful demonstrations first, then on imperfect ones, with `size` pairs per step.

    Trained on the mixture alone, the policy does not learn the method.
    """
    for habits, name, steps in (CAREFUL, "careful", lessons.careful), (lessons.habits, "mixed", lessons.mixed):
        yield from itertools.islice(pairs(lessons, habits, generator("make_policy", seed, name)), steps * size)


def draw(rng: np.random.Generator, levels: Sequence[int]) -> tuple[int, str]:
    """A level, and an expression of the train split."""
    while True:
        level = levels[int(rng.integers(len(levels)))]
        expression, _ = LEVELS[level](rng)
        if split_of(expression) == "train":
            return level, expression


def warm_start(
    model: PreTrainedModel,
    tokenizer: Any,
    pairs: Iterator[tuple[str, str]],
    *,
    size: int,
    steps: int,
    peak: float = PEAK,
) -> None:
    """Supervised training on questions and demonstrations, `size` of them in each of `steps` steps."""
    train(model, make_optimizers(model), batches(tokenizer, pairs, size), steps=steps, peak=peak)


def train(
    model: PreTrainedModel,
    optimizers: Sequence[torch.optim.Optimizer],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    peak: float,
) -> None:
    """One step on each batch (tokens, labels); the learning rate rises to `peak` and falls to 0 at `steps`."""
    for step, (tokens, labels) in enumerate(batches):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = peak * min((step + 1) / 50, 1.0, 2 * (1 - step / steps))
        loss = model(input_ids=tokens.to(model.device), labels=labels.to(model.device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


def make_optimizers(model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices: the policy learns the method in a third of AdamW's steps."""
    matrices, others = split_weights(model)
    return [
        torch.optim.Muon(matrices, lr=PEAK, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=PEAK, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def split_weights(model: PreTrainedModel) -> tuple[list[Tensor], list[Tensor]]:
    """The matrices of the layers, and all other weights."""
    inner = {name: weight.ndim == 2 and "embed" not in name for name, weight in model.named_parameters()}
    matrices = [weight for name, weight in model.named_parameters() if inner[name]]
    others = [weight for name, weight in model.named_parameters() if not inner[name]]
    return matrices, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(CONFIGS), default="qwen2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lessons", choices=sorted(LESSONS), default="bundled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32, help="demonstrations per step")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = make_tokenizer()
    model = architecture(arguments.arch, tokenizer, context=CONTEXT, seed=arguments.seed)
    lessons, size = LESSONS[arguments.lessons], arguments.batch
    pairs = course(lessons, seed=arguments.seed, size=size)
    warm_start(model, tokenizer, pairs, size=size, steps=lessons.careful + lessons.mixed)
    save(model, tokenizer, arguments.out)


def save(model: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Save the weights in float16."""
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
