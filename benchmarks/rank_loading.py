"""Host memory of each rank of a sharded policy while it is loaded and saved, beside the plan.

    python benchmarks/rank_loading.py --ranks 2 4

The shape is Qwen2.5-0.5B's with random weights. Every rank reads its share from the files, makes an update of zeros (so
that moments exist), and takes part in a checkpoint. There is no engine. "grown" is the most anonymous memory (RssAnon)
over that before the model, sampled every few milliseconds; freed memory is returned to the system at once. Pages of a
mapped file are not part of it, as the system can drop them. The plan of loading is the share of the weights, and the
start of the pass of two tokens that checks the model. That of a save has the share, the moments and, on rank 0, one
tensor of a checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frame
from half_billion import QWEN, write_model
from launched import launch

SECONDS = 0.004  # between samples


def main() -> None:
    made = frame.parser(__doc__, threads=1)
    made.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    made.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the model, and for the results of the ranks
    options = frame.parse(made)
    if options.folder is not None:
        rank_of(options.dtype[0], options.folder)
        return
    report = {}
    with tempfile.TemporaryDirectory(prefix="winnow-rank-loading-") as name:
        write_model(Path(name), QWEN)
        for count in options.ranks:
            for dtype in options.dtype:
                own = ["--folder", name, "--dtype", dtype, "--dirty"]
                launch(count, __file__, own, frame.AT_ONCE)
                found = [json.loads(file(Path(name), rank).read_text()) for rank in range(count)]
                report[f"{dtype}, {count} ranks"] = found
                print(dtype, count, json.dumps(found), flush=True)
    del options.folder
    frame.finish("rank_loading", report, options, show=())


def file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.json"


def rank_of(dtype: str, folder: Path) -> None:
    """Load, update and save on one of the ranks."""
    import torch

    from winnow import ranks
    from winnow.config_file import validate
    from winnow.learner.learner import make_learner, shard_learner
    from winnow.models.load import load_tokenizer
    from winnow.state import checkpoint
    from winnow.training.budget import demand_of
    from winnow.training.load import load_model
    from winnow.training.resolve import resolve_members

    config = {
        "model": {"path": str(folder), "dtype": dtype},
        "task": {"use": "arithmetic", "size": 64},
        "select": "all",
        "device": "cpu",
        "ranks": {"learner": "sharded"},
    }
    members = resolve_members(validate(config), base=Path.cwd())
    with ranks.joined(timeout_seconds=300):
        parts = planned(demand_of(members, torch.device("cpu"), longest_prompt=64))
        tokenizer = load_tokenizer(str(folder))
        warm_up()
        ranks.gather_from_all(None)
        with peak() as loading:
            loaded = load_model(members.config, torch.device("cpu"), None, tokenizer, later=True)
            learner = make_learner(members.config, loaded, needs=members.needs, resumed=False)
            shard_learner(learner, members.config, loaded)
        held = anonymous() - loading["before"]
        for holder, parameter in learner.sums():
            holder.grad = torch.zeros_like(parameter)
        learner.step()
        ranks.gather_from_all(None)
        with peak() as saving:
            shares = learner.shares()
            output = folder / f"run_{dtype}_{ranks.count()}"  # of its own, or an equal step would be kept
            if ranks.is_writer():
                output.mkdir(exist_ok=True)
            shares.written(
                lambda: checkpoint.save(
                    output,
                    1,
                    write_model=lambda path: learner.write_model(path, loaded.files, shares.read),
                    tensors=learner.state(),
                    read=shares.read,
                    state={},
                    keep_last=1,
                )
            )
        ranks.gather_from_all(None)
        own = ranks.rank()
    written = parts["one tensor of a checkpoint"] if own == 0 else 0
    weights, moments = parts["share of the weights"], parts["share of the optimizer"]
    plan = {"load": weights + parts["pass"], "save": weights + moments + written}
    grown = {"load": loading["grown"], "save": saving["grown"] + saving["before"] - loading["before"]}
    found = {
        "plan": plan,
        "grown": grown,
        "plan / grown": {when: round(plan[when] / grown[when], 3) for when in plan},
        "share / held after loading": round(weights / held, 3),
        "whole model in this precision": sum(p.numel() for p in learner.model.model.parameters())
        * (4 if dtype == "float32" else 2),
    }
    file(folder, own).write_text(json.dumps(found))


def planned(demand: Any) -> dict[str, int]:
    """Bytes of the policy's parts that exist at all times, and of the start of a pass."""
    from winnow.memory.footprint import gathered_bytes, gathered_root_bytes
    from winnow.memory.parts import policy_parts

    start = gathered_bytes(demand.model, demand.ranks) + gathered_root_bytes(demand.model, demand.ranks)
    parts = policy_parts(demand, frozenset())
    return {**{part.name: part.bytes for part in parts if part.phase == "always"}, "pass": start}


def warm_up() -> None:
    """Import what a load imports, so that modules are not part of the growth."""
    import torch

    from winnow.models.load import load

    saved = load("bundled", later=True)
    assert saved.saved is not None
    model = saved.saved.copy_of(saved.model)
    with torch.no_grad():
        model(input_ids=torch.zeros((1, 2), dtype=torch.int64))


def anonymous() -> int:
    from winnow.memory.usage import process_memory

    return process_memory()["RssAnon"]


@contextlib.contextmanager
def peak() -> Iterator[dict[str, int]]:
    """ "before", and at the end "grown": the most bytes over those before."""
    found, ended = {"before": anonymous(), "grown": 0}, threading.Event()

    def sample() -> None:
        while not ended.wait(SECONDS):
            found["grown"] = max(found["grown"], anonymous() - found["before"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
