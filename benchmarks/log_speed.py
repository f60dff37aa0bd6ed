"""What a run's log costs in time: writing a step, a resume's look at what is there, and `winnow show`.

    python benchmarks/log_speed.py                         a default step, and steps of rollouts of three lengths
    python benchmarks/log_speed.py --gigabytes 10          also a log of that size: show its last step, resume it

Another tree is measured by PYTHONPATH=../before/src. Every length has the same number of tokens in all, drawn from a
vocabulary of 150,000 by Zipf's law, with words for text; a quarter is kept. Writing is timed by the process's own
CPU time, on which other processes have less influence; commands by both clocks. Memory is the peak that a write adds to
what the process holds (VmHWM, set back before it). Files that are read were just written: they come from memory, not
from the disk.
"""

from __future__ import annotations

import resource
import shutil
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

LENGTHS = (128, 1024, 8192)
DEFAULT = {"prompts": 32, "rollouts": 16, "tokens": 16, "asked": 12}  # the default configuration, at its usual lengths
RIGHT = Outcome(reward=1.0, correct=True, kind="correct", answer="42", seconds=1e-4)
WRONG = Outcome(reward=0.0, correct=False, kind="wrong", answer="41", seconds=1e-4)


def groups(*, prompts: int, rollouts: int, tokens: int, asked: int = 100) -> list[Group]:
    """A step's groups, filled: a quarter of each is kept."""
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


def writes(rounds: int, tokens: int) -> dict[str, Any]:
    """Milliseconds of a default step; nanoseconds per token and peak memory at each length."""
    steps = {str(length): _of_length(length, tokens) for length in LENGTHS}
    steps["default"] = groups(**DEFAULT)

    def write(name: str) -> Any:
        def once(_: int) -> int:
            folder = Path(tempfile.mkdtemp())
            log = Logbook(folder, seed=0)
            _set_back_peak()
            before = _memory("VmHWM")
            start = time.process_time()
            log.write(0, {"reward/mean": 0.5}, steps[name], [])
            seconds = time.process_time() - start
            peaks.setdefault(name, []).append(_memory("VmHWM") - before)
            sizes[name] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            shutil.rmtree(folder)
            times.setdefault(name, []).append(seconds)
            return 0

        return once

    times: dict[str, list[float]] = {}
    peaks: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    frame.paired(rounds, {name: write(name) for name in steps})
    short = times[str(LENGTHS[0])][1:]
    return {
        "default_step_cpu_ms": round(frame.median(times["default"][1:]) * 1e3, 2),
        "cpu_nanoseconds_per_token": {n: round(frame.median(t[1:], 9) / tokens * 1e9, 1) for n, t in _long(times)},
        "beside_the_shortest": {n: frame.median_ratio(t[1:], short) for n, t in _long(times)},
        "peak_megabytes": {n: round(max(p[1:]) / 1e6) for n, p in _long(peaks)},
        "bytes_per_token": {n: round(size / tokens, 2) for n, size in _long(sizes)},
    }


def _long(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in values.items() if name != "default"]


def _of_length(length: int, tokens: int) -> list[Group]:
    rollouts = min(64, tokens // length)
    return groups(prompts=tokens // length // rollouts, rollouts=rollouts, tokens=length)


def large(gigabytes: int, folder: Path) -> dict[str, Any]:
    """A log of rollouts of 1,024 tokens: seconds to show its last step, and of a resume's look at it."""
    made = _of_length(1024, 2**22)
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


def _set_back_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    options = frame.parse(
        frame.parser(__doc__, rounds=5, tokens=(2**22, "of a step, at each length"), gigabytes=(0, "of a large log"))
    )
    report = {"write": writes(options.rounds, options.tokens)}
    if options.gigabytes:
        with tempfile.TemporaryDirectory() as folder:
            report["large"] = large(options.gigabytes, Path(folder))
    frame.finish("log_speed", report, options, packages=("winnow-rl", "pyarrow", "numpy"), show=tuple(report))


if __name__ == "__main__":
    main()
