#!/usr/bin/env python
"""Seconds of turns that take long in the environment: each turn once, with kept generators, and by replays.

    python benchmarks/slow_turns.py --write

Rollouts of several turns are requested turn by turn, as sampling requests them, from an environment that sleeps in each
turn. One worker answers them, so the turns follow one another, and their sleep is the least that they can take. Kept
generators execute each turn once; without the number of an episode, every answer replays the turns before it. --write
writes benchmarks/results/<date>_slow_turns.json.
"""

from __future__ import annotations

import time
from pathlib import Path

import frame
import numpy as np

from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.verify.verifiers import Verifiers


def sleepy(prompt, reply, rng, *, turns: int, seconds: float):
    """Sleeps in each of its turns."""
    for turn in range(1, turns):
        time.sleep(seconds)
        reply = yield f"{turn}: {len(reply)}"
    time.sleep(seconds)
    return 1.0


def rollout(index: int, turns: list[str]) -> Rollout:
    none = np.zeros(0)
    return Rollout(
        index=index, tokens=none.astype(int), logprobs=none, text="", finish="stop", version=0, turns=tuple(turns)
    )


def play(verifiers: Verifiers, rollouts: int, *, kept: bool) -> list[tuple[str, ...]]:
    """The conversations of all rollouts."""
    prompt = Prompt(id="p", tokens=np.array([1]), text="?", answer="1", task="t")
    episodes = [verifiers.new_episode() if kept else None for _ in range(rollouts)]
    turns = [["x" * (place + 1)] for place in range(rollouts)]
    playing = list(range(rollouts))
    while playing:
        tickets = [verifiers.request(prompt, rollout(place, turns[place]), episodes[place]) for place in playing]
        answers = [(place, verifiers.answer(ticket)) for place, ticket in zip(playing, tickets, strict=True)]
        for place, answer in answers:
            assert isinstance(answer, Reply) or (isinstance(answer, Outcome) and not answer.failed), answer
            turns[place] += [answer.text, "y"] if isinstance(answer, Reply) else []
        playing = [place for place, answer in answers if isinstance(answer, Reply)]
    return [tuple(each) for each in turns]


def main() -> None:
    made = frame.parser(__doc__, rounds=3, rollouts=24, turns=4, workers=1)
    made.add_argument("--seconds", type=float, default=0.05, help="of one turn")
    made.add_argument("--write", action="store_true", help="write the result")
    options = frame.parse(made)
    spec = {
        "environment": f"{Path(__file__).resolve()}:sleepy",
        "options": {"turns": options.turns, "seconds": options.seconds},
        "max_turns": options.turns,
    }
    seconds: dict[str, list[float]] = {"kept": [], "replayed": []}
    with Verifiers(
        spec, workers=options.workers, timeout_seconds=60, memory_mb=512, max_failure_share=1.0
    ) as verifiers:
        play(verifiers, options.workers, kept=True)  # starts the workers
        conversations = set()
        for _ in range(options.rounds):
            for side in seconds:
                began = time.perf_counter()
                conversations.add(tuple(play(verifiers, options.rollouts, kept=side == "kept")))
                seconds[side].append(time.perf_counter() - began)
    assert len(conversations) == 1, "the sides have different answers"
    once = options.rollouts * options.turns * options.seconds / options.workers
    report = {
        "rollouts": options.rollouts,
        "turns": options.turns,
        "seconds of each turn once": once,
        "seconds": {side: frame.median(each, 3) for side, each in seconds.items()},
        "ratios to each turn once": {side: round(float(np.median(each)) / once, 3) for side, each in seconds.items()},
    }
    if options.write:
        frame.finish("slow_turns", report, options, show=tuple(report))
    else:
        print(report)


if __name__ == "__main__":
    main()
