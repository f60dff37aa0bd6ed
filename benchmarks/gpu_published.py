"""A published model learns arithmetic on the GPU in bfloat16: PODS against all of its rollouts, with seconds by phase.

The recipe is smollm2_arithmetic, whose model is the folder that WINNOW_PUBLISHED names. scripts/test-gpu sets it, if
the file that `scripts/test-gpu --pack` packed is there.
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_lab import Lab
from trl_sides import hash_reward

from winnow.config_file import load
from winnow.core.events import Event
from winnow.recipes import recipe_paths
from winnow.records import StepReport
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

RECIPE = recipe_paths()["smollm2_arithmetic"]
FEWEST_SECONDS = 20.0  # for the start of a run, some steps and two evaluations
END_SECONDS = 5.0  # of a run after its last step: an evaluation and a checkpoint
FIRST = 3  # steps that a median omits, in which kernels are loaded and memory is allocated
COUNTS = ("budget/rollouts", "budget/tokens_generated", "select/trained")
SAMPLED = "eval/accuracy_sampled"
GAPS = ("policy/logprob_gap_mean", "policy/logprob_gap_p999", "policy/ratio_outside")
Row = Mapping[str, float]


def published(lab: Lab) -> None:
    """One record per arm: the curve of held-out accuracy, seconds by phase, counts, memory, and parity with the engine.

    The arms share the time equally. A run whose share ends early stops after a step, and its record has fewer steps.
    """
    arms = lab.sizes.published
    for number, (sampled, trained) in enumerate(arms):
        for_later = lab.left * (1 - 1 / (len(arms) - number))
        point = {"sampled": sampled, "trained": trained, "model": model_of(lab)}
        if lab.left - for_later < FEWEST_SECONDS and not lab.dry:
            lab.record(point | {"skipped": f"{lab.left - for_later:.0f} s left"})
            continue
        with TemporaryDirectory(prefix="winnow-gpu-") as folder:
            changes = keys(lab, Path(folder) / "run", sampled, trained)
            members = resolve_members(load(RECIPE, changes=changes), base=RECIPE.parent)
            fit(members, watch=until_late(lab, for_later + END_SECONDS))
            lab.record(point | summary(read_metrics(Path(changes["output"]))))


def model_of(lab: Lab) -> str:
    """The published model; for a dry run without it, the bundled policy."""
    return "bundled" if lab.dry and "WINNOW_PUBLISHED" not in os.environ else "published"


def keys(lab: Lab, output: Path, sampled: int, trained: int) -> dict[str, Any]:
    """What differs from the recipe. The dry run has one prompt, responses of 4 tokens, and trains all that it keeps."""
    rollout: dict[str, Any] = {"rollouts_per_prompt": sampled, "max_rollouts_at_once": 1024}
    few: dict[str, Any] = {
        "rollout": rollout | {"prompts_per_step": 1, "max_new_tokens": 4},
        "evaluate": {"problems": 1, "rollouts_per_prompt": 1},
        "reward": {"use": hash_reward},
        "advantage": {"use": "raw"},  # rollouts of few tokens may all be alike
        "verify": {"workers": 0},
    }
    return {
        "output": str(output),
        "steps": lab.sizes.published_steps,
        "device": lab.device.type,
        "model": {"path": model_of(lab), "dtype": "bfloat16"},
        "rollout": rollout,
        "select": {"use": "max_variance", "keep_per_prompt": trained} if trained < sampled else "all",
        "update": {"tokens_per_micro_batch": 32768},  # 21 GiB of activations
        "checkpoint": {"every": 0},
        **(few if lab.dry else {}),
    }


def until_late(lab: Lab, seconds: float) -> Callable[[Event], None]:
    """A watcher that stops a run after a step, as an operator would, when the part has so many seconds left."""
    asked = list[bool]()

    def watch(event: Event) -> None:
        if isinstance(event, StepReport) and lab.left < seconds and not asked and not lab.dry:
            asked.append(True)
            signal.raise_signal(signal.SIGTERM)

    return watch


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Of the rows of a run. Seconds and counts are medians over the steps, and memory is the largest of any step."""
    steps = [row for row in rows if "seconds/step" in row]
    later = steps[FIRST:] or steps
    seconds = sorted({name for row in later for name in row if name.startswith("seconds/")})
    memory = sorted({name for row in steps for name in row if name.startswith("memory/")})
    return {
        "steps": len(steps),
        "accuracy": [(int(row["step"]), row[SAMPLED]) for row in rows if SAMPLED in row],
        "reward": [round(row["reward/mean"], 4) for row in steps],
        "seconds": {name.removeprefix("seconds/"): _median(later, name) for name in seconds},
        "counts": {name: _median(later, name) for name in COUNTS},
        "memory_mib": {name.removeprefix("memory/"): max(row[name] for row in steps if name in row) for name in memory},
        "largest_gaps": {name: max((row[name] for row in steps if name in row), default=None) for name in GAPS},
        "parity_alarms": sum(row.get("policy/parity_alarm", 0.0) for row in steps),
    }


def _median(rows: Sequence[Row], name: str) -> float:
    """Over the rows that have it, and of 0 for the others."""
    return round(statistics.median(row.get(name, 0.0) for row in rows), 4)
