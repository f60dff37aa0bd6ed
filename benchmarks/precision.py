"""Does bfloat16 learn as well as float32? Accuracy over seeds, and what rounding does to small updates.

    python benchmarks/precision.py --seeds 8             the first part
    python benchmarks/precision.py --parts expected --model FOLDER --write-as precision_expected
    python benchmarks/precision.py --parts cost --model FOLDER --write-as precision_cost
    python benchmarks/precision.py --parts learning --seeds 8 --rates 2e-5 --folder runs/precision   continues
    python benchmarks/precision.py --parts sweep --folder sweeps/precision_published --write-as precision_published

learning   the bundled policy, put on bfloat16's grid as a published checkpoint is, in five ways over seeds: sampled
           held-out accuracy, and how far the weights have followed their masters. REGISTERED, below, says what decides.
expected   for the weights of a model folder, put on bfloat16's grid: what a first step in which every master moves by
           the learning rate, up or down at random, does to the weights, without and with an offset. No run is needed.
sweep      the same of a sweep, whose labels are WAY,learning_rate=RATE, or WAY if each has a rate of its own. The best
           rate of a way has the highest accuracy, averaged over the evaluations after step 0. --picture FILE draws how
           far the weights have followed, by step.
cost       seconds of the offset, of an optimizer step, and of measuring how far the weights have followed.

Writes benchmarks/results/<date>_precision.json. With --folder, runs are kept there, and finished ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import frame
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from winnow.algos.intervals import over_seeds
from winnow.config_file import load
from winnow.learner.learner import make_learner
from winnow.models.load import load as load_policy
from winnow.models.save import write_model_folder
from winnow.recipes import recipe_paths
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.load import load_model
from winnow.training.resolve import resolve_members
from winnow.view.drawing import BLUE, GREEN, ORANGE, new_figure, save_figure, scale_of_shares

CONFIG = recipe_paths()["arithmetic"]
NO_MASTERS = ("model.dtype=bfloat16", "optimizer.master_weights=false", "optimizer.stochastic_rounding=true")
WAYS: Mapping[str, tuple[str, ...]] = {
    "float32": ("model.dtype=float32",),
    "masters": ("model.dtype=bfloat16",),
    "masters_offset": ("model.dtype=bfloat16", "optimizer.master_offset=true"),
    "rounded": NO_MASTERS,
    "nearest": NO_MASTERS,  # with `nearest_rounding`: a trainer that keeps bfloat16 weights alone; winnow refuses it
}
PARTS = ("learning", "expected", "sweep", "cost")

REGISTERED = """
Written before any run of the seeds 200 and above. Pilots (seed 100, 20 steps, 128 x 2 held-out rollouts) chose the
rate. At 1e-5, masters had followed 4, 15, 26, 32 and 49% after 1, 5, 9, 13 and 17 steps, and accuracy rose from 34 to
38% (float32: 41%). At 5e-5 they had followed 15, 55, 82, 95 and 98%, and it rose to 73% (float32: 72%). The published
model had followed 2.3, 8.4 and 28% after 1, 5 and 20 steps at 1e-5. So the rate is 2e-5, with AdamW's eps at 1e-8, so
that a step is about the rate.
Runs: 30 steps of 16 prompts, 8 rollouts each, 4 trained on (PODS); all ways of a seed, then the next seed, from 200 on.
They end at a fixed time, never by a result. A seed without all ways is dropped.
Measure: sampled held-out accuracy, mean of the evaluations after 10, 20 and 30 steps; 128 problems x 2 rollouts.
Contrasts, paired by seed, with 95% intervals (t): masters_offset - masters, masters_offset - float32, rounded -
float32, nearest - masters.
Rule: the offset becomes the default for checkpoints on the grid if the first interval is above 0 here and for the
published model, and the second is above -3 points here and not below 0 there. With fewer than 6 seeds nothing changes.
"""
CONTRASTS = (
    ("masters_offset", "masters"),
    ("masters_offset", "float32"),
    ("rounded", "float32"),
    ("nearest", "masters"),
)
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
            report["registered"] = REGISTERED.strip().splitlines()
            report["learning"] = {f"{rate:g}": compared(runs, rate) for rate in options.rates}
            report["runs"] = runs
    if "sweep" in options.parts:
        report |= of_sweep(Path(options.folder))
        if options.picture:
            draw(report["sweep"], options.picture)
        options.folder = options.picture = None  # paths of this machine
    if "expected" in options.parts:
        report["expected"] = expected(Path(options.model))
    if "cost" in options.parts:
        report["cost"] = cost(options.model)
    shown = tuple(name for name in report if name in PARTS)
    frame.finish(options.write_as, report, options, show=shown)


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, threads=1, seeds=(8, "runs of each way"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=("learning",))
    parser.add_argument("--model", help="a folder with *.safetensors, for the parts expected and cost")
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
                yield {"way": way, "rate": rate, "seed": seed, **curves(output)}


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


def curves(run: Path) -> dict[str, Any]:
    """What a run logged: accuracy by evaluation, and by step how far the weights have followed."""
    rows = read_metrics(run)
    names = {"accuracy": "eval/accuracy_sampled", "followed": "policy/move_followed", "noise": "policy/move_noise"}
    found = {key: [round(row[name], 5) for row in rows if name in row] for key, name in names.items()}
    return {key: values for key, values in found.items() if values}


def interval(values: list[float]) -> dict[str, float]:
    """Mean over seeds, and its 95% interval."""
    low, high = over_seeds(np.array(values))
    return {"mean": round(float(np.mean(values)), 4), "low": round(low, 4), "high": round(high, 4)}


def of_sweep(folder: Path) -> dict[str, Any]:
    """The finished runs of a sweep, compared at each rate, and the best rate of each way."""
    runs = list[dict[str, Any]]()
    for path in sorted(folder.glob("*/seed-*/metrics.jsonl")):
        way, _, rate = path.parts[-3].partition(",learning_rate=")
        found = curves(path.parent)
        runs.append({"way": way, "rate": float(rate or 0), "seed": int(path.parts[-2].removeprefix("seed-")), **found})
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
        for (way, steps), colour in zip(of["followed"].items(), (ORANGE, BLUE, GREEN), strict=False):
            panel.plot(range(1, len(steps) + 1), steps, color=colour, label=way.replace("_", " "))
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
        "accuracy": {way: interval([of[way][seed] for seed in seeds]) for way in WAYS if of[way] and seeds},
        "differences": {name: interval(values) for name, values in pairs.items() if values},
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


def cost(path: str, rounds: int = 5) -> dict[str, float]:
    """Medians of seconds, with gradients of ones; the offset is made once."""
    config = resolve_members(load(CONFIG, [*WAYS["masters"], f"model.path={json.dumps(path)}"]), CONFIG.parent).config
    loaded = load_model(config, torch.device("cpu"), None, None, masters=True)
    learner = make_learner(config, loaded, needs=(), resumed=False)
    made = learner._optimizer
    step, followed = list[float](), list[float]()
    _, offset = frame.timed(lambda: made._adamw.offset_masters("cost"))
    for _ in range(rounds):
        for total, parameter in learner.sums():
            total.grad = torch.ones(parameter.shape)
        step.append(frame.timed(made.step)[1])
        followed.append(frame.timed(made.moved)[1])
    return {"offset": round(offset, 4), "step": frame.median(step), "move_followed": frame.median(followed)}


if __name__ == "__main__":
    main()
