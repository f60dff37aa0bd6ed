"""Compare two source trees of winnow, which must compute the same bits from the same seeds.

    python benchmarks/identity.py --before ../before --after . --keep /tmp/identity

Every variant is trained for 4 steps by both trees, in separate processes, on one thread of the CPU. The files of the
runs are then compared. Every tensor of every checkpoint (weights, adapters, moments, reference) must be equal in every
bit. So must the state of optimizer, history and verifiers, and both logs except for times and memory use. A resumed run
must also equal the run of 4 steps without an interruption.

A tree is a checkout with src/, configs/ and tests/e2e/. To allow for a metric that one of them lacks, add its name to
CLOCK. With --keep a run is reused if its tree and settings have not changed; other content of the variants' folders is
deleted. The exit code is 1 if anything differs. With --write it writes benchmarks/results/<date>_identity.json.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import frame
import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor

CLOCK = ("seconds", "memory/", "eval/seconds")  # prefixes of values that differ between any two runs

COMMON = (
    *("steps=4", "device=cpu", "threads=1", "rollout.prompts_per_step=8", "evaluate.every=2", "evaluate.problems=16"),
    *("checkpoint.every=2", "checkpoint.keep_last=9"),
)
SHOWN = 3  # maximum number of printed differences per file


@dataclass(frozen=True)
class Variant:
    """A recipe with changes."""

    config: str
    sets: tuple[str, ...] = ()
    acts: str = "policy/grad_norm"  # part of the name of a value that must be nonzero: the variant has an effect
    resumes: str = ""  # the variant that this one repeats, with an interruption and a resume
    ends: int = 0  # the number of steps before the interruption


SECOND = ("use=tests/e2e/second_engine.py:second", "folder=src/winnow/models/bundled", "timeout_seconds=600.0")
KL = 'terms=[{use="kl",coefficient=0.05}]'
NORMS = "history.probed."  # of a prompt: its verified and correct rollouts, and last its gradient norm
PROBED = ("allocate=gvm", "probe.every=2", "task.size=32")  # two windows
MOVED = ("evaluate.every=3", "checkpoint.every=3")  # a checkpoint within a window, with a moved reference
VALUES = ("advantage=gae", "critic.train_on=all", "critic.epochs=2")  # of a separate value model
PLAIN = ("grpo", "dr_grpo", "raft", "raft_plus_plus", "pods", "arithmetic")

VARIANTS: dict[str, Variant] = {
    **{name: Variant(name) for name in PLAIN},
    "gvm_grpo": Variant("gvm_grpo", ("probe.every=2",), "budget/probe_rollouts"),
    "gvm_raft_plus_plus": Variant("gvm_raft_plus_plus", ("probe.every=2",), "budget/probe_rollouts"),
    "gvm_pods": Variant("gvm_pods", ("task.size=16",), "history.seen."),  # visits every prompt twice
    "probe_embedding": Variant("arithmetic", (*PROBED, "probe.gradient_norm=embedding"), NORMS),
    "probe_output_head": Variant("arithmetic", (*PROBED, "probe.gradient_norm=output_head"), NORMS),
    "outer_reset": Variant(
        "gvm_grpo", ("probe.every=2", "probe.outer_reset=both", KL, *MOVED), "reference/model.embed_tokens.weight"
    ),
    "lora": Variant("grpo", ("model.lora.rank=4", "update.updates_per_step=2", KL), "loss/kl"),
    "lora_outer_reset": Variant(
        "gvm_grpo",
        ("model.lora.rank=4", "probe.every=2", "probe.outer_reset=reference", KL, *MOVED),
        "lora_B.default.weight",
    ),
    "dynamic_sampling": Variant(
        "arithmetic",
        (
            *("task.levels=[4,6]", "rollout.rollouts_per_prompt=4", "select.keep_per_prompt=2"),
            "rollout.dynamic_sampling_rounds=2",
        ),
        "dynamic_sampling/rounds",
    ),
    "entropy": Variant("arithmetic", ('terms=[{use="entropy",coefficient=0.01}]',), "loss/entropy"),
    "epochs": Variant(
        "arithmetic",
        (
            *("update.epochs=2", "update.updates_per_step=2", "loss.clip_low=0.1", "loss.clip_high=0.3"),
            "optimizer.learning_rate=1e-3",
        ),
        "policy/clip_fraction",
    ),
    "epochs_raft_plus_plus": Variant(
        "raft_plus_plus", ("update.epochs=2", "update.updates_per_step=2"), "policy/clip_fraction"
    ),
    "cispo": Variant("grpo", ("loss.use=cispo", "update.updates_per_step=2"), "policy/clip_fraction"),
    "gspo": Variant("grpo", ("loss=gspo", "update.updates_per_step=2"), "policy/clip_fraction"),
    "importance": Variant(
        "arithmetic",
        ("correction=token_truncate", "rollout.engine.use=native", "rollout.engine.dtype=bfloat16"),
        "policy/logprob_gap_mean",
    ),
    "value_head": Variant("arithmetic", ("advantage=gae", "critic.form=shared"), "critic/loss"),
    "value_adapter": Variant(
        "arithmetic", (*VALUES, "critic.form=adapter", "model.lora.rank=4", "critic.lora.rank=2"), "critic/grad_norm"
    ),
    "value_model": Variant(
        "arithmetic",
        (*VALUES, "critic.form=model", "critic.pretraining_steps=1", "critic.lam=0.95"),
        "critic/grad_norm",
    ),
    "second_process": Variant("arithmetic", tuple(f"rollout.engine.{option}" for option in SECOND)),
    "hf": Variant("arithmetic", ("rollout.engine=hf",)),
    "gradient_checkpointing": Variant("arithmetic", ("model.gradient_checkpointing=full",)),
    "float64": Variant("arithmetic", ("model.dtype=float64",)),
    "linear": Variant("arithmetic", ("optimizer.schedule=linear", "optimizer.warmup_steps=2")),
}
ENDS = {"arithmetic": 2, "gvm_pods": 2, "outer_reset": 3, "lora_outer_reset": 3, "value_model": 2}
VARIANTS |= {f"resume_{name}": replace(VARIANTS[name], resumes=name, ends=ends) for name, ends in ENDS.items()}


@dataclass(frozen=True)
class Tree:
    """A checkout, and where its run folders are."""

    path: Path
    runs: Path
    digest: str  # of every file that a run reads


@dataclass(frozen=True)
class Ran:
    """A finished run."""

    folder: Path
    seconds: float
    kept: bool  # from an earlier call


@dataclass(frozen=True)
class Difference:
    """The differences of two runs."""

    file: str
    name: str
    said: str


class FailedError(Exception):
    """A run failed, or its variant has no effect."""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        runs = (options.keep or Path(scratch)).resolve()
        before, after = _tree(options.before, runs / "before"), _tree(options.after, runs / "after")
        found = {name: _compared(name, before, after) for name in options.only or VARIANTS}
    different = [name for name, result in found.items() if result["differences"]]
    print(f"{len(found) - len(different)} of {len(found)} variants are the same")
    if options.write:
        report = {"trees": {"before": _described(before), "after": _described(after)}, "variants": found}
        packages = ("winnow-rl", "torch", "transformers", "peft", "numpy", "safetensors")
        print(f"written: {frame.write('identity', report, packages=packages)}")
    sys.exit(1 if different else 0)


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, metavar="TREE")
    parser.add_argument("--after", type=Path, required=True, metavar="TREE")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the run folders here; by default they are deleted"
    )
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--write", action="store_true")
    return frame.parse(parser)


def _compared(name: str, before: Tree, after: Tree) -> dict[str, Any]:
    """Run one variant in both trees, print the outcome, and return it for the result."""
    try:
        ran = _ran(name, before), _ran(name, after)
        facts = _facts(ran[0].folder), _facts(ran[1].folder)
        _check_acts(name, facts[0])
        differences = [*_differences(*facts), *_at_the_resume(name, before, facts[0])]
    except FailedError as error:
        print(f"{name:<24}FAILED\n{textwrap.indent(str(error), ' ' * 4)}", flush=True)
        return {"differences": {"run": 1}, "first": [str(error)]}
    counts = Counter(difference.file for difference in differences)
    seconds = ", ".join(f"{side.seconds:.1f} s{' (kept)' * side.kept}" for side in ran)
    print(f"{name:<24}{'DIFFERENT' if differences else 'same':<11}{len(facts[0]):>7} values   {seconds}", flush=True)
    by_file = [[d for d in differences if d.file == file] for file in counts]
    first = [f"{d.file}: {d.name}: {d.said}" for of in by_file for d in of[:SHOWN]]
    for line in (*first, *(f"{file}: {count} differences" for file, count in counts.items())):
        print(f"    {line}")
    sets, seconds_each = [*COMMON, *VARIANTS[name].sets], [side.seconds for side in ran]
    return {"sets": sets, "values": len(facts[0]), "seconds": seconds_each, "differences": counts, "first": first}


def _at_the_resume(name: str, before: Tree, resumed: Mapping[str, Any]) -> Iterator[Difference]:
    """The differences of a resumed run from the uninterrupted one, by the same tree."""
    if straight := VARIANTS[name].resumes:
        for difference in _differences(_facts(_ran(straight, before).folder), resumed):
            yield replace(difference, name=f"{difference.name}, in a row -> resumed")


def _check_acts(name: str, facts: Mapping[str, Any]) -> None:
    """Raise if the variant's metric is 0: a variant without an effect would be equal in any two trees."""
    end = VARIANTS[name].acts
    if not any(_is_nonzero(value) for fact, value in facts.items() if end in fact):
        raise FailedError(f"no value of {end} is other than 0, so this variant shows nothing: change its settings")


def _is_nonzero(value: Any) -> bool:
    """Of a list, its last item."""
    return bool(value.any()) if isinstance(value, Tensor) else bool(value[-1] if isinstance(value, list) else value)


def _tree(path: Path, runs: Path) -> Tree:
    """Read a checkout. Raises SystemExit if its runs would import another winnow."""
    path = path.resolve()
    files = [f for part in ("src", "configs", "tests/e2e") for f in sorted((path / part).rglob("*")) if _is_read(f)]
    code = "import winnow; print(winnow.__file__)"
    imported = subprocess.run(
        [sys.executable, "-c", code], cwd=path, env=_environment(path), capture_output=True, text=True
    ).stdout.strip()
    if not Path(imported).is_relative_to(path / "src"):
        raise SystemExit(f"{path}: its runs would import {imported or 'no winnow at all'}; name a checkout of winnow")
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return Tree(path, runs, digest.hexdigest())


def _is_read(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _environment(tree: Path) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **own, "PYTHONPATH": str(tree / "src")}


def _described(tree: Tree) -> dict[str, str]:
    git = ["git", "-C", str(tree.path), "describe", "--always", "--dirty", "--abbrev=40"]
    said = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {"commit": said, "sha256": tree.digest}


def _ran(name: str, tree: Tree) -> Ran:
    """The run of a variant: the one of an earlier call with the same tree and settings, or a new one."""
    folder, note = tree.runs / name, tree.runs / f"{name}.json"
    launches = _launches(VARIANTS[name])
    made = {"source": tree.digest, "launches": launches}
    known = json.loads(note.read_text()) if note.exists() else {}
    if known.pop("made", None) == made:
        return Ran(folder, known["seconds"], kept=True)
    note.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    for launch in launches:
        _launch(tree, [*launch, "--output", str(folder)])
    seconds = round(time.perf_counter() - begin, 1)
    note.write_text(json.dumps({"made": made, "seconds": seconds}))
    return Ran(folder, seconds, kept=False)


def _launches(variant: Variant) -> list[list[str]]:
    """The arguments of each process."""
    sets = [word for assignment in (*COMMON, *variant.sets) for word in ("--set", assignment)]
    whole = [f"src/winnow/recipes/{variant.config}.toml", *sets]
    return [[*whole, "--set", f"steps={variant.ends}"], [*whole, "--resume"]] if variant.resumes else [whole]


def _launch(tree: Tree, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "winnow", "train", *arguments]
    ended = subprocess.run(command, cwd=tree.path, env=_environment(tree.path), capture_output=True, text=True)
    if ended.returncode:
        raise FailedError(f"{tree.path}: exit code {ended.returncode}\n{ended.stdout[-500:]}{ended.stderr[-2000:]}")


def _facts(folder: Path) -> dict[str, Any]:
    """ "file: name" -> tensor or JSON value, for everything that a run wrote and that does not depend on time."""
    facts: dict[str, Any] = {}
    for path in sorted(folder.glob("checkpoints/**/*tensors")):
        facts |= {f"{path.relative_to(folder)}: {name}": tensor for name, tensor in load_file(path).items()}
    for path in sorted(folder.glob("checkpoints/*/trainer.json")):
        state = json.loads(path.read_text(encoding="utf-8"))["state"]
        state["history"] = _history(state["history"])
        facts |= {f"{path.relative_to(folder)}: {name}": value for name, value in _flat(state)}
    for number, line in enumerate((folder / "metrics.jsonl").read_bytes().splitlines(), start=1):
        facts |= {f"metrics.jsonl: line {number}: {name}": value for name, value in _flat(json.loads(line))}
    for number, row in enumerate(_rollouts(folder), start=1):
        facts |= {f"rollouts: row {number}: {name}": value for name, value in _flat(row)}
    return facts


def _history(state: Mapping[str, Any]) -> dict[str, Any]:
    """Results by the hash of a prompt's id, [verified, correct, gradient norm], with the probe's state and the plan.

    Prompts without a verdict are left out, as are the sampler's state and its draws.
    """
    seen = state["seen"]
    names = base64.b64decode(seen.get("prompts", ""))  # a run may store no table
    absent = [np.nan] * (len(names) // 8)
    columns = [
        np.frombuffer(base64.b64decode(seen[name]), dtype="<f8").tolist() if name in seen else absent
        for name in ("trials", "correct", "gradient_norm")
    ]
    by_name = {
        names[place : place + 8].hex(): [verified, right, None if np.isnan(norm) else norm]
        for place, verified, right, norm in zip(range(0, len(names), 8), *columns, strict=True)
    }
    judged = {name: of for name, of in sorted(by_name.items()) if of[0] > 0}
    return {"seen": judged, "probed": state["probed"], "plan": state["plan"]}


def _rollouts(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the rollouts, in order."""
    for file in sorted((folder / "rollouts").glob("step-*.parquet")):
        for row in pq.read_table(file).drop_columns(["length", "surrogates"]).to_pylist():
            yield row | ({"reward": None} if row["kind"] == "failed" else {})  # NaN differs from itself


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """dotted name -> value, without times and memory use."""
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif not name.startswith(CLOCK):
            yield name, value


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for fact in dict.fromkeys([*before, *after]):  # the order of training
        file, _, name = fact.partition(": ")
        if fact not in before or fact not in after:
            yield Difference(file, name, f"only {'before' if fact in before else 'after'}")
        elif said := _unlike(before[fact], after[fact]):
            yield Difference(file, name, said)


def _unlike(one: Any, other: Any) -> str:
    """A description of the difference of two values; empty if they are equal in every bit."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        texts = json.dumps(one), json.dumps(other)  # floats are written exactly, and 1 differs from 1.0
        return "" if texts[0] == texts[1] else " -> ".join(text[:80] for text in texts)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype} {tuple(one.shape)} -> {other.dtype} {tuple(other.shape)}"
    bits = [tensor.reshape(-1, 1).view(torch.uint8) for tensor in (one, other)]
    places = (bits[0] != bits[1]).any(dim=1).nonzero().flatten().tolist()
    if not places:
        return ""
    first = [tensor.flatten()[places[0]].item() for tensor in (one, other)]
    return f"{len(places)} of {one.numel()} numbers, the first {first[0]!r} -> {first[1]!r}"


if __name__ == "__main__":
    main()
