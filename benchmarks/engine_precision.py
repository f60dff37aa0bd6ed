"""How far does a bfloat16 engine follow a float32 policy, from a checkpoint that was published in bfloat16?

    python benchmarks/engine_precision.py                three minutes on a quiet machine
    python benchmarks/engine_precision.py --seconds      also time an evaluation in each precision: run it alone

The bundled policy is rounded to bfloat16, as published checkpoints are. It is trained in float32 on the task of
the recipe arithmetic at a learning rate of 1e-5, with AdamW's eps at its default of 1e-8. Its rollouts are sampled on
a bfloat16 copy (rollout.engine = {use = "native", dtype = "bfloat16"}). After each number of steps it reports:

followed     the mean displacement of the copy's weights in the direction of the policy's, as a share of the policy's
unmoved      the share of the policy's moved weights that have not moved in the copy
accuracy     sampled held-out accuracy on the copy and on the policy's own weights, from the same random numbers
bytes        bytes of keys and values of an evaluation in each precision
parity       of the steps so far: the mean gap between engine and policy, and the number of alarms

Writes benchmarks/results/<date>_engine_precision.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import frame
import torch
from torch import Tensor

from winnow.config_file import load
from winnow.core.evaluation import evaluate
from winnow.core.plan import plan
from winnow.core.run import Run, evaluation_sampling
from winnow.core.step import train_step
from winnow.engines.base import evaluating
from winnow.engines.native.sampler import Native
from winnow.models.load import load as load_model
from winnow.recipes import recipe_paths
from winnow.training.build import Built, build
from winnow.training.resolve import resolve_members

CONFIG = recipe_paths()["arithmetic"]
PARITY = ("policy/logprob_gap_mean", "policy/logprob_gap_p999", "policy/parity_alarm")
Weights = Mapping[str, Tensor]


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="winnow-engine-precision-") as scratch:
        folder, output = Path(scratch) / "model", Path(scratch) / "run"
        _write_on_the_grid(folder)
        built = _build(folder, output, options)
        with contextlib.closing(built):
            found = measured(built, options)
    frame.finish("engine_precision", {"after_steps": found}, options)


def _options() -> argparse.Namespace:
    parser = frame.parser(
        __doc__,
        threads=1,
        problems=(256, "held-out problems, of 8 rollouts each"),
        seed=0,
        prompts=(32, "of a step, of 16 rollouts each"),
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[0, 1, 5, 10, 24], help="numbers of steps after which to measure"
    )
    parser.add_argument("--rate", default="1e-5", help="the learning rate")
    parser.add_argument(
        "--seconds", action="store_true", help="time each evaluation; needs a machine without other work"
    )
    return frame.parse(parser)


def measured(built: Built, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """number of steps -> measurements."""
    run, progress = built.run, built.progress
    start, rows = _policy(run), list[dict[str, float]]()
    found = {}
    for step in range(max(options.steps) + 1):
        if step in options.steps:
            found[str(step)] = {**_followed(run, start), **_evaluations(run, options), **_parity(rows)}
            print(step, json.dumps(found[str(step)]), flush=True)
        if step < max(options.steps):
            plan(run, progress, step)
            rows.append(dict(train_step(run, progress, step).metrics))
    return found


def _followed(run: Run, start: Weights) -> dict[str, float]:
    moved, copied = (
        torch.cat([(weights[name] - start[name]).flatten() for name in start]) for weights in (_policy(run), _copy(run))
    )
    if not moved.any():
        return {}
    there = moved != 0
    return {
        "followed": round(float((copied * moved.sign()).mean() / moved.abs().mean()), 4),
        "unmoved": round(float((copied[there] == 0).double().mean()), 4),
        "largest_move": float(moved.abs().max()),
    }


def _evaluations(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    engine = run.engine
    assert isinstance(engine, Native)
    found = {}
    for name, context in (("copy", contextlib.nullcontext()), ("policy", evaluating(engine))):
        with context:
            result = evaluate(
                engine,
                run.verifiers,
                run.held_out[None],
                evaluation_sampling(run.config),
                rollouts_per_prompt=run.config.evaluate.rollouts_per_prompt,
                greedy=False,
                seed=(run.seed, "evaluate"),
            )
            seconds = {"seconds": round(result.seconds, 3)} if options.seconds else {}
            found[name] = {
                "accuracy": round(result.metrics["eval/accuracy_sampled"], 4),
                "standard_error": round(result.metrics["eval/accuracy_sampled_sem"], 4),
                "key_value_bytes": engine.key_value_bytes,
                **seconds,
            }
    return found


def _parity(rows: list[dict[str, float]]) -> dict[str, Any]:
    if not rows:
        return {}
    newest = {name: rows[-1][name] for name in PARITY[:2]}
    return {"parity": {**newest, "alarms": int(sum(row["policy/parity_alarm"] for row in rows)), "steps": len(rows)}}


def _policy(run: Run) -> Weights:
    return {name: weight.detach().double().clone() for name, weight in run.learner.parameters.items()}


def _copy(run: Run) -> Weights:
    """The copy of the weights that rollouts are sampled with."""
    assert isinstance(run.engine, Native)
    own = run.engine._model.state_dict()
    return {name: own[name].double() for name in run.learner.parameters}


def _write_on_the_grid(folder: Path) -> None:
    """The bundled policy, rounded to bfloat16, as a model folder."""
    loaded = load_model("bundled", dtype="bfloat16")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


def _build(folder: Path, output: Path, options: argparse.Namespace) -> Built:
    engine = '{use = "native", dtype = "bfloat16"}'
    sets = [
        *(f"model.path={json.dumps(str(folder))}", "model.dtype=float32", f"rollout.engine={engine}"),
        *(f"optimizer.learning_rate={options.rate}", "optimizer.eps=1e-8", f"seed={options.seed}"),
        *(f"rollout.prompts_per_step={options.prompts}", f"steps={max(options.steps)}", "device=cpu"),
        *(f"evaluate.problems={options.problems}", f"threads={options.threads}", f"output={json.dumps(str(output))}"),
    ]
    members = resolve_members(load(CONFIG, sets), base=CONFIG.parent)
    return build(members, folder=output, device=torch.device("cpu"))


if __name__ == "__main__":
    main()
