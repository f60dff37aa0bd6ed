"""Planned and measured memory of the recipe smollm2_arithmetic, by precision: what `winnow check` prints of it.

    python benchmarks/memory_plan.py                   needs WINNOW_PUBLISHED; ten minutes on two idle cores

Each precision has a process of its own, which trains for --steps steps. "grown" is its peak memory (VmHWM) minus its
use before the model was loaded (VmRSS), with freed memory returned to the system at once. The plan is an upper limit:
its largest micro-batch has update.tokens_per_micro_batch tokens, and "rows" and "longest" are those of the step that
grew the peak. Writes benchmarks/results/<date>_memory_plan.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import frame

RECIPE = "smollm2_arithmetic"
MIB = 2**20


def main() -> None:
    made = frame.parser(__doc__, steps=2, prompts=(16, "prompts per step, of 16 rollouts, of which 4 are trained on"))
    made.add_argument("--model", default="published")
    made.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = frame.parse(made)
    if options.child:
        print(json.dumps(measured(options)))
        return
    report = {}
    for dtype in options.dtype:
        command = [sys.executable, __file__, "--child", "--dtype", dtype, "--model", options.model]
        command += ["--steps", str(options.steps), "--prompts", str(options.prompts)]
        done = subprocess.run(command, env=os.environ | frame.AT_ONCE, stdout=subprocess.PIPE, text=True, check=True)
        report[dtype] = json.loads(done.stdout.splitlines()[-1])
    del options.child
    frame.finish("memory_plan", {"by precision": report}, options, show=("by precision",))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Some steps as in `fit`, without evaluations and checkpoints, in this process."""
    import torch

    from winnow.config_file import load
    from winnow.core.plan import plan
    from winnow.core.step import train_step
    from winnow.memory.usage import process_memory
    from winnow.recipes import recipe_paths
    from winnow.training.budget import plan_devices
    from winnow.training.build import build
    from winnow.training.resolve import resolve_members

    import_what_computes()
    recipe, device = recipe_paths()[RECIPE], torch.device("cpu")
    changes = {
        "device": "cpu",
        "model": {"path": options.model, "dtype": options.dtype[0]},
        "rollout": {"prompts_per_step": options.prompts},
        "verify": {"workers": 0},
    }
    members = resolve_members(load(recipe, changes=changes), base=recipe.parent)
    with tempfile.TemporaryDirectory(prefix="winnow-memory-plan-") as folder:
        before = process_memory()["VmRSS"]
        built = build(members, folder=Path(folder), device=device)
        grown, of_peak = 0, dict[str, float]()
        for step in range(options.steps):
            plan(built.run, built.progress, step)
            metrics = train_step(built.run, built.progress, step).metrics
            if (now := process_memory()["VmHWM"] - before) > grown:
                grown = now
                of_peak = {"rows": metrics["select/trained"], "longest": metrics["rollout/length_max"]}
        prompt = max(len(p.tokens) for p in built.run.prompts.prompts)
        planned = plan_devices(members, device, longest_prompt=prompt)
        built.close()
    return {
        "plan / grown": round(planned.need("cpu") / grown, 3),
        "planned MiB": round(planned.need("cpu") / MIB),
        "grown MiB": round(grown / MIB),
        "parts MiB": {f"{part.phase}: {part.name}": round(part.bytes / MIB) for part in planned.parts},
        "longest prompt": prompt,
        **of_peak,
    }


def import_what_computes() -> None:
    """Import and use once what the steps need, so that it is not part of the growth."""
    import torch
    import transformers

    shape = {"hidden_size": 28, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 8}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**shape, **heads))
    model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    torch.optim.AdamW(model.parameters(), fused=True).step()


if __name__ == "__main__":
    main()
