"""The cost of a checkpoint: seconds in which training waits, host memory, bytes written and bytes hashed.

    python benchmarks/checkpoint.py                      this source tree
    python benchmarks/checkpoint.py --before ../before   this tree and another one

A policy of 40M parameters with random weights, trained whole or by an adapter, and AdamW's moments, in one process per
round and tree. A save in the foreground is timed, with the peak of resident memory that it adds (VmHWM, reset before)
and the bytes that it hashes. On a CPU no tensor is copied to the host, but merged weights are made. This tree then
saves in the background of forward passes, as it does during sampling. The cost is the time in which training waits for
the start and the end of the save, plus the slow-down of the passes. --write writes a dated result.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frame

SHAPE = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 8}
TREE = Path(__file__).parents[1]


class NoFiles(dict[str, bytes]):
    """A tokenizer's files, in place of which nothing is written; older trees receive the tokenizer itself."""

    def save_pretrained(self, path: Path) -> None:
        """Write nothing."""


def policy(kind: str) -> Any:
    """The model and its AdamW after one update."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from winnow.models.adapter import add_lora

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(
        LlamaConfig(**SHAPE, num_key_value_heads=2, vocab_size=2048, max_position_embeddings=512)
    )
    if kind == "lora":
        model = add_lora(model, rank=16, alpha=32.0, targets="all-linear", seed=0)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    model(input_ids=torch.zeros(1, 2, dtype=torch.int64)).logits.sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def status(field: str) -> int:
    """A value of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def counted() -> list[int]:
    """Collect the number of bytes of each hash call from now on."""
    sizes: list[int] = []
    sha256, file_digest = hashlib.sha256, hashlib.file_digest

    class Counted:
        def __init__(self, data: bytes = b"") -> None:
            self._digest = sha256(data)
            self.hexdigest = self._digest.hexdigest

        def update(self, data: bytes) -> None:
            sizes.append(memoryview(data).nbytes)
            self._digest.update(data)

    def digest_of(file: Any, name: str) -> Any:
        sizes.append(os.fstat(file.fileno()).st_size)
        return file_digest(file, name)

    hashlib.sha256, hashlib.file_digest = Counted, digest_of  # type: ignore[assignment]
    return sizes


def measured(folder: Path, kind: str) -> dict[str, float]:
    """Measure one save in the foreground, and one in the background if this process's tree supports that."""
    import torch

    from winnow.models.save import write_model_folder
    from winnow.state import checkpoint

    torch.set_num_threads(1)
    model, optimizer = policy(kind)
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {f"{names[p]}/{key}": value for p, state in optimizer.state.items() for key, value in state.items()}

    def save(step: int) -> checkpoint.Checkpoint:
        return checkpoint.save(
            folder, step, write_model=lambda path: write_model_folder(model, NoFiles(), path),
            tensors=tensors, state={}, keep_last=2,
        )  # fmt: skip

    save(1)  # imports modules, and fills caches
    hashed = counted()
    ctypes.CDLL(None).malloc_trim(0)  # returns freed memory, which would hide that of the second save
    Path("/proc/self/clear_refs").write_text("5")
    resident = status("VmRSS")
    saved, seconds = frame.timed(lambda: save(2))
    out = {
        "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        "seconds_of_a_save": seconds,
        "peak_added_mb": (status("VmHWM") - resident) / 1e6,
        "written_mb": sum(file.stat().st_size for file in saved.path.rglob("*")) / 1e6,
        "hashed_mb": sum(hashed) / 1e6,
    }
    return out | dict(beside(model, save))


def beside(model: Any, save: Callable[[int], Any]) -> Iterator[tuple[str, float]]:
    """Seconds of a save in the background of longer forward passes; empty if the tree does not support that."""
    import torch

    try:
        from winnow.core.progress import Saving
    except ImportError:
        return

    @torch.no_grad()
    def work() -> None:
        for _ in range(WORK):
            model(input_ids=torch.zeros(8, 128, dtype=torch.int64))

    saving = Saving()
    _, alone = frame.timed(work)
    _, begin = frame.timed(lambda: saving.begin(lambda: save(3), lambda outcome: outcome.result()))
    _, together = frame.timed(work)
    _, wait = frame.timed(saving.wait)
    yield from {
        "begin": begin, "work_alone": alone, "work_beside": together, "wait": wait,
        "stall_beside_work": begin + wait + together - alone,
    }.items()  # fmt: skip


WORK = 3  # passes


def of_tree(tree: Path, kind: str) -> dict[str, float]:
    """Call `measured` in a process with that source tree."""
    code = (
        f"import sys; sys.path.insert(0, {str(TREE / 'benchmarks')!r}); import checkpoint as benchmark, json, pathlib; "
    )
    with tempfile.TemporaryDirectory(prefix="winnow-checkpoint-") as folder:
        code += f"print(json.dumps(benchmark.measured(pathlib.Path({folder!r}), {kind!r})))"
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    made = frame.parser(__doc__, rounds=3)
    made.add_argument("--before", type=Path, help="another source tree")
    made.add_argument("--write", action="store_true", help="write a dated result")
    options = frame.parse(made)
    trees = {"after": TREE} if options.before is None else {"before": options.before, "after": TREE}
    contestants = {f"{kind}, {name}": (tree, kind) for kind in ("full", "lora") for name, tree in trees.items()}
    rounds = [{name: of_tree(*each) for name, each in contestants.items()} for _ in range(options.rounds)]
    report = {
        name: {key: frame.median([each[name][key] for each in rounds], 3) for key in rounds[0][name]}
        for name in contestants
    }
    print(json.dumps(report, indent=1))
    if options.write:
        settings = {"rounds": options.rounds, "shape": SHAPE, "threads": 1, "passes": WORK}
        frame.finish("checkpoint", {"settings": settings, **report}, packages=(*frame.PACKAGES, "safetensors"))


if __name__ == "__main__":
    main()
