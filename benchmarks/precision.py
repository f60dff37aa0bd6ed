"""Does bfloat16 learn as well as float32? Accuracy over seeds, and displacement of weights at a small learning rate.

    python benchmarks/precision.py                       both parts: six runs of two to four minutes, then two minutes
    python benchmarks/precision.py --parts moves         one of them
    python benchmarks/precision.py --steps 8 --problems 64 --seeds 1 --moves 5

accuracy   the recipe arithmetic, in float32 and in bfloat16 with float32 masters, over seeds: sampled held-out
           accuracy before and after
moves      the same task at a learning rate of 1e-6, with AdamW's eps at its default of 1e-8, for 50 steps, in float32,
           with masters, and with updates rounded at random: the share of trained parameters that moved, and how
           far on average. Each way is run separately, and also with float32's gradients, so that only the rounding
           differs. Without masters, parameters move by whole steps of bfloat16's spacing or not at all. For them, the
           mean displacement in the direction of float32's should agree.

Writes benchmarks/results/<date>_precision.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import frame
import torch
from learning import interval
from torch import Tensor

from winnow.config_file import load
from winnow.learner.learner import Learner, make_learner
from winnow.models.device import keeps_masters
from winnow.recipes import recipe_paths
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.probe import plan
from winnow.training.setup.build import Built, build
from winnow.training.setup.load import load_model
from winnow.training.setup.resolve import resolve_members
from winnow.training.step import train_step

CONFIG = recipe_paths()["arithmetic"]
WAYS: Mapping[str, tuple[str, ...]] = {
    "float32": ("model.dtype=float32",),
    "masters": ("model.dtype=bfloat16",),
    "rounded": ("model.dtype=bfloat16", "optimizer.master_weights=false", "optimizer.stochastic_rounding=true"),
}
SMALL = ("optimizer.learning_rate=1e-6", "optimizer.eps=1e-8", "evaluate.problems=1", "evaluate.rollouts_per_prompt=1")
Weights = dict[str, Tensor]


def main() -> None:
    options = _options()
    report: dict[str, Any] = {}
    if "accuracy" in options.parts:
        report["accuracy"] = {way: accuracy(way, options) for way in ("float32", "masters")}
    if "moves" in options.parts:
        report["moves"] = moves(options)
    frame.finish("precision", report, options, show=tuple(report))


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, threads=1, seeds=(3, "runs of each way"), moves=(50, "steps at the small rate"))
    parser.add_argument("--parts", nargs="+", choices=("accuracy", "moves"), default=("accuracy", "moves"))
    parser.add_argument("--steps", type=int, help="steps, instead of the configuration's")
    parser.add_argument("--problems", type=int, help="held-out problems, instead of the configuration's")
    return frame.parse(parser)


def accuracy(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sampled held-out accuracy before and after, over the seeds, with 95% half-widths."""
    runs = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory(prefix="winnow-precision-") as folder:
            changes = {"steps": options.steps, "evaluate.problems": options.problems, "evaluate.greedy": False}
            changes |= {"seed": seed, "threads": options.threads, "output": f"{folder}/run"}
            sets = [f"{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]
            fit(resolve_members(load(CONFIG, [*sets, *WAYS[way]]), base=CONFIG.parent))
            rows = read_metrics(Path(folder) / "run")
        found = [row["eval/accuracy_sampled"] for row in rows if "eval/accuracy_sampled" in row]
        runs.append({"start": found[0], "end": found[-1]})
        print(way, seed, runs[-1], flush=True)
    return {"runs": runs, **{key: interval([run[key] for run in runs]) for key in ("start", "end")}}


def moves(options: argparse.Namespace) -> dict[str, Any]:
    """How far the weights move in each way, in separate runs and under float32's gradients."""
    given: list[list[Tensor]] = []
    own = {way: _own_run(way, options, given if way == "float32" else None) for way in WAYS}
    same = {way: _under(way, given, options) for way in WAYS}
    return {
        name: {way: _measured(moved, found["float32"]) for way, moved in found.items()}
        for name, found in (("own_runs", own), ("under_equal_gradients", same))
    }


def _measured(moved: Weights, exact: Weights) -> dict[str, float]:
    """`along` is the mean displacement in the direction of float32's, as a share of float32's."""
    d, reference = (torch.cat([w[name].flatten().double() for name in exact]) for w in (moved, exact))
    return {
        "share_moved": round(float((d != 0).double().mean()), 5),
        "mean_displacement": float(d.abs().mean()),
        "along": round(float((d * reference.sign()).mean() / reference.abs().mean()), 4),
    }


def _own_run(way: str, options: argparse.Namespace, gradients: list[list[Tensor]] | None) -> Weights:
    """The displacement of the weights after the steps. Appends the gradients of each update to the list."""
    with _built(way, options) as built:
        run, progress = built.run, built.progress
        before = _weights(run.learner)
        if gradients is not None:
            _record(run.learner, gradients)
        for step in range(options.moves):
            plan(run, progress, step)
            train_step(run, progress, step)
        return _moved(before, _weights(run.learner))


def _under(way: str, gradients: list[list[Tensor]], options: argparse.Namespace) -> Weights:
    """The displacement of the weights after updates with the given gradients."""
    config = resolve_members(load(CONFIG, [*SMALL, *WAYS[way]]), base=CONFIG.parent).config
    loaded = load_model(config, torch.device("cpu"), None, None, masters=keeps_masters(config))
    learner = make_learner(config, loaded, needs=(), resumed=False)
    before = _weights(learner)
    for update in gradients:
        (sum((p.float() * g).sum() for p, g in zip(learner.parameters.values(), update, strict=True))).backward()
        learner.step()
    return _moved(before, _weights(learner))


@contextmanager
def _built(way: str, options: argparse.Namespace) -> Iterator[Built]:
    with tempfile.TemporaryDirectory(prefix="winnow-precision-") as folder:
        sets = [*SMALL, *WAYS[way], f"steps={options.moves}", f"output={json.dumps(folder)}"]
        built = build(
            resolve_members(load(CONFIG, sets), base=CONFIG.parent), folder=Path(folder), device=torch.device("cpu")
        )
        try:
            yield built
        finally:
            built.close()


def _record(learner: Learner, gradients: list[list[Tensor]]) -> None:
    """Record each update's gradients before the optimizer clips them."""
    optimizer = learner._optimizer
    step: Callable[[], Any] = optimizer.step

    def recorded() -> Any:
        gradients.append([gradient.clone() for gradient in optimizer.gradients()])
        return step()

    optimizer.step = recorded  # type: ignore[method-assign]


def _weights(learner: Learner) -> Weights:
    """The masters, or the parameters if there are none, in float64."""
    state = learner.state()
    return {name: state.get(f"{name}/master", p.detach()).double().clone() for name, p in learner.parameters.items()}


def _moved(before: Weights, after: Weights) -> Weights:
    return {name: after[name] - weight for name, weight in before.items()}


if __name__ == "__main__":
    main()
