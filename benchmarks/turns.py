#!/usr/bin/env python
"""The cost of turns: 64 rollouts of 8 turns, beside single-turn rollouts of the same tokens.

    python benchmarks/turns.py --rounds 7 --write

The policy is the bundled one, and its random numbers decide nothing: a stand-in for the environment answers each turn
with one fixed text, and every turn has exactly --turn-tokens tokens, as no token ends it. A single-turn rollout has as
many tokens as the policy's turns and the environment's texts together, so both sides keep equally long contexts. They
sample in turn in one process. `ratio` is seconds of turns over seconds of a single turn, round by round.

Beside it are counted: texts of conversations that were rendered by the chat template (0 after the start), texts that
were tokenized (each of the environment's once), and the tokens of the prompts that the engine got: those of one
request, as it keeps the keys and values of unfinished rollouts.
--write writes benchmarks/results/<date>_turns.json.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import frame
import numpy as np

from winnow.engines.base import Engine, EngineContext
from winnow.engines.native.engine import native
from winnow.models.load import load
from winnow.records import Outcome, Prompt, Reply, Rollout, Sampling
from winnow.tasks import chat
from winnow.tasks.dialogue import Dialogue
from winnow.training.turns import TurnEngine
from winnow.verify.verifiers import Verifiers

TEXT = "higher"


class Answers:
    """Answers at once, and ends a rollout after `turns` turns: the environment costs nothing."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._rollouts: list[Rollout] = []

    def new_episode(self) -> int:
        return 0

    def request(self, prompt: Prompt, rollout: Rollout, episode: int | None = None) -> int:
        self._rollouts.append(rollout)
        return len(self._rollouts) - 1

    def answer(self, ticket: int) -> Outcome | Reply:
        played = (len(self._rollouts[ticket].turns or ()) + 1) // 2
        return Reply(text=TEXT) if played < self._turns else Outcome(reward=1.0, correct=True, kind="correct")

    def settle(self, prompt: Prompt, rollout: Rollout, outcome: Outcome) -> None:
        pass

    def check_repeats(self, played: Sequence[Any]) -> None:
        pass


class CountingTokenizer:
    """A tokenizer that counts its calls and the texts that it gets."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.texts = tokenizer, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, **options: Any) -> Any:
        self.texts.update([text] if isinstance(text, str) else text)
        return self._tokenizer(text, **options)


class Reading:
    """An engine that counts the tokens of the prompts that it is given."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.tokens = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompts: Sequence[Prompt], *arguments: Any, **more: Any) -> Any:
        self.tokens += sum(len(prompt.tokens) for prompt in prompts)
        return self._engine.generate(prompts, *arguments, **more)


def main() -> None:
    made = frame.parser(
        __doc__,
        rounds=7,
        threads=2,
        prompts=8,
        rollouts=(8, "of a prompt"),
        turns=8,
        turn_tokens=(12, "that the policy samples in a turn"),
    )
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    loaded = load("bundled")
    context = EngineContext(model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=(), max_rollouts_at_once=64)
    engine = native(context)
    tokens = np.array(loaded.tokenizer.encode("<|user|>Go.<|endoftext|><|assistant|><think>"))
    prompts = [
        Prompt(id=str(place), tokens=tokens, text="Go.", answer="1", task="turns") for place in range(options.prompts)
    ]
    rendered = Counter[str]()
    original = chat.conversation_texts
    dialogue = Dialogue.of(loaded.tokenizer)
    dialogue = dataclasses.replace(dialogue, before=dialogue.before[1:])  # else shorter after a sampled end token
    between = len(dialogue.tokens(TEXT, last=-1))
    whole = options.turns * options.turn_tokens + (options.turns - 1) * between
    counts = [options.rollouts] * options.prompts

    def count_rendering(*arguments: Any, **more: Any) -> Any:
        rendered["conversations"] += len(arguments[0])
        return original(*arguments, **more)

    chat.conversation_texts = count_rendering
    reading, counted = Reading(engine), CountingTokenizer(loaded.tokenizer)

    def single(seed: int) -> int:
        groups = engine.generate(prompts, counts, Sampling(max_new_tokens=whole), seed=("turns", seed))
        return sum(rollout.length for group in groups for rollout in group.rollouts)

    def turns(seed: int) -> int:
        played = Dialogue(cast(Any, counted), dialogue.before, dialogue.after)
        verifiers = cast(Verifiers, Answers(options.turns))
        player = TurnEngine(cast(Engine, reading), verifiers, played, max_turn_tokens=options.turn_tokens)
        groups = player.generate(prompts, counts, Sampling(max_new_tokens=whole), seed=("turns", seed))
        return sum(len(rollout.tokens) for group in groups for rollout in group.rollouts)

    started = time.perf_counter()
    pairs = frame.paired(options.rounds, {"turns": turns, "single": single})
    for pair in pairs:
        assert pair["turns"][0] == pair["single"][0] == whole * sum(counts), "the sides have different tokens"
    seconds = {side: [pair[side][1] for pair in pairs] for side in ("turns", "single")}
    rounds = options.rounds + 1  # with the warm-up
    report = {
        "rollouts": sum(counts),
        "tokens of a rollout": whole,
        "of these the environment's": (options.turns - 1) * between,
        "seconds": {side: frame.median(each, 4) for side, each in seconds.items()},
        "ratio": frame.median_ratio(seconds["turns"], seconds["single"]),
        "ratios": [round(a / b, 3) for a, b in zip(seconds["turns"], seconds["single"], strict=True)],
        "per round": {
            "conversations rendered": rendered["conversations"] / rounds,
            "texts of the environment tokenized": counted.texts[TEXT] / rounds,
            "other texts tokenized": (counted.texts.total() - counted.texts[TEXT]) / rounds,
            "tokens of prompts": reading.tokens / rounds,
        },
        "elapsed": round(time.perf_counter() - started, 1),
    }
    if options.write:
        frame.finish("turns", report, options, show=("seconds", "ratio", "per round"))
    else:
        print(report)


if __name__ == "__main__":
    main()
