"""How often the `math` grader is wrong, and how fast it is.

    python benchmarks/math_equivalence.py
    python benchmarks/math_equivalence.py --before ../before   also the seconds per verdict of a former tree, paired

Every pair of math_pairs.py is judged as in a run: by `Verifiers`, one killable worker and the reward `boxed`. The CPU
seconds are those of trainer, supervisor and worker together, because they depend little on other processes. Writes
benchmarks/results/<date>_math_equivalence.json.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import numpy as np
from math_judge import paired_seconds
from math_pairs import DATA, KINDS, LABEL_NOISE, Pair, counts, make_pairs

from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.verify.verifiers import Verifiers

REWARD: Mapping[str, Any] = {"use": "boxed", "options": {"grader": "math"}}
PACKAGES = ("winnow-rl", "math-verify", "latex2sympy2_extended", "sympy", "mpmath", "gmpy2", "antlr4-python3-runtime")


def group_of(index: int, pair: Pair) -> Group:
    """A prompt with the gold answer, and one rollout with the boxed answer."""
    prompt = Prompt(id=str(index), tokens=np.zeros(8, np.int64), text="?", answer=pair.gold, task="pairs")
    completion = rf"So the answer is \boxed{{{pair.answer}}}."
    tokens = np.zeros(64, np.int64)
    rollout = Rollout(index=0, tokens=tokens, logprobs=np.zeros(64), text=completion, finish="stop", version=0)
    return Group(prompt=prompt, rollouts=(rollout,))


def judge(pairs: Sequence[Pair], *, timeout_seconds: float) -> tuple[list[Outcome], dict[str, Any]]:
    """The outcome of every pair, and the CPU seconds."""
    groups = [group_of(i, pair) for i, pair in enumerate(pairs)]
    limits = {"timeout_seconds": timeout_seconds, "memory_mb": 2048, "max_failure_share": 1.0}
    before = os.times()
    with Verifiers(REWARD, workers=1, **limits) as verifiers:
        started = time.perf_counter()
        verifiers.submit(groups[0].prompt, groups[0].rollouts[0])
        verifiers.collect(groups[:1])
        first = time.perf_counter() - started
        for group in groups:
            verifiers.submit(group.prompt, group.rollouts[0])
        outcomes = [outcome for group in verifiers.collect(groups) for outcome in group.outcomes or ()]
        wall = time.perf_counter() - started - first
    after = os.times()
    processor = sum(after[:4]) - sum(before[:4])
    seconds = {"first_verdict": first, "wall": wall, "processor": processor}
    return outcomes, {
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "pairs_per_second_one_worker": round(len(pairs) / wall, 1),
        "pairs_per_processor_second": round(len(pairs) / processor, 1),
        "milliseconds_per_verdict": {
            f"p{p}": round(1000 * float(np.percentile([o.seconds for o in outcomes], p)), 3) for p in (50, 99, 100)
        },
    }


def errors(pairs: Sequence[Pair], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares of wrong verdicts. Label noise is counted separately, and included in the totals."""
    missed = [p for p, o in zip(pairs, outcomes, strict=True) if p.equal and not o.correct]
    accepted = [p for p, o in zip(pairs, outcomes, strict=True) if not p.equal and o.correct]
    positives = sum(pair.equal for pair in pairs)
    return {
        "false_negatives": _share(missed, positives),
        "false_positives": _share(accepted, len(pairs) - positives),
        "failed": dict(Counter(outcome.cause for outcome in outcomes if outcome.failed)),
        "by_source": {
            source: {
                "pairs": len([p for p in pairs if p.source == source]),
                "false_negatives": len([p for p in missed if p.source == source]),
                "false_positives": len([p for p in accepted if p.source == source]),
            }
            for source in sorted({pair.source for pair in pairs})
        },
        "false_negative_kinds": _by_kind(missed),
        "false_positive_kinds": _by_kind(accepted),
    }


def _share(wrong: Sequence[Pair], total: int) -> dict[str, Any]:
    noise = [pair for pair in wrong if pair.key in LABEL_NOISE]
    return {
        "pairs": total,
        "wrong": len(wrong),
        "percent": round(100 * len(wrong) / max(1, total), 3),
        "of_these_label_noise": len(noise),
        "percent_without_label_noise": round(100 * (len(wrong) - len(noise)) / max(1, total), 3),
    }


def _by_kind(pairs: Iterable[Pair]) -> dict[str, int]:
    return {kind: count for kind, count in counts(pairs).items() if count}


def main() -> None:
    parser = frame.parser(__doc__, timed=(300, "pairs of each file that are timed in both trees"), rounds=5)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the seven files")
    parser.add_argument("--timeout-seconds", type=float, default=5.0)
    parser.add_argument("--before", type=Path, help="a former tree, whose seconds per verdict are compared")
    parser.add_argument("--show", action="store_true", help="print every wrong verdict, and write no file")
    options = frame.parse(parser)
    pairs = make_pairs(options.data)
    outcomes, speed = judge(pairs, timeout_seconds=options.timeout_seconds)
    found = {**errors(pairs, outcomes), **speed}
    for key, value in found.items():
        print(f"{key}: {value}")
    if options.show:
        _print_wrong(zip(pairs, outcomes, strict=True))
        return
    report = {
        "pairs": len(pairs),
        "pairs_by_kind": {
            kind: {"label": "equal" if KINDS[kind][0] else "different", "pairs": count}
            for kind, count in counts(pairs).items()
        },
        "timeout_seconds": options.timeout_seconds,
        "label_noise": [[*key, reason] for key, reason in LABEL_NOISE.items()],
        "grader": found,
    }
    if options.before:
        report["seconds_per_verdict"] = paired_seconds(options.before, _drawn(pairs, options.timed), options.rounds)
        print(report["seconds_per_verdict"])
    frame.finish("math_equivalence", report, packages=PACKAGES)


def _drawn(pairs: Sequence[Pair], of_each: int) -> list[Pair]:
    """At most `of_each` pairs of each file, drawn by a fixed seed."""
    order = random.Random(0).sample(pairs, len(pairs))
    sources = sorted({pair.source for pair in pairs})
    return [pair for source in sources for pair in [pair for pair in order if pair.source == source][:of_each]]


def _print_wrong(verdicts: Iterable[tuple[Pair, Outcome]]) -> None:
    for pair, outcome in verdicts:
        if outcome.correct is not pair.equal:
            said = "equal" if pair.equal else "different"
            print(f"    {outcome.kind} {outcome.cause or ''} ({said}, {pair.kind}): {pair.answer!r} | {pair.gold!r}")


if __name__ == "__main__":
    main()
