"""The cost of slow verdicts, and the memory of rollouts that wait for verdicts.

    python benchmarks/verifier_handover.py --write

It measures the seconds of 32 verdicts by four workers, 8 of them slow, relative to those 8 alone, spread evenly. It
also measures the peak memory of trainer and supervisor while many long rollouts wait for slow verdicts. scale.py
measures the cost per token of sending rollouts to a verdict and back.
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

from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.verify.verifiers import Verifiers

LENGTH = 8192
SLOW_SECONDS = 0.5
SLOW, TASKS, WORKERS = 8, 32, 4
ORDERS: dict[str, Callable[[], list[int]]] = {  # the positions of the slow ones
    "first": lambda: list(range(SLOW)),
    "last": lambda: list(range(TASKS - SLOW, TASKS)),
    "every fourth": lambda: list(range(0, TASKS, TASKS // SLOW)),  # round robin would give all of them to one worker
    "shuffled": lambda: random.Random(0).sample(range(TASKS), SLOW),
}


def main() -> None:
    made = frame.parser(__doc__, rounds=5, waiting=(2000, "rollouts of 8,192 tokens that wait"))
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    report = {
        "slow verdicts": slow_verdicts(options.rounds),
        "memory, MB": in_own_process(options.waiting),
    }
    print(json.dumps(report, indent=1))
    if options.write:
        frame.finish("verifier_handover", report, options)


def waiting_tasks(count: int) -> list[tuple[Prompt, Rollout]]:
    """Rollouts of LENGTH tokens with different texts and log-probs, 16 per prompt of 200 tokens."""
    rng, tasks = np.random.default_rng(0), list[tuple[Prompt, Rollout]]()
    for number in range(count):
        if number % 16 == 0:
            prompt = Prompt(id=str(number), tokens=rng.integers(0, 4096, 200), text="x" * 800, answer="4", task="t")
        own, text = rng.integers(0, 4096, LENGTH), rng.integers(97, 123, 4 * LENGTH, dtype=np.uint8).tobytes().decode()
        rollout = Rollout(index=number, tokens=own, logprobs=np.zeros(LENGTH), text=text, finish="length", version=0)
        tasks.append((prompt, rollout))
    return tasks


def collect(room: Verifiers, tasks: Sequence[tuple[Prompt, Rollout]]) -> None:
    room.collect([Group(prompt=prompt, rollouts=(rollout,)) for prompt, rollout in tasks])


def slow_verdicts(rounds: int) -> dict[str, dict[str, float]]:
    """order of the slow ones -> seconds of all, relative to the slow ones spread evenly."""
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
    """The reward with slow verdicts, and the one that returns the supervisor's memory."""
    if rollout.text.startswith("sleep "):
        time.sleep(float(rollout.text.split()[1]))
    peak = resident("VmHWM", os.getppid()) if rollout.text == "memory" else 0.0
    return Outcome(reward=peak, correct=True, kind="correct")


def in_own_process(waiting: int) -> dict[str, Any]:
    """Measure each peak in a separate process, because a peak never falls."""
    command = [sys.executable, "-c", f"import verifier_handover as v; v.tell_memory({waiting})"]
    done = subprocess.run(command, cwd=frame.HERE, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tell_memory(waiting: int) -> None:
    """Print the memory of trainer and supervisor before rollouts are submitted, and at most until all are judged."""
    tasks = waiting_tasks(waiting)
    slow, (question,) = texts([f"sleep {4 * SLOW_SECONDS}"] * WORKERS), texts(["memory"])
    with verifiers(f"{Path(__file__).name}:as_told", workers=WORKERS) as room:
        (before,) = room.stream([question])
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
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
    """MB of a process: VmRSS (now) or VmHWM (the peak)."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(which))


def verifiers(use: str, *, workers: int) -> Verifiers:
    settings: dict[str, Any] = {"timeout_seconds": 120.0, "memory_mb": 512, "max_failure_share": 1.0}
    return Verifiers({"use": use}, workers=workers, base=frame.HERE, **settings)


if __name__ == "__main__":
    main()
