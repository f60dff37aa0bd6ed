"""What does a rollout cost between its last token and its verdict, and does that grow with its length?

    python benchmarks/verifier_handover.py --write

Per token, for rollouts of 128, 1,024 and 8,192: looking for a stop string whose last character is frequent (a line
break), reading the text, and the way to a verdict and back (a reward that only counts tokens). Then how long 32
verdicts take four workers when 8 of them are slow, against those 8 alone spread evenly; and the most memory that
trainer and fork server take while many long rollouts wait behind slow verdicts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from winnow.engines.stopping import StopRule, last_of
from winnow.records import Group, IntArray, Outcome, Prompt, Rollout
from winnow.verify import Verifiers

LENGTHS = (128, 1024, 8192)
SLOW_SECONDS = 0.5
SLOW, TASKS, WORKERS = 8, 32, 4
ORDERS: dict[str, Callable[[], list[int]]] = {  # the places of the slow ones
    "first": lambda: list(range(SLOW)),
    "last": lambda: list(range(TASKS - SLOW, TASKS)),
    "every fourth": lambda: list(range(0, TASKS, TASKS // SLOW)),  # dealt out in turn, all would be one worker's
    "shuffled": lambda: random.Random(0).sample(range(TASKS), SLOW),
}


def main() -> None:
    made = frame.parser(
        __doc__, rounds=5, tokens=(1_000_000, "per length"), waiting=(2000, "rollouts of 8,192 tokens that wait")
    )
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    tokenizer, text = tokenizer_and_text(1 << 21)
    tokens = np.array(tokenizer.encode(text), dtype=np.int64)
    report = {
        "nanoseconds per token": {
            "stopping": by_length(lambda length: stopping(tokenizer, tokens, length), options.rounds),
            "reading the text": by_length(lambda length: reading(tokenizer, tokens, length), options.rounds),
            "hand-over": hand_over(tokenizer, tokens, options.tokens, options.rounds),
        },
        "slow verdicts": slow_verdicts(options.rounds),
        "memory, MB": in_own_process(options.waiting),
    }
    print(json.dumps(report, indent=1))
    if options.write:
        frame.finish("verifier_handover", report, options)


def tokenizer_and_text(characters: int) -> tuple[PreTrainedTokenizerFast, str]:
    """A byte-level vocabulary of 4,096 tokens, and the text it was trained on: short lines of sums and words."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(2000)]
    lines: list[str] = []
    for _ in range(characters // 32):
        a, b = draw.randint(0, 999), draw.randint(0, 99)
        lines.append(f"{' '.join(draw.choices(words, k=4))} {a} + {b} = {a + b}\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=4096, special_tokens=["<eos>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"), "".join(lines)


def by_length(work: Callable[[int], float], rounds: int) -> dict[str, float]:
    """The median over the rounds, lengths in turn."""
    turns = [{length: work(length) for length in LENGTHS} for _ in range(rounds)]
    return {str(length): frame.median([turn[length] for turn in turns], 1) for length in LENGTHS}


def stopping(tokenizer: PreTrainedTokenizerFast, tokens: IntArray, length: int) -> float:
    """A line break in every line, and none after a #, so every rollout goes on to its last token."""
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("#\n",))
    rollouts = pieces(tokens, length, 3 * LENGTHS[-1])
    start = time.perf_counter()
    for rollout in rollouts:
        for place in np.flatnonzero(rule.watch[rollout]).tolist():
            assert not rule.ends(place + 1, last_of(rollout[: place + 1]))
    return 1e9 * (time.perf_counter() - start) / (length * len(rollouts))


def reading(tokenizer: PreTrainedTokenizerFast, tokens: IntArray, length: int) -> float:
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("#\n",))
    rollouts = pieces(tokens, length, 8 * LENGTHS[-1])
    start = time.perf_counter()
    for rollout in rollouts:
        rule.read(rollout)
    return 1e9 * (time.perf_counter() - start) / (length * len(rollouts))


def pieces(tokens: IntArray, length: int, most: int) -> list[IntArray]:
    return [tokens[start : start + length] for start in range(0, most, length)]


def hand_over(
    tokenizer: PreTrainedTokenizerFast, tokens: IntArray, total: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Submission to verdict on two workers: the trainer's own CPU time, and the time on the clock."""
    found: dict[str, dict[str, list[float]]] = {}
    with verifiers("length", workers=2) as room:
        for turn in range(rounds + 1):
            for length in LENGTHS:
                tasks = made(tokenizer, tokens, length, max(2, total // length))
                cpu, clock = time.process_time(), time.perf_counter()
                for task in tasks:
                    room.submit(*task)
                collect(room, tasks)
                spent = {"trainer's CPU": time.process_time() - cpu, "clock": time.perf_counter() - clock}
                for name, seconds in spent.items() if turn else ():
                    found.setdefault(name, {}).setdefault(str(length), []).append(1e9 * seconds / (length * len(tasks)))
    return {name: {length: frame.median(each, 1) for length, each in row.items()} for name, row in found.items()}


def made(tokenizer: PreTrainedTokenizerFast, tokens: IntArray, length: int, count: int) -> list[tuple[Prompt, Rollout]]:
    """Rollouts with texts and log-probs of their own, 16 to a prompt of 200 tokens."""
    tasks = []
    for number in range(count):
        if number % 16 == 0:
            asked = tokens[number : number + 200]
            prompt = Prompt(id=str(number), tokens=asked, text=tokenizer.decode(asked), answer="4", task="t")
        own = np.roll(tokens[: len(tokens) // 2], 97 * number)[:length].copy()
        text, logprobs = tokenizer.decode(own), np.zeros(length)
        rollout = Rollout(index=number, tokens=own, logprobs=logprobs, text=text, finish="length", version=0)
        tasks.append((prompt, rollout))
    return tasks


def collect(room: Verifiers, tasks: Sequence[tuple[Prompt, Rollout]]) -> None:
    room.collect([Group(prompt=prompt, rollouts=(rollout,)) for prompt, rollout in tasks])


def slow_verdicts(rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of all over those of the slow ones spread evenly, by the order in which they come."""
    ideal = SLOW_SECONDS * SLOW / WORKERS
    found = {}
    with verifiers(f"{Path(__file__).name}:as_told", workers=WORKERS) as room:
        collect(room, texts(["quick"] * 200))
        for order, places in ORDERS.items():
            slow = set(places())
            tasks = texts([f"sleep {SLOW_SECONDS}" if place in slow else "quick" for place in range(TASKS)])
            turns = [frame.timed(lambda tasks=tasks: collect(room, tasks))[1] for _ in range(rounds)]  # type: ignore[misc]
            ratios = [seconds / ideal for seconds in turns]
            found[order] = {"median": frame.median(ratios, 3), "worst": round(max(ratios), 3)}
    return found


def texts(given: Sequence[str]) -> list[tuple[Prompt, Rollout]]:
    one = np.ones(1, dtype=np.int64)
    prompt = Prompt(id="p", tokens=one, text="", answer=None, task="t")
    return [
        (prompt, Rollout(index=i, tokens=one, logprobs=np.zeros(1), text=text, finish="stop", version=0))
        for i, text in enumerate(given)
    ]


def as_told(prompt: Prompt, rollout: Rollout) -> Outcome:
    """The reward of the slow verdicts, and the one that tells the fork server's memory."""
    if rollout.text.startswith("sleep "):
        time.sleep(float(rollout.text.split()[1]))
    peak = resident("VmHWM", os.getppid()) if rollout.text == "memory" else 0.0
    return Outcome(reward=peak, correct=True, kind="correct")


def in_own_process(waiting: int) -> dict[str, Any]:
    """Peaks only rise, so each is a process's own."""
    command = [sys.executable, "-c", f"import verifier_handover as v; v.tell_memory({waiting})"]
    done = subprocess.run(command, cwd=frame.HERE, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tell_memory(waiting: int) -> None:
    """Print the memory of trainer and fork server before rollouts are submitted, and at most until all are judged."""
    tokenizer, text = tokenizer_and_text(1 << 19)
    tasks = made(tokenizer, np.array(tokenizer.encode(text), dtype=np.int64), LENGTHS[-1], waiting)
    slow, (question,) = texts([f"sleep {4 * SLOW_SECONDS}"] * WORKERS), texts(["memory"])
    with verifiers(f"{Path(__file__).name}:as_told", workers=WORKERS) as room:
        (before,) = room.stream([question])
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        trainer = resident("VmRSS")
        for task in (*slow, *tasks):
            room.submit(*task)
        submitted = resident("VmRSS")
        collect(room, [*slow, *tasks])
        (after,) = room.stream([question])
    peak = resident("VmHWM")
    rollouts = sum(r.tokens.nbytes + r.logprobs.nbytes + len(r.text) for _, r in tasks) / 2**20
    report = {
        "rollouts": rollouts,
        "trainer with the rollouts": trainer,
        "trainer, all submitted": submitted,
        "trainer, at most": peak,
        "fork server before": before.reward,
        "fork server, at most": after.reward,
    }
    print(json.dumps({name: round(megabytes) for name, megabytes in report.items()}))


def resident(which: str, process: int | str = "self") -> float:
    """MB of a process: VmRSS, or VmHWM, the most so far."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(which))


def verifiers(use: str, *, workers: int) -> Verifiers:
    settings: dict[str, Any] = {"timeout_seconds": 120.0, "memory_mb": 512, "max_failure_share": 1.0}
    return Verifiers({"use": use}, workers=workers, base=frame.HERE, **settings)


if __name__ == "__main__":
    main()
