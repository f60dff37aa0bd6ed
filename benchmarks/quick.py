"""The settings of each benchmark's quick form (--quick), with which it takes seconds and measures nothing.

A test runs the quick form of every benchmark that a page cites. Settings replace the defaults of options, those that
are required included, so that further options on the command line still count.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
BUNDLED = REPOSITORY / "src" / "winnow" / "models" / "bundled"


def settings_of(name: str) -> dict[str, Any]:
    """The quick settings of a benchmark. Raises SystemExit for one without a quick form."""
    if name not in SETTINGS:
        raise SystemExit(f"benchmarks/{name}.py has no quick form")
    return {option: value() if callable(value) else value for option, value in SETTINGS[name].items()}


def folder() -> Path:
    """A new folder, which is removed when the process ends."""
    _kept.append(tempfile.TemporaryDirectory(prefix="winnow-quick-"))
    return Path(_kept[-1].name)


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
max_hours = 1
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
PILOTS = SWEEP.replace(RATE, "").replace('"grpo_16"', '"grpo_16,learning_rate=0.001"')
PILOTS += '[grid]\n"optimizer.learning_rate" = [5e-4, 1e-3]\n'
SAVED = SWEEP.replace("steps = 12", 'steps = 12\n"checkpoint.every" = 2\n"checkpoint.keep_last" = 9')
COSTS = REPOSITORY / "configs" / "costs" / "two_cpu_cores.json"
_kept: list[tempfile.TemporaryDirectory[str]] = []
SIZES = SWEEP.replace("grpo_16", "recipe").replace("pods_64_16", "auto") + 'plan = { use = "auto", every = 4 }\n'
SETTINGS: Mapping[str, Mapping[str, Any | Callable[[], Any]]] = {
    "auto_sizes": {"sweep": "auto_arithmetic", "folder": lambda: sweep(SIZES), "choosing": [0]},
    "claims": {"sweep": "claim_03_rollouts", "folder": sweep, "costs": [str(COSTS)]},
    "chaos": {"kills": 1, "configs": ["grpo_pods"]},
    "demo": {"folder": lambda: sweep() / "grpo_16"},
    "engines": {"rounds": 1, "prompts": 1, "rollouts": 2, "tokens": 2, "lengths": ["fixed"]},
    "extrapolate": {
        "sweep": "extrapolate_arithmetic",
        "folder": lambda: sweep(SAVED),
        "observed": 4,
        "targets": [2],
        "problems": 4,
    },
    "precision": {
        "parts": ["learning", "expected"],
        "seeds": 1,
        "steps": 1,
        "problems": 4,
        "ways": ["masters", "masters_offset"],
        "model": str(BUNDLED),
    },
    "forecast": {"split": "2026-11-24"},
    "identity": {"before": REPOSITORY, "after": REPOSITORY, "only": ["grpo"]},
    "memory_plan": {"model": "bundled", "steps": 1, "prompts": 2, "dtype": ["float32"]},
    "parity": {"prompts": 2, "rollouts": [1], "tokens": 4},
    "pilots": {"sweep": "claim_02_pilots", "folder": lambda: sweep(PILOTS), "seconds": 0.1},
    "planned_trl": {"folder": folder, "steps": 3, "rollouts": 4, "prompts": 4, "window": 3},
    "played": {"sweep": "guess_number", "folder": sweep},
    "published": {"named": "takes_the_place_of_the_template"},
    "step_costs": {"steps": 6},
    "step_parts": {"rounds": 1, "prompts": 2, "rollouts": 2, "keep": 2, "prompt_tokens": 4, "tokens": 3, "threads": 1},
    "trl_race": {"folder": folder, "steps": 1, "every": 1, "prompts": 1, "problems": 2},
    "trl_step": {"rounds": 2, "prompts": 4, "rollouts": [4, 8], "keep": 4, "fixed_tokens": 16},
}
