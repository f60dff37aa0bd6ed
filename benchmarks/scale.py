"""The cost per token of a step without the model, by the length of its rollouts; and a run's memory per prompt.

    python benchmarks/scale.py
    python benchmarks/scale.py --tokenizer FOLDER      with a real vocabulary; by default the bundled policy's

Solutions of GSM8K, one after the other, are cut into rollouts of 128, 1,024 and 8,192 tokens, 64 per prompt, with
the same total number of tokens. Each part of a step except the model then processes them. The result is the seconds per
token, as the median of rounds in which the lengths alternate. A cost per token is constant over the lengths; a cost per
rollout decreases. --write writes a dated result.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import pickle
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch

from winnow import seeds
from winnow.algos.weighting import token
from winnow.core.batches import make_batches
from winnow.core.metrics import describe
from winnow.core.mismatch import Parity
from winnow.engines.base import Tolerance
from winnow.engines.requests import SamplingRequest
from winnow.engines.stopping import StopRule, last_of
from winnow.learner.micro_batches import micro_batches
from winnow.models.load import load_tokenizer, stop_tokens
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.history import History
from winnow.state.logbook import Logbook
from winnow.testing import group_of
from winnow.verify.verifiers import Verifiers

LENGTHS = (128, 1024, 8192)
PER_PROMPT, KEPT = 64, 16
STEPS = 3  # steps of the log that is resumed
STOP = "\n\n\n"  # never complete in these texts, while its last character is common
REWARD = "def length(prompt, rollout):\n    return float(len(rollout.text) % 2)\n"


@dataclass(frozen=True)
class Recorded:
    """A step's rollouts: PER_PROMPT of one length for each prompt."""

    tokenizer: Any
    length: int
    groups: tuple[Group, ...]

    @property
    def tokens(self) -> int:
        return self.length * PER_PROMPT * len(self.groups)

    def bare(self) -> list[Group]:
        """The groups as they are sampled, without outcomes."""
        return [Group(prompt=group.prompt, rollouts=group.rollouts) for group in self.groups]


def recorded(tokenizer: Any, words: np.ndarray[Any, Any], prompts: list[Prompt], length: int, tokens: int) -> Recorded:
    """Rollouts of `length` tokens from `words`, repeated as needed; one in four of them is kept."""
    rng, rows = np.random.default_rng(0), tokens // length
    pieces = [np.take(words, np.arange(i * length, (i + 1) * length), mode="wrap") for i in range(rows)]
    texts = [tokenizer.decode(p, skip_special_tokens=True, clean_up_tokenization_spaces=False) for p in pieces]
    logprobs = [np.log(rng.beta(2.0, 0.3, size=length)) for _ in range(rows)]  # most tokens are nearly certain
    groups = []
    for number, start in enumerate(range(0, rows, PER_PROMPT)):
        rollouts = tuple(
            Rollout(index=i - start, tokens=pieces[i], logprobs=logprobs[i], text=texts[i], finish="length", version=0)
            for i in range(start, start + PER_PROMPT)
        )
        right = rng.random(PER_PROMPT) < 0.5
        outcomes = tuple(
            Outcome(reward=float(r), correct=bool(r), kind="correct" if r else "wrong", parts={"answer": float(r)})
            for r in right
        )
        keep = np.arange(PER_PROMPT) % (PER_PROMPT // KEPT) == 0
        bare = Group(prompt=prompts[number % len(prompts)], rollouts=rollouts, outcomes=outcomes)
        groups.append(bare.fill(keep=keep, advantages=np.where(keep, right - 0.5, 0.0)))
    return Recorded(tokenizer, length, tuple(groups))


def stopping(step: Recorded, rule: StopRule) -> None:
    """Check every token for a stop, as an engine does: only those that can end a rollout are inspected."""
    for rollout in (r for group in step.groups for r in group.rollouts):
        for place in np.flatnonzero(rule.watch[rollout.tokens]).tolist():
            assert not rule.ends(place + 1, last_of(rollout.tokens[: place + 1]))


def text(step: Recorded, rule: StopRule) -> None:
    """Rollouts with their texts, from tokens."""
    prompts, counts = [group.prompt for group in step.groups], [PER_PROMPT] * len(step.groups)
    rollouts = (r for group in step.groups for r in group.rollouts)
    with SamplingRequest(prompts, counts, rule=rule, version=0, on_rollout=None) as request:
        for pending, rollout in zip(request.rollouts, rollouts, strict=True):
            request.finish(pending, rollout.tokens, rollout.logprobs)
    request.groups()


def hand_over(step: Recorded, verifiers: Verifiers) -> None:
    """Send rollouts to one worker and back, with a reward that computes nothing."""
    groups = step.bare()
    for group in groups:
        for rollout in group.rollouts:
            verifiers.submit(group.prompt, rollout)
    verifiers.collect(groups)


def log(step: Recorded, sizes: dict[int, float]) -> None:
    """Write a step's rollouts and metrics into a new log."""
    with tempfile.TemporaryDirectory(prefix="winnow-scale-") as folder:
        book = Logbook(Path(folder), seed=0)
        book.write(0, {}, step.groups, [])
        book.sync(1)
        sizes[step.length] = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) / step.tokens


def resumed(step: Recorded, logged: dict[int, Path]) -> None:
    """Check a log of STEPS such steps as a resume does; the first call writes it."""
    folder = logged[step.length]
    if not folder.exists():
        folder.mkdir()
        book = Logbook(folder, seed=0)
        for number in range(STEPS):
            book.write(number, {}, step.groups, [])
        (folder / "marks").write_bytes(pickle.dumps(book.sync(STEPS)))
    book = Logbook(folder, seed=0, marks=pickle.loads((folder / "marks").read_bytes()))
    book.check()
    book.truncate_from(STEPS)


def random_numbers(step: Recorded) -> None:
    """The random numbers of sampling, for the rollouts of one prompt at a time."""
    for group in step.groups:
        seeds.uniforms([(0, "rollout", 0, group.prompt.id, r.index) for r in group.rollouts], step.length)


def batches(step: Recorded) -> Any:
    return make_batches(
        step.groups, token, epochs=1, updates_per_step=1, max_new_tokens=step.length, planned=len(step.groups),
        pass_rates=None, seed=(0,),
    )  # fmt: skip


def micro(step: Recorded) -> None:
    """Schedule and micro-batches of all kept rollouts."""
    for batch in batches(step):
        for mb in micro_batches(batch.sequences, tokens=16384, device=torch.device("cpu")):
            assert mb.trained_tokens


def metrics(step: Recorded) -> None:
    """Metrics of rollouts, and of parity over kept tokens."""
    parity = Parity(Tolerance(mean=1.0, tail=1.0), 1.0)
    for group in step.groups:
        for rollout, keep in zip(group.rollouts, group.keep if group.keep is not None else (), strict=True):
            if keep:
                parity.add(np.zeros(len(rollout.logprobs)))
    parity.metrics()
    describe(step.groups, [], planned=len(step.groups))


def per_token(steps: list[Recorded], work: Callable[[Recorded], None], rounds: int) -> dict[str, Any]:
    """Nanoseconds per token by length, and the ratios of the longest to the shortest and the middle one."""
    turns = frame.paired(rounds, {str(step.length): lambda _, step=step: work(step) for step in steps})  # type: ignore[misc]
    seconds = {str(s.length): [turn[str(s.length)][1] / s.tokens * 1e9 for turn in turns] for s in steps}
    return {
        **{f"ns_per_token_{length}": frame.median(of, 1) for length, of in seconds.items()},
        **{
            f"{steps[-1].length}_over_{step.length}": frame.median_ratio(
                seconds[str(steps[-1].length)], seconds[str(step.length)]
            )
            for step in steps[:-1]
        },
    }


def history(prompts: int) -> dict[str, float]:
    """The history of prompts, as samplers and allocators read it."""
    names = [f"gsm8k/train/{i}" for i in range(prompts)]
    rows = np.arange(prompts)
    tracemalloc.start()
    made = History(names)
    made.record_draw([0], [rows], [[]], {}, {})
    made.observe([group_of([1.0, 0.0], prompt=name) for name in names], 1 / (rows + 1.0))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    state, seconds = frame.timed(made.state_dict)
    encoded, more = frame.timed(lambda: json.dumps({**state, "drawn": {}}))
    return {
        "prompts": prompts,
        "bytes_in_memory": round(held / prompts),
        "bytes_saved": round(len(encoded) / prompts),
        "seconds_to_save": round(seconds + more, 3),
    }


def in_flight(options: argparse.Namespace) -> dict[str, float]:
    """Host memory per token: the slope between a step and one with twice the tokens, each in a separate process.

    `held` is the memory of the rollouts with their texts, `peak` the most while every part processes them.
    """
    found = []
    for tokens in (8 * options.tokens, 16 * options.tokens):  # large enough to fill bounded buffers
        command = [sys.executable, __file__, "--alone", "--tokens", str(tokens), "--tokenizer", options.tokenizer]
        done = subprocess.run(command, env=os.environ | frame.AT_ONCE, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: round((found[1][name] - found[0][name]) / (8 * options.tokens), 1) for name in found[0]}


def alone(options: argparse.Namespace) -> dict[str, float]:
    """Bytes of this process during a step with the longest rollouts."""
    tokenizer = load_tokenizer(options.tokenizer)
    words, prompts = words_and_prompts(tokenizer)
    small = recorded(tokenizer, words, prompts, LENGTHS[0], PER_PROMPT * LENGTHS[0])
    rule = StopRule(tokenizer, stop_tokens(tokenizer), len(tokenizer), (STOP,))
    with judging() as verifiers, tempfile.TemporaryDirectory(prefix="winnow-scale-") as logged:
        work = list(parts(rule, verifiers, {}, Path(logged)))
        for _, part in work:
            part(small)  # imports modules, and allocates what is allocated once
        ctypes.CDLL(None).malloc_trim(0)  # returns freed memory, which would hide that of the step
        empty = status("VmRSS")
        step = recorded(tokenizer, words, prompts, LENGTHS[-1], options.tokens)
        held = status("VmRSS") - empty
        Path("/proc/self/clear_refs").write_text("5")
        for _, part in work:
            part(step)
        return {"held": held, "peak": status("VmHWM") - empty}


def status(field: str) -> int:
    """A value of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


@contextlib.contextmanager
def judging() -> Iterator[Verifiers]:
    """Verifiers with one worker and a reward that computes nothing."""
    with tempfile.TemporaryDirectory(prefix="winnow-scale-") as folder:
        (Path(folder) / "reward.py").write_text(REWARD)
        reward = {"use": f"{folder}/reward.py:length"}
        with Verifiers(reward, workers=1, timeout_seconds=60.0, memory_mb=2048, max_failure_share=1.0) as verifiers:
            yield verifiers


def words_and_prompts(tokenizer: Any) -> tuple[Any, list[Prompt]]:
    """Solutions of GSM8K as tokens, and its questions as prompts."""
    path = Path(os.environ.get("WINNOW_TEST_DATA", "../shared/data")) / "gsm8k_train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()[:2000]]
    encoded = tokenizer("\n".join(row["answer"] for row in rows), add_special_tokens=False)["input_ids"]
    prompts = [
        Prompt(
            id=f"gsm8k/{i}", tokens=np.array(tokenizer(row["question"])["input_ids"]), text=row["question"],
            answer=row["answer"], task="gsm8k",
        )
        for i, row in enumerate(rows[:512])
    ]  # fmt: skip
    return np.array(encoded, dtype=np.int64), prompts


def parts(
    rule: StopRule, verifiers: Verifiers, sizes: dict[int, float], logged: Path
) -> Iterator[tuple[str, Callable[[Any], None]]]:
    yield "stopping", partial(stopping, rule=rule)
    yield "text", partial(text, rule=rule)
    yield "hand-over", partial(hand_over, verifiers=verifiers)
    yield "log", partial(log, sizes=sizes)
    yield "resume", partial(resumed, logged={length: logged / str(length) for length in LENGTHS})
    yield "random numbers", random_numbers
    yield "schedule and micro-batches", micro
    yield "metrics", metrics


def on_paper(report: dict[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """A step of 512 prompts x 64 rollouts x 8,192 tokens, extrapolated from a token of the longest rollouts."""
    tokens, length = 512 * PER_PROMPT * LENGTHS[-1], LENGTHS[-1]
    flight = report["bytes of a token in flight"]
    return {
        "tokens": tokens,
        "seconds": {name: round(report[name][f"ns_per_token_{length}"] * tokens / 1e9, 1) for name in parts},
        "GB of rollouts": round(flight["held"] * tokens / 1e9, 2),
        "GB at most": round(flight["peak"] * tokens / 1e9, 2),
        "GB of log": round(report["log bytes per token"][length] * tokens / 1e9, 2),
    }


def main() -> None:
    made = frame.parser(__doc__, rounds=5, tokens=(2**20, "of a step"), threads=1, prompts=100_000)
    made.add_argument("--tokenizer", default="bundled", help="a tokenizer's folder")
    made.add_argument("--only", nargs="*", default=(), help="names of the parts to measure")
    made.add_argument("--alone", action="store_true", help="print only the memory of one step")
    made.add_argument("--write", action="store_true", help="write a dated result")
    options = frame.parse(made)
    if options.alone:
        print(json.dumps(alone(options)))
        return
    tokenizer = load_tokenizer(options.tokenizer)
    words, prompts = words_and_prompts(tokenizer)
    steps = [recorded(tokenizer, words, prompts, length, options.tokens) for length in LENGTHS]
    rule, sizes = StopRule(tokenizer, stop_tokens(tokenizer), len(tokenizer), (STOP,)), dict[int, float]()
    report: dict[str, Any] = {"vocabulary": len(tokenizer)}
    names: list[str] = []
    with judging() as verifiers, tempfile.TemporaryDirectory(prefix="winnow-scale-") as logged:
        for name, work in parts(rule, verifiers, sizes, Path(logged)):
            names.append(name)
            if not options.only or name in options.only:
                report[name] = per_token(steps, work, options.rounds)
                print(name, report[name], flush=True)
    report["log bytes per token"] = {length: round(size, 2) for length, size in sizes.items()}
    report["history"] = history(options.prompts)
    report["bytes of a token in flight"] = in_flight(options)
    if not options.only:
        report["512 x 64 x 8,192 on paper"] = on_paper(report, [name for name in report if name in names])
    print(json.dumps(report, indent=1))
    if options.write:
        frame.finish("scale", report, options)


if __name__ == "__main__":
    main()
