"""Does bfloat16 learn as well as float32? Accuracy over seeds, and what rounding does to small updates.

    python benchmarks/precision.py --seeds 8             the first part
    python benchmarks/precision.py --parts expected --model FOLDER --write-as precision_expected
    python benchmarks/precision.py --parts learning --seeds 8 --rates 2e-5 --folder runs/precision   continues
    python benchmarks/precision.py --parts sweep --folder sweeps/precision_published --write-as precision_published

learning   the bundled policy, put on bfloat16's grid as a published checkpoint is, in five ways over seeds: sampled
           held-out accuracy, and how far the weights have followed their masters. The rule was registered
           before the runs, and is in their result (2026-11-28_precision.json).
expected   for the weights of a model folder, put on bfloat16's grid: what a first step in which every master moves by
           the learning rate, up or down at random, does to the weights, without and with an offset. No run is needed.
sweep      the same of a sweep, whose labels are WAY,learning_rate=RATE, or WAY if each has a rate of its own. The best
           rate of a way has the highest accuracy, averaged over the evaluations after step 0. --picture FILE draws how
           far the weights have followed, by step.

Writes benchmarks/results/<date>_precision.json. With --folder, runs are kept there, and finished ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import frame
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from winnow.config_file import load
from winnow.models.load import load as load_policy
from winnow.models.save import write_model_folder
from winnow.recipes import recipe_paths
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members
from winnow.view.drawing import COLORS, new_figure, save_figure, scale_of_shares

CONFIG = recipe_paths()["arithmetic"]
NO_MASTERS = ("model.dtype=bfloat16", "optimizer.master_weights=false", "optimizer.stochastic_rounding=true")
WAYS: Mapping[str, tuple[str, ...]] = {
    "float32": ("model.dtype=float32",),
    "masters": ("model.dtype=bfloat16",),
    "masters_offset": ("model.dtype=bfloat16", "optimizer.master_offset=true"),
    "rounded": NO_MASTERS,
    "nearest": NO_MASTERS,  # with `nearest_rounding`: a trainer that keeps bfloat16 weights alone; winnow refuses it
}
PARTS = ("learning", "expected", "sweep")

CONTRASTS = (
    ("masters_offset", "masters"), ("masters_offset", "float32"), ("rounded", "float32"), ("nearest", "masters")
)  # fmt: skip
TASK = (
    "steps=30", "seed=0", "task.size=1024", "rollout.prompts_per_step=16", "rollout.rollouts_per_prompt=8",
    "optimizer.eps=1e-8", "evaluate.every=10", "evaluate.problems=128", "evaluate.rollouts_per_prompt=2",
    "evaluate.greedy=false", "checkpoint.every=0", "verify.workers=0",
)  # fmt: skip
Weights = dict[str, Tensor]


def main() -> None:
    options = _options()
    report: dict[str, Any] = {}
    if "learning" in options.parts:
        with tempfile.TemporaryDirectory(prefix="winnow-precision-") as temporary:
            folder = Path(options.folder or temporary)
            runs = list(learning(folder, options))
            report["learning"] = {f"{rate:g}": compared(runs, rate) for rate in options.rates}
            report["runs"] = runs
    if "sweep" in options.parts:
        report |= of_sweep(Path(options.folder))
        if options.picture:
            draw(report["sweep"], options.picture)
        options.folder = options.picture = None  # paths of this machine
    if "expected" in options.parts:
        report["expected"] = expected(Path(options.model))
    shown = tuple(name for name in report if name in PARTS)
    frame.finish(options.write_as, report, options, show=shown)


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, threads=1, seeds=(8, "runs of each way"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=("learning",))
    parser.add_argument("--model", help="a folder with *.safetensors, for the part expected")
    parser.add_argument("--write-as", default="precision", help="name of the result")
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-5], help="learning rates")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS))
    parser.add_argument("--first", type=int, default=200, help="the first seed")
    parser.add_argument("--steps", type=int, help="steps, instead of the registered ones")
    parser.add_argument("--problems", type=int, help="held-out problems, instead of the registered ones")
    parser.add_argument("--folder", help="where runs are kept; default: a temporary folder")
    parser.add_argument("--picture", type=Path, help="of the part sweep")
    parser.add_argument("--report", action="store_true", help="report the finished runs of --folder, and start none")
    return frame.parse(parser)


def learning(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per finished run. With --report, runs that are not finished are left out."""
    policy = on_the_grid(folder / "policy")
    for seed in range(options.first, options.first + options.seeds):
        for rate in options.rates:
            for way in options.ways:
                output = folder / f"{way}_{rate:g}_{seed}"
                changes = {"seed": seed, "threads": options.threads, "output": str(output), "model.path": str(policy)}
                changes |= {"optimizer.learning_rate": rate, "steps": options.steps}
                changes |= {"evaluate.problems": options.problems}
                sets = [f"{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]
                if not (output / "finished").exists():
                    if options.report:
                        continue
                    shutil.rmtree(output, ignore_errors=True)  # of a run that was interrupted
                    with nearest_rounding(apply=way == "nearest"):
                        fit(resolve_members(load(CONFIG, [*TASK, *WAYS[way], *sets]), base=CONFIG.parent))
                    (output / "finished").touch()
                yield {"way": way, "rate": rate, "seed": seed, **curves(read_metrics(output))}


def on_the_grid(folder: Path) -> Path:
    """The bundled policy with weights in bfloat16. It is published in float16."""
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        loaded = load_policy("bundled", dtype="bfloat16")
        write_model_folder(loaded.model, loaded.files, folder)
    return folder


def nearest_rounding(*, apply: bool) -> Any:
    """A context in which updates of bfloat16 weights are rounded to nearest."""

    def to_nearest(values: Tensor, random: torch.Generator) -> Tensor:
        return values.detach().to(torch.bfloat16)

    return patch("winnow.learner.adamw.stochastically_rounded", to_nearest) if apply else patch.dict({})


def curves(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What a run logged: accuracy by evaluation, and by step how far the weights have followed."""
    names = {"accuracy": "eval/accuracy_sampled", "followed": "policy/move_followed", "noise": "policy/move_noise"}
    found = {key: [round(row[name], 5) for row in rows if name in row] for key, name in names.items()}
    return {key: values for key, values in found.items() if values}


def of_sweep(folder: Path) -> dict[str, Any]:
    """The finished runs of a sweep, compared at each rate, and the best rate of each way."""
    runs = list[dict[str, Any]]()
    for label, seed, rows in frame.runs_of(folder):
        way, _, rate = label.partition(",learning_rate=")
        runs.append({"way": way, "rate": float(rate or 0), "seed": seed, **curves(rows)})
    whole = max(len(run["accuracy"]) for run in runs)
    runs = [run for run in runs if len(run["accuracy"]) == whole]
    rates = sorted({run["rate"] for run in runs})
    at = {f"{rate:g}" if rate else "own": compared(runs, rate) for rate in rates}
    means = {
        way: {rate: of["accuracy"][way]["mean"] for rate, of in at.items() if way in of["accuracy"]} for way in WAYS
    }
    best = {way: max(of, key=of.__getitem__) for way, of in means.items() if of}
    return {"sweep": at, "best": best, "runs": runs}


def draw(by_rate: Mapping[str, Any], path: Path) -> None:
    """A panel per rate: the share of the exact move that the weights of each way have made, by step."""
    figure = new_figure(2.6 * len(by_rate), 2.6)
    panels = figure.subplots(1, len(by_rate), sharey=True, squeeze=False)[0]
    for panel, (rate, of) in zip(panels, by_rate.items(), strict=True):
        for (way, steps), colour in zip(of["followed"].items(), ("orange", "blue", "green"), strict=False):
            panel.plot(range(1, len(steps) + 1), steps, color=COLORS[colour], label=way.replace("_", " "))
        panel.set_title(f"rate {rate}", fontsize=9)
        panel.set_xlabel("step")
    scale_of_shares(panels[0], "move followed")
    panels[0].legend(fontsize=8)
    save_figure(figure, path)


def compared(runs: list[dict[str, Any]], rate: float) -> dict[str, Any]:
    """Accuracy of each way, and differences paired by seed, with 95% half-widths."""
    of = {
        way: {
            run["seed"]: float(np.mean(run["accuracy"][1:])) for run in runs if (run["way"], run["rate"]) == (way, rate)
        }
        for way in WAYS
    }
    whole = set.intersection(*(set(seeds) for seeds in of.values() if seeds)) if any(of.values()) else set()
    seeds = sorted(whole)
    pairs = {f"{a} - {b}": [of[a][seed] - of[b][seed] for seed in seeds] for a, b in CONTRASTS if of[a] and of[b]}
    followed = {
        way: [float(np.mean(step)) for step in zip(*found, strict=False)]
        for way in WAYS
        if (found := [r["followed"] for r in runs if r["way"] == way and r["rate"] == rate and "followed" in r])
    }
    return {
        "seeds": seeds,
        "accuracy": {way: frame.interval([of[way][seed] for seed in seeds]) for way in WAYS if of[way] and seeds},
        "differences": {name: frame.interval(values) for name, values in pairs.items() if values},
        "followed": {way: [round(step, 4) for step in steps] for way, steps in followed.items()},
    }


EXPECTED_RATES = (1e-6, 2e-6, 3e-6, 1e-5, 3e-5, 1e-4)
ONE_IN = 61  # weights that are read; a prime, so that they are from all columns


def expected(folder: Path) -> dict[str, Any]:
    """What a first step does to the weights of a model, by learning rate."""
    read = list[Tensor]()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            read += [file.get_tensor(name).flatten()[::ONE_IN].bfloat16().float() for name in file.keys()]  # noqa: SIM118
    weights = torch.cat(read)
    weights = weights[weights != 0]
    spacing = 2.0 ** (weights.abs().log2().floor() - 7)
    signs = torch.randint(0, 2, weights.shape, generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    steps = {}
    for rate in EXPECTED_RATES:
        used = (weights + rate * signs).bfloat16().float() - weights
        steps[f"{rate:g}"] = {
            "followed_to_nearest": round(float((used * signs).mean() / rate), 5),
            "changed_to_nearest": round(float((used != 0).float().mean()), 5),
            "noise_with_offset": round(float(spacing.mean() / rate - 1), 1),
            "changed_with_offset": round(float((rate / spacing).clamp(max=1).mean()), 5),
        }
    described = {"standard_deviation": weights.std(), "median": weights.abs().median(), "spacing_mean": spacing.mean()}
    return {"weights": len(weights), **{key: round(float(v), 5) for key, v in described.items()}, "first_step": steps}


if __name__ == "__main__":
    main()
