"""The seconds of a run's log: writing a default step, checking the log in a resume, and `winnow show`.

    python benchmarks/log_speed.py                         measure a default step
    python benchmarks/log_speed.py --gigabytes 10          also a log of that size: show its last step, and resume

PYTHONPATH=../before/src measures another source tree. Tokens are drawn from a vocabulary of 150,000 by Zipf's law, with
words for text; a quarter of the rollouts is kept. The step is timed by the CPU time of the process, which depends less
on other processes; commands are timed by both clocks. The files were just written, so they are read from memory and not
from the disk. scale.py measures the cost per token by the length of rollouts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import frame
import numpy as np

from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.logbook import Logbook

DEFAULT = {"prompts": 32, "rollouts": 16, "tokens": 16, "asked": 12}  # the default configuration, at its usual lengths
RIGHT = Outcome(reward=1.0, correct=True, kind="correct", answer="42", seconds=1e-4)
WRONG = Outcome(reward=0.0, correct=False, kind="wrong", answer="41", seconds=1e-4)


def groups(*, prompts: int, rollouts: int, tokens: int, asked: int = 100) -> list[Group]:
    """The filled groups of a step; a quarter of each is kept."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 8, 5000)])
    made = []
    for place in range(prompts):
        own = tuple(_rollout(index, tokens, words, rng) for index in range(rollouts))
        keep = rng.permutation(rollouts) < max(1, rollouts // 4)
        own_prompt = rng.integers(0, 150_000, asked)
        prompt = Prompt(
            id=f"p{place}", tokens=own_prompt, text=" ".join(words[own_prompt % 5000]), answer="42", task="synthetic"
        )
        group = Group(prompt=prompt, rollouts=own, outcomes=(RIGHT, WRONG) * (rollouts // 2))
        made.append(group.fill(keep=keep, advantages=np.where(keep, rng.standard_normal(rollouts), 0.0)))
    return made


def _rollout(index: int, length: int, words: Any, rng: np.random.Generator) -> Rollout:
    tokens = rng.zipf(1.3, length) % 150_000
    logprobs = np.log(np.clip(rng.beta(1.6, 0.25, length), 1e-9, 1 - 1e-7))
    text = " ".join(words[tokens % 5000])
    return Rollout(index=index, tokens=tokens, logprobs=logprobs, text=text, finish="stop", version=0)


def default_step(rounds: int) -> float:
    """Median milliseconds of writing the step."""
    made, times = groups(**DEFAULT), list[float]()
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            log = Logbook(Path(folder), seed=0)
            start = time.process_time()
            log.write(0, {"reward/mean": 0.5}, made, [])
            times.append(time.process_time() - start)
    return round(frame.median(times[1:]) * 1e3, 2)


def large(gigabytes: int, folder: Path) -> dict[str, Any]:
    """A log of rollouts of 1,024 tokens: seconds to show its last step, and to check it in a resume."""
    made = groups(prompts=64, rollouts=64, tokens=1024)
    log, step, size = Logbook(folder, seed=0), 0, 0
    while size < gigabytes * 1e9:
        log.write(step, {"reward/mean": 0.5, "budget/rollouts": 4096}, made, [])
        size += sum(path.stat().st_size for path in (folder / "rollouts").glob(f"step-{step:06d}*"))
        step += 1
    marks = log.sync(step)

    def resumed(_: int) -> float:
        start = time.process_time()
        again = Logbook(folder, seed=0, marks=marks)
        again.check()
        again.truncate_from(step)
        return time.process_time() - start

    ways = {
        "show": ["show", str(folder)],
        "show --worst 2": ["show", str(folder), "--worst", "2"],
        "show --step 3 --worst 2": ["show", str(folder), "--step", "3", "--worst", "2"],
        "--help, for comparison": ["--help"],
    }
    contestants = {name: _command(arguments) for name, arguments in ways.items()}
    turns = frame.paired(5, {**contestants, "resume": resumed})
    return {
        "gigabytes": round(size / 1e9, 2),
        "steps": step,
        "rollouts_per_step": sum(len(group.rollouts) for group in made),
        "megabytes_per_step": round(size / step / 1e6, 1),
        "seconds": {name: frame.median([turn[name][1] for turn in turns], 3) for name in turns[0]},
        "cpu_seconds": {name: frame.median([turn[name][0] for turn in turns], 4) for name in turns[0]},
    }


def _command(arguments: list[str]) -> Any:
    def run(_: int) -> float:
        before = _children()
        subprocess.run([sys.executable, "-m", "winnow", *arguments], stdout=subprocess.DEVNULL, check=True)
        return _children() - before

    return run


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    options = frame.parse(frame.parser(__doc__, rounds=20, gigabytes=(0, "of a large log")))
    report: dict[str, Any] = {"default_step_cpu_ms": default_step(options.rounds)}
    if options.gigabytes:
        with tempfile.TemporaryDirectory() as folder:
            report["large"] = large(options.gigabytes, Path(folder))
    frame.finish("log_speed", report, options, packages=("winnow-rl", "pyarrow", "numpy"), show=tuple(report))


if __name__ == "__main__":
    main()
