"""Planned and measured memory of each rank: a policy of 34M parameters, replicated and sharded.

    python benchmarks/rank_memory.py --data path/of/gsm8k

The shape is one of Qwen2's with random weights and the tokenizer of half_billion.py, whose reward trains every rollout.
Each learner runs in --ranks processes. "grown" is the peak memory of a rank (VmHWM) minus its use before the model was
loaded (VmRSS), with freed memory returned to the system at once; the whole plan is beside it. "bytes" are those of the
last step: the sent bytes by the rank's metrics, and the total bytes and calls that FSDP2 gathered and scattered.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import frame
from half_billion import _import_what_computes, config_of, held, write_model
from launched import launch

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "max_window_layers": 8,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 16_000,
}
LEARNERS = ("replicated", "sharded")


def main() -> None:
    made = frame.parser(__doc__, ranks=2, steps=2, prompts=4, rollouts=4, tokens=64, threads=1, micro_batch_tokens=512)
    made.add_argument("--checkpointing", choices=("none", "selective", "full"), default="selective")
    made.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="precision of the computation"
    )
    made.add_argument("--data", required=True, help="folder with gsm8k_train.jsonl and gsm8k_test.jsonl")
    made.add_argument("--learner", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the model, and for the results of the ranks
    options = frame.parse(made)
    if options.folder is not None:
        rank_of(options.learner[0], options)
        return
    report = {}
    with tempfile.TemporaryDirectory(prefix="winnow-rank-memory-") as name:
        write_model(Path(name), SHAPE)
        for learner in options.learner:
            launch(options.ranks, __file__, [*sys.argv[1:], "--folder", name, "--learner", learner], frame.AT_ONCE)
            ranks = [json.loads(file(Path(name), learner, rank).read_text()) for rank in range(options.ranks)]
            report[learner] = {"plan / grown": [of["plan / grown"] for of in ranks], "ranks": ranks}
    del options.folder, options.data
    frame.finish("rank_memory", report, options, show=options.learner)


def file(folder: Path, learner: str, rank: int) -> Path:
    return folder / f"{learner}_{rank}.json"


def rank_of(learner: str, sizes: argparse.Namespace) -> None:
    """Steps as in `fit`, without evaluation and checkpoints, on one of the ranks."""
    import pyarrow.parquet
    import torch
    import torch.distributed.fsdp

    from winnow import ranks
    from winnow.config_file import validate
    from winnow.core.plan import plan
    from winnow.core.step import train_step
    from winnow.training.budget import plan_devices
    from winnow.training.build import build
    from winnow.training.resolve import resolve_members

    assert pyarrow.parquet is not None  # imported early, so that it is not part of the growth
    _import_what_computes()
    config = {**config_of("full", sizes.folder, sizes), "ranks": {"learner": learner}}
    config["model"]["dtype"] = sizes.dtype
    members = resolve_members(validate(config), base=Path.cwd())
    with ranks.joined(timeout_seconds=300):
        output = sizes.folder / f"run_{learner}"
        output.mkdir(exist_ok=True)
        before = held("VmRSS")
        built = build(members, folder=output, device=torch.device("cpu"))
        run, progress = built.run, built.progress
        peaks = []
        for step in range(sizes.steps):
            plan(run, progress, step)
            with exchanged() as exchanges:
                metrics = train_step(run, progress, step).metrics
            peaks.append({k.split("/")[1]: round(v) for k, v in metrics.items() if k.endswith("cpu/peak_resident")})
        grown = held("VmHWM") - before
        longest = max(len(p.tokens) for p in run.prompts.prompts)
        planned = plan_devices(members, torch.device("cpu"), longest_prompt=longest)
        own = ranks.rank()
        need = planned.need("cpu") + (planned.writer_bytes("cpu") if own == 0 else 0)
        built.close()
    found: dict[str, Any] = {
        "plan / grown": round(need / grown, 3),
        "parameters": sum(p.numel() for p in run.learner.model.model.parameters()),
        "grown": grown,
        "plan": need,
        "parts": {f"{part.phase}: {part.name}": part.bytes for part in planned.parts},
        "resident before the model": before,
        "peak resident, MiB": peaks,
        "bytes": {k.removeprefix("ranks/bytes_"): v for k, v in metrics.items() if k.startswith("ranks/bytes")},
        "tokens": {k.rpartition("_")[2]: metrics[k] for k in ("budget/tokens_generated", "budget/tokens_trained")},
        "fsdp": exchanges,
    }
    file(sizes.folder, learner, own).write_text(json.dumps(found))


@contextlib.contextmanager
def exchanged() -> Iterator[dict[str, dict[str, int]]]:
    """Count what FSDP2 gathers and scatters during the block, in bytes of the whole tensors."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    found = {name: {"calls": 0, "bytes": 0} for name in ("gathered", "scattered")}

    def counting(name: str, which: str, call: Any) -> Any:
        def counted(self: Any, output_tensor: Any, input_tensor: Any, *others: Any, **more: Any) -> Any:
            found[name]["calls"] += 1
            found[name]["bytes"] += {"gathered": output_tensor, "scattered": input_tensor}[name].nbytes
            return call(self, output_tensor, input_tensor, *others, **more)

        return mock.patch.object(getattr(collectives, which), "__call__", counted)

    gather, scatter = collectives.DefaultAllGather, collectives.DefaultReduceScatter
    with (
        counting("gathered", "DefaultAllGather", gather.__call__),
        counting("scattered", "DefaultReduceScatter", scatter.__call__),
    ):
        yield found


if __name__ == "__main__":
    main()
