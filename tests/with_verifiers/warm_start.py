"""A policy that plays Hangman at random: the bundled one, after a few steps on games with random letters.

The bundled policy has only seen arithmetic, and never writes a letter in brackets, so its rewards would all be 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from winnow.models.folder import BUNDLED
from winnow.records import Problem, Reply

LETTERS = "eaiotrnslc"
Message = dict[str, str]
Answer = Callable[[Problem, Sequence[str]], Any]  # the environment's answer to the turns so far


def games(problems: Sequence[Problem], answer: Answer, rng: random.Random) -> Iterator[list[Message]]:
    """Conversations without an end, each up to a random turn of the policy, which guesses different random letters."""
    while True:
        problem = rng.choice(problems)
        turns, messages = list[str](), [{"role": "user", "content": problem.question}]
        for letter in rng.sample(LETTERS, rng.randint(1, 5)):
            turns.append(f"[{letter}]")
            messages.append({"role": "assistant", "content": turns[-1]})
            yield list(messages)
            reply = answer(problem, turns)
            if not isinstance(reply, Reply):
                break
            turns.append(reply.text)
            messages.append({"role": "user", "content": reply.text})


def warm_start(folder: Path, problems: Sequence[Problem], answer: Answer, *, steps: int = 60) -> Path:
    """Train the bundled policy on the last turns of games, and save it in `folder`."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    model = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    conversations = games(problems, answer, random.Random(0))
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(4):
            *context, last = next(conversations)
            prompt = tokenizer.apply_chat_template(context, tokenize=False, add_generation_prompt=True)
            before = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
            target = tokenizer(last["content"] + tokenizer.eos_token, add_special_tokens=False, return_tensors="pt")
            tokens = torch.cat([before, target["input_ids"]], dim=1)
            labels = tokens.clone()
            labels[:, : before.shape[1]] = -100
            (model(input_ids=tokens, labels=labels).loss / 4).backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
