"""Training runs on the GPU: the default task in two precisions, and a larger policy with GRPO and PODS in turn."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_lab import Lab

import winnow
from winnow.config_file import load, validate
from winnow.core.events import Evaluated, Event
from winnow.models.architecture import architecture
from winnow.models.device import set_matrix_products
from winnow.models.load import load_tokenizer
from winnow.recipes import recipe_paths
from winnow.records import StepReport
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))
import make_policy  # noqa: E402

DEFAULT = recipe_paths()["arithmetic"]
PHASES = ("generate", "verify", "logprobs", "update", "sync", "step")
LEVELS = (3, 4, 6)  # of the arithmetic task: three terms, products, three digits
TEACHABLE = (0.05, 0.8)  # range of sampled accuracy in which a policy can improve and has right rollouts
START_SECONDS = 12.0  # of a run, before its first step and after its last

Found = dict[str, Any]


def learn(lab: Lab) -> None:
    """The bundled policy on the default task: accuracy before and after, parity with the engine, seconds by phase."""
    longest = 0.0
    for dtype, seed in lab.sizes.learning_runs:
        point = {"dtype": dtype, "seed": seed, "steps": lab.sizes.learning_steps}
        if lab.left < longest:
            lab.record(point | {"skipped": f"{lab.left:.0f} s left, {longest:.0f} s needed"})
            continue
        begin = time.perf_counter()
        with TemporaryDirectory(prefix="winnow-gpu-") as folder:
            lab.record(point | _learned(lab, Path(folder) / "run", dtype, seed))
        longest = max(longest, time.perf_counter() - begin)


def _learned(lab: Lab, output: Path, dtype: str, seed: int) -> Found:
    few = {"rollout.prompts_per_step": 2, "rollout.rollouts_per_prompt": 4, "select": "all"} if lab.dry else {}
    changes = {
        "seed": seed,
        "steps": lab.sizes.learning_steps,
        "output": str(output),
        "device": lab.device.type,
        "model.dtype": dtype,
        "update.tokens_per_micro_batch": 16384,
        "evaluate.every": 0,
        "evaluate.problems": lab.sizes.learning_problems,
        "checkpoint.every": 0,
        **few,
    }
    sets = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    fit(resolve_members(load(DEFAULT, sets), base=DEFAULT.parent))
    rows = read_metrics(output)
    evaluated = [row for row in rows if "eval/accuracy_sampled" in row]
    steps = [row for row in rows if "seconds/step" in row]
    compared = [row for row in steps if "policy/logprob_gap_mean" in row]
    return {
        "accuracy_before": evaluated[0]["eval/accuracy_sampled"],
        "accuracy_after": evaluated[-1]["eval/accuracy_sampled"],
        "parity": {
            name: max((row[f"policy/{name}"] for row in compared), default=None)
            for name in ("logprob_gap_mean", "logprob_gap_p999", "logprob_gap_max", "ratio_outside", "parity_alarm")
        },
        "seconds": {
            phase: round(statistics.median(row[f"seconds/{phase}"] for row in steps), 4)
            for phase in PHASES
            if f"seconds/{phase}" in steps[0]
        },
        "not_finite": sum(row.get("budget/updates", 1.0) == 0 for row in steps),
    }


@dataclass
class Curve:
    """Held-out accuracy by seconds of training, without evaluations; a run stops after its seconds."""

    limit: float
    seconds: float = 0.0
    points: list[tuple[float, int, float]] = field(default_factory=list)  # seconds, step, accuracy
    rewards: list[float] = field(default_factory=list)
    tokens: float = 0.0
    updates: float = 0.0
    asked: bool = False

    def watch(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.points.append((round(self.seconds, 2), event.step, event.metrics["eval/accuracy_sampled"]))
        elif isinstance(event, StepReport):
            self.seconds += event.metrics["seconds/step"]
            self.rewards.append(round(event.metrics["reward/mean"], 4))
            self.tokens += event.metrics["budget/tokens_generated"]
            self.updates += event.metrics["budget/updates"]
            if self.seconds >= self.limit and not self.asked:
                self.asked = True
                signal.raise_signal(signal.SIGTERM)  # as an operator would: the run stops after this step


def policy50m(lab: Lab) -> None:
    """A policy of at least 50M parameters, pretrained for a minute or two on demonstrations with mistakes.

    It is then trained for equal seconds by GRPO on all of its rollouts, and by PODS on a part of more rollouts.
    """
    with TemporaryDirectory(prefix="winnow-gpu-") as home:
        policy = Path(home) / "policy"
        if not _taught(lab, policy) and not lab.dry:
            raise RuntimeError("no learning rate left a policy that is sometimes right and sometimes wrong; see above")
        arms = [(seed, name) for seed in range(lab.sizes.seeds) for name in ("grpo", "pods")]
        for number, (seed, name) in enumerate(arms):
            seconds = lab.left / (len(arms) - number) - START_SECONDS
            if seconds < 10 and not lab.dry:
                lab.record({"arm": name, "seed": seed, "skipped": f"{lab.left:.0f} s left"})
                continue
            limit = 0.0 if lab.dry else min(seconds, lab.found.setdefault("seconds_per_run", round(seconds, 1)))
            lab.record(_trained(lab, policy, Path(home) / f"{name}_{seed}", name, seed, limit), section="runs")


def _taught(lab: Lab, folder: Path) -> bool:
    """Write a policy, pretrained with the first learning rate that leaves its accuracy in range. False if none does."""
    set_matrix_products(tf32=True)  # for the pretraining; a run sets it again
    for peak in lab.sizes.peaks:
        begin = time.perf_counter()
        tokenizer = make_policy.make_tokenizer()
        model = architecture("qwen2", tokenizer, kv_heads=2, seed=0, **dict(lab.sizes.policy)).to(lab.device)
        counts = dict(lab.sizes.lessons)
        size = counts.pop("size")
        lessons = make_policy.Lessons(LEVELS, make_policy.MIXED, **counts)
        pairs = make_policy.course(lessons, seed=0, size=size)
        make_policy.warm_start(model, tokenizer, pairs, size=size, steps=lessons.careful + lessons.mixed, peak=peak)
        model.save_pretrained(folder)
        load_tokenizer("bundled").save_pretrained(folder)
        found = winnow.evaluate(
            str(folder),
            task={"use": "arithmetic", "levels": list(LEVELS)},
            problems=lab.sizes.asked,
            rollouts_per_prompt=2,
            greedy=False,
            device=lab.device.type,
        )
        accuracy = found.metrics["eval/accuracy_sampled"]
        parameters = sum(p.numel() for p in model.parameters())
        seconds = round(time.perf_counter() - begin, 1)
        lab.record({"parameters": parameters, "peak": peak, "accuracy": accuracy, "seconds": seconds}, section="taught")
        if TEACHABLE[0] <= accuracy <= TEACHABLE[1]:
            return True
    return False


def _trained(lab: Lab, policy: Path, output: Path, name: str, seed: int, limit: float) -> Found:
    more, kept = lab.sizes.sampled
    select: Mapping[str, Any] = {"use": "max_variance", "keep_per_prompt": kept}
    sampled = kept if name == "grpo" else more
    keys = {
        "seed": seed,
        "steps": 100_000,  # its seconds end it
        "output": str(output),
        "device": lab.device.type,
        "model": {"path": str(policy), "dtype": "bfloat16"},
        "task": {"use": "arithmetic", "levels": list(LEVELS), "size": 16384 if not lab.dry else 64},
        "rollout": {
            "prompts_per_step": lab.sizes.prompts_per_step,
            "rollouts_per_prompt": sampled,
            "max_rollouts_at_once": lab.sizes.prompts_per_step * sampled,
            "max_new_tokens": 64 if not lab.dry else 4,
        },
        "select": "all" if name == "grpo" else select,
        "update": {"tokens_per_micro_batch": 65536},
        "optimizer": {"learning_rate": 3e-5},
        "evaluate": {
            "every": 10,
            "problems": lab.sizes.asked,
            "rollouts_per_prompt": 4,
            "greedy": False,
            "split": "test",
        },
        "checkpoint": {"every": 0},
    }
    curve = Curve(limit)
    fit(resolve_members(validate(keys), base=output.parent), watch=curve.watch)
    return {
        "arm": name,
        "seed": seed,
        "rollouts_per_prompt": sampled,
        "trained_per_prompt": kept,
        "seconds": round(curve.seconds, 1),
        "steps": len(curve.rewards),
        "updates": curve.updates,
        "tokens_generated": curve.tokens,
        "accuracy": curve.points,
        "reward": curve.rewards,
    }
