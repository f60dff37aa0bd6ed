"""Do the first steps of a run contain its end? Weights extrapolated along one direction, against the trained ones.

    winnow sweep configs/sweeps/extrapolate_published.toml
    python benchmarks/extrapolate.py extrapolate_published

RELEX (Wei et al. 2026, arXiv 2605.21468): stack the moves of a matrix from its start at the observed steps as rows,
keep the first singular direction, fit its coefficient by a line in steps with an intercept, and add the direction times
the line's value at a later step to the start. Here every tensor counts, and a checkpoint every few steps in place of
every step. "straight" is the control without a decomposition: the last observed move, times the ratio of steps.

Reads sweeps/NAME, whose runs kept all their checkpoints. At --targets times the last of the --observed steps, both are
evaluated beside the run's own checkpoint, and so are the start and the last observed one, on the same problems. Writes
benchmarks/results/<date>_NAME.json. Of each label and target it has the mean over seeds of extrapolated - trained with
Student's interval, and the share of the mean gain that was recovered.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import frame
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from winnow.evaluation.evaluate import run_evaluation
from winnow.models.folder import weights_folder
from winnow.state.saved_runs import read_manifest
from winnow_lab.sweep_folder import SETTINGS

WEIGHTS = "model.safetensors"
WAYS = ("extrapolated", "straight")
Weights = dict[str, Tensor]


def main() -> None:
    parser = frame.parser(__doc__, observed=(30, "last step that is observed"), problems=256, rollouts=4, threads=2)
    parser.add_argument("sweep", help="the name of the sweep's file")
    parser.add_argument("--folder", type=Path, help="default: sweeps/NAME")
    parser.add_argument("--targets", type=int, nargs="+", default=[2, 4, 6], help="times the last observed step")
    options = frame.parse(parser)
    folder = options.folder or Path("sweeps", options.sweep)
    options.folder = None  # a path of this machine
    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/seed-*/checkpoints")):
        label, seed = path.parts[-3], path.parts[-2].removeprefix("seed-")
        runs.setdefault(label, {})[seed] = measured(path, options)
        print(label, seed, json.dumps(runs[label][seed]["accuracy"]), flush=True)
    report = {"labels": {label: summary(list(seeds.values())) for label, seeds in runs.items()}, "runs": runs}
    frame.finish(options.sweep, report, options, show=("labels",))


def measured(checkpoints: Path, options: Any) -> dict[str, Any]:
    """Accuracies of one run by step: trained, and in both ways; and how straight its path is."""
    saved = {int(path.name.removeprefix("step-")): path for path in checkpoints.glob("step-*")}
    steps = sorted(step for step in saved if 0 < step <= options.observed)
    targets = [factor * options.observed for factor in options.targets]
    if missing := {options.observed, *targets} - saved.keys():
        raise SystemExit(f"{checkpoints.parent.name} kept no checkpoint of the steps {sorted(missing)}")
    start = load_file(weights_folder(read_manifest(checkpoints.parent).config["model"]["path"]) / WEIGHTS)
    observed = [load_file(saved[step] / WEIGHTS) for step in steps]
    paths = {
        name: path_of(torch.stack([weights[name].float() - start[name] for weights in observed]), steps)
        for name in start
    }
    accuracy: dict[str, dict[int, float]] = {"trained": {}, **{way: {} for way in WAYS}}
    beside: dict[str, dict[int, dict[str, float]]] = {way: {} for way in WAYS}
    config = checkpoints.parents[1] / SETTINGS
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        shutil.copytree(saved[options.observed], model, ignore=shutil.ignore_patterns("trainer.*", "manifest.json"))
        save_file(start, model / WEIGHTS, {"format": "pt"})
        accuracy["trained"][0] = evaluated(model, config, options)
        for step in (options.observed, *targets):
            accuracy["trained"][step] = evaluated(saved[step], config, options)
        for target in targets:
            trained = load_file(saved[target] / WEIGHTS)
            for way in WAYS:
                moves = {name: move(path, way, target) for name, path in paths.items()}
                save_file({name: start[name].float() + moves[name] for name in start}, model / WEIGHTS)
                accuracy[way][target] = evaluated(model, config, options)
                beside[way][target] = likeness(moves, {name: trained[name].float() - start[name] for name in start})
    return {"accuracy": accuracy, "observed": steps, "path": straightness(list(paths.values())), "moves": beside}


class Trajectory(NamedTuple):
    """The moves of one tensor, as rows; the shares of the first direction and of the line that fits its coefficient."""

    moves: Tensor  # [T, ...] float32, from the start
    steps: Sequence[int]
    weights: np.ndarray  # [2, T]: row 0 times a step, plus row 1, are the weights of the moves in a prediction
    energy: float  # sum of squares of the moves
    rank_one: float  # part of the energy in the first direction
    fit: float  # R^2 of the line of its coefficient


def path_of(moves: Tensor, steps: Sequence[int]) -> Trajectory:
    """Fit a tensor's path. The first left singular vector comes from the [T, T] products of the moves."""
    rows = moves.flatten(1)
    values, vectors = np.linalg.eigh((rows @ rows.T).double().numpy())
    energy, largest, vector = float(values.clip(0).sum()), float(values[-1]), vectors[:, -1]
    if largest <= 0:  # the tensor did not move
        return Trajectory(moves, steps, np.zeros((2, len(steps))), 0.0, 1.0, 1.0)
    line = np.polyfit(steps, vector, 1)
    left, spread = vector - np.polyval(line, steps), vector - vector.mean()
    fit = 1 - float(left @ left / (spread @ spread))
    return Trajectory(moves, steps, np.outer(line, vector), energy, largest / energy, fit)


def move(path: Trajectory, way: str, target: int) -> Tensor:
    """The predicted move of a tensor at a later step."""
    if way == "straight":
        return path.moves[-1] * (target / path.steps[-1])
    weights = torch.from_numpy(target * path.weights[0] + path.weights[1]).float()
    predicted: Tensor = torch.tensordot(weights, path.moves, dims=1)
    return predicted


def likeness(predicted: Weights, trained: Weights) -> dict[str, float]:
    """Cosine of two moves of all weights, and the first one's length over the second one's."""
    inner = sum(float((predicted[name] * trained[name]).sum()) for name in trained)
    one, other = (float(sum(move.square().sum() for move in moves.values())) ** 0.5 for moves in (predicted, trained))
    return {"cosine": round(inner / (one * other), 4), "length": round(one / other, 4)}


def straightness(paths: Sequence[Trajectory]) -> dict[str, float]:
    """Means over the tensors, weighted by their energy."""
    energy = [path.energy for path in paths]
    return {
        "rank one": round(float(np.average([path.rank_one for path in paths], weights=energy)), 4),
        "fit": round(float(np.average([path.fit for path in paths], weights=energy)), 4),
    }


def evaluated(model: Path, config: Path, options: Any) -> float:
    """Sampled accuracy on held-out problems."""
    settings = {"problems": options.problems, "rollouts_per_prompt": options.rollouts, "greedy": False}
    done = run_evaluation(str(model), config, threads=options.threads, further=False, **settings)
    return round(done.tasks[0].metrics["eval/accuracy_sampled"], 5)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per way and target: accuracy over seeds, difference from the trained checkpoint, share of the gain recovered."""
    trained = [run["accuracy"]["trained"] for run in runs]
    found: dict[str, Any] = {"trained": {step: statistics.mean(of[step] for of in trained) for step in trained[0]}}
    for way in WAYS:
        for target in runs[0]["accuracy"][way]:
            ours = np.array([run["accuracy"][way][target] for run in runs])
            theirs, start = (np.array([of[step] for of in trained]) for step in (target, 0))
            found[f"{way} at {target}"] = {
                "accuracy": round(float(ours.mean()), 5),
                "minus trained": frame.interval((ours - theirs).tolist()),
                "recovered": round(float((ours - start).mean() / (theirs - start).mean()), 4),
            }
    return found


if __name__ == "__main__":
    main()
