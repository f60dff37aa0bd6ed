"""The settings of each benchmark's quick form (--quick), with which it takes seconds and measures nothing.

A test runs the quick form of every benchmark that a page cites. Settings replace the defaults of options, those that
are required included, so that further options on the command line still count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
QUESTIONS = "WINNOW_QUICK_QUESTIONS"  # set in the environment, so that a benchmark's processes inherit it
BUNDLED = REPOSITORY / "src" / "winnow" / "models" / "bundled"
REAL = Path(os.environ.get("WINNOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


def settings_of(name: str) -> dict[str, Any]:
    """The quick settings of a benchmark. Raises SystemExit for one without a quick form."""
    if name not in SETTINGS:
        raise SystemExit(f"benchmarks/{name}.py has no quick form")
    return {option: value() if callable(value) else value for option, value in SETTINGS[name].items()}


def folder() -> Path:
    """A new folder, which is removed when the process ends."""
    _kept.append(tempfile.TemporaryDirectory(prefix="winnow-quick-"))
    return Path(_kept[-1].name)


def questions() -> Path:
    """A folder with gsm8k_train.jsonl and gsm8k_test.jsonl of 64 questions each, the same for all ranks."""
    if QUESTIONS in os.environ:
        return Path(os.environ[QUESTIONS])
    data = folder()
    os.environ[QUESTIONS] = str(data)
    for split in ("train", "test"):
        rows = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(64)]
        (data / f"gsm8k_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return data


def sweep(text: str | None = None) -> Path:
    """The folder of a sweep of two labels of claims, with two seeds of a few steps each, which it runs now."""
    place = folder()
    (place / "sweep.toml").write_text(text or SWEEP, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "winnow", "sweep", "sweep.toml"], cwd=place, check=True)
    return place / "runs"


SWEEP = """
config = "arithmetic"
output = "runs"
seeds = [0, 1]
baseline = "grpo_16"

[set]
steps = 12
threads = 1
device = "cpu"
"verify.workers" = 0
"rollout.prompts_per_step" = 8
"optimizer.learning_rate" = 1e-3
"evaluate.every" = 4
"evaluate.problems" = 32

[variants.grpo_16]
"rollout.rollouts_per_prompt" = 4
select = "all"

[variants.pods_64_16]
"rollout.rollouts_per_prompt" = 8
select = { use = "max_variance", keep_per_prompt = 4 }
"""
RATE = '"optimizer.learning_rate" = 1e-3\n'
PILOTS = SWEEP.replace(RATE, "").replace('"grpo_16"', '"grpo_16,learning_rate=0.001"') + (
    '[grid]\n"optimizer.learning_rate" = [5e-4, 1e-3]\n'
)
COSTS = REPOSITORY / "configs" / "costs" / "two_cpu_cores.json"
_kept: list[tempfile.TemporaryDirectory[str]] = []
SETTINGS: Mapping[str, Mapping[str, Any | Callable[[], Any]]] = {
    "ahead": {"part": "speed", "seeds": 1, "rounds": 1, "steps": 4},
    "alarms": {"folder": folder, "seeds": 1, "ill": ["diverged"], "only": []},
    "allocation_speed": {"rounds": 1},
    "allocator_variance": {"prompts": 4, "measure": 4, "pool": 8, "probe": 2, "resamples": 4, "rollouts": [2]},
    "budget_signal": {"steps": 2, "seeds": 2},
    "budgets": {"sweep": "budget_screen", "folder": sweep},
    "claims": {"sweep": "claim_03_rollouts", "folder": sweep, "costs": [str(COSTS)]},
    "chaos": {"kills": 1, "configs": ["grpo_pods"]},
    "coverage": {"repetitions": 100, "resampled": 100},
    "decoding": {"rounds": 1, "tokens": 2, "rows": [4]},
    "demo": {"folder": lambda: sweep() / "grpo_16"},
    "engines": {"rounds": 1, "prompts": 1, "rollouts": 2, "tokens": 2, "lengths": ["fixed"]},
    "precision": {
        "parts": ["learning", "moves", "expected", "cost"],
        "seeds": 1,
        "steps": 1,
        "problems": 4,
        "moves": 2,
        "ways": ["masters", "masters_offset"],
        "model": str(BUNDLED),
    },
    "engine_precision": {"problems": 4, "prompts": 2, "steps": [0, 1]},
    "equal_groups": {"trials": 2},
    "false_alarms": {"trials": 2},
    "forecast": {"folder": lambda: [str(sweep())], "split": "2026-11-23"},
    "generation_speed": {"rounds": 1, "before": REPOSITORY, "after": REPOSITORY, "shapes": ["bundled"]},
    "gradient_noise": {"prompts": 16, "rollouts": 16, "resamples": 4},
    "gvm_variance": {"prompts": 8, "measure": 4, "pool": 8, "probe": 2, "probes": 4, "resamples": 4, "rollouts": [2]},
    "identity": {"before": REPOSITORY, "after": REPOSITORY, "only": ["grpo"]},
    "log_size": {"prompts": 2, "rollouts": 4, "data": questions, "tokenizer": BUNDLED},
    "math_equivalence": {"data": REAL},
    "math_wrong_verdicts": {"data": REAL, "per_kind": 1},
    "memory_plan": {"model": "bundled", "steps": 1, "prompts": 2, "dtype": ["float32"]},
    "off_policy": {"seeds": 2, "updates": 4, "lags": [0, 1], "rates": [1.0]},
    "parity": {"prompts": 2, "rollouts": [1, 2]},
    "pilots": {"sweep": "claim_02_pilots", "folder": lambda: str(sweep(PILOTS))},
    "planned_trl": {"folder": folder, "steps": 3, "rollouts": 4, "prompts": 4, "window": 3},
    "planner": {"sweeps": lambda: [str(sweep())], "baseline": "grpo_16", "costs": str(COSTS), "steps": 4},
    "played": {"sweep": "guess_number", "folder": sweep},
    "ppo": {"folder": folder, "seeds": 1, "variants": ["grpo"]},
    "proof": {"cases": 1, "folder": folder},
    "published": {"named": "takes_the_place_of_the_template"},
    "rank_loading": {"ranks": [2], "dtype": ["float32"]},
    "rank_memory": {"steps": 1, "prompts": 2, "rollouts": 2, "tokens": 4, "data": questions},
    "sandbox": {"runs": 4, "alone": 2},
    "scale": {"rounds": 1, "tokens": 2**19, "prompts": 100},
    "scale_ranks": {"rounds": 1, "tokens": 2**19, "data": questions},
    "slow_turns": {"rounds": 1, "rollouts": 2, "turns": 2, "seconds": 0.01},
    "step_costs": {"steps": 6},
    "step_overhead": {"steps": 2},
    "step_times": {"prompts": 2, "shapes": ["1.5B"]},
    "tracking": {"steps": 10, "blocks": 1},
    "tree_speed": {"before": REPOSITORY, "after": REPOSITORY, "rounds": 1, "steps": 3},  # the first two are omitted
    "trl_pods": {"steps": 3, "reference_steps": 0, "prompts": 2, "rollouts": 4, "keep": 2, "max_tokens": 8},
    "trl_step": {"rounds": 2, "prompts": 4, "rollouts": [4, 8], "keep": 4, "fixed_tokens": 16, "seconds": 6.0},
    "turns": {"rounds": 1, "prompts": 2, "rollouts": 2, "turns": 2},
    "update_cost": {"rounds": 1, "prompts": 1, "rollouts": 4, "prompt_tokens": 4, "tokens": 4},
    "waiting": {"steps": 3, "rounds": 1},
}
