"""Run folders with a manifest and metrics, written by plain functions, as input of the comparison."""

from __future__ import annotations

import json

from synthetic_run import batch, group, metrics
from winnow.config import dump
from winnow.config_file import validate
from winnow.state.logbook import Logbook
from winnow.state.manifest import FORMAT, MANIFEST
from winnow_lab.sweep_folder import Contents, LedgerLine, SweepFolder


def write_manifest(folder, *, changes=(), inputs=None, device="cpu", threads=1, **config):
    folder.mkdir(parents=True, exist_ok=True)
    whole = dump(validate({"steps": 4, "output": str(folder), **config}, source="a test"))
    manifest = {
        "winnow_run": FORMAT,
        "changes": list(changes),
        "config": whole,
        "base": str(folder),
        "inputs": inputs or {},
    }
    (folder / MANIFEST).write_text(json.dumps({**manifest, "device": device, "threads": threads}))


def write_run(
    folder, accuracies, *, seed=0, seconds=10.0, every=2, rollouts=(), done=None, step=None, evaluation=(), **config
):
    """A run with an evaluation of each accuracy, every two steps from 0 on; None omits one.

    `step` changes a step's metrics, and `evaluation` has further metrics of each evaluation.

    `rollouts` are the outcomes of the one prompt of each step, which is logged if there are any.
    """
    write_manifest(folder, seed=seed, **config)
    log = Logbook(folder, seed=seed, rollouts="all" if rollouts else "none")
    last = (len(accuracies) - 1) * every if done is None else done
    for number in range(last + 1):
        place = number // every
        if number % every == 0 and place < len(accuracies) and accuracies[place] is not None:
            own = {
                "eval/accuracy_sampled": accuracies[place],
                "eval/length_mean": 20.0 - number,
                "eval/seconds": 1000.0,
            }
            log.write_between(number, own | (evaluation[place] if evaluation else {}))
        if number < last:
            groups = [group(f"p{number}", rollouts)] if rollouts else []
            own = {"seconds/step": seconds, **(step(number) if step else {})}
            log.write(number, metrics(number, **own), groups, [batch(groups)])
    return folder


def write_sweep(folder, accuracies, *, alone, pods, grpo, step=None):
    """A sweep of two labels, of which seed 0 has run; PODS had the machine alone where `alone` is true."""
    with SweepFolder.open(folder, resume=False) as written:
        written.describe(Contents({"PODS": {}, "GRPO": {}}, seeds=(0, 1), baseline="GRPO", inputs={}))
        for label, own in (("GRPO", True), ("PODS", alone)):
            write_run(folder / label / "seed-0", accuracies, step=step, **(grpo if label == "GRPO" else pods))
            (folder / label / "config.toml").write_text("steps = 1\n")
            (folder / label / "seed-0.log").write_text("1/1\n")
            written.note(LedgerLine(label, 0, "began", own))
            written.note(LedgerLine(label, 0, "finished", own, 0))
    return folder
