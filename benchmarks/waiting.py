"""What share of a step ranks wait at exchanges, by how prompts and sequences are dealt to them.

    OMP_NUM_THREADS=1 python benchmarks/waiting.py

As many processes as --ranks, one thread of torch each, join one process group, in which short runs take turns: the
default task with equal counts (configs/arithmetic.toml), and GVM's (configs/gvm_grpo.toml). Prompts are dealt by their
planned rollouts, the most first, as winnow does, or one by one in their order; sequences of an update by their tokens,
as winnow does, or as many to each rank. Equal counts are dealt one by one either way.

A step's share is `ranks/waiting_share`: seconds at exchanges over seconds of the step, both means over the ranks. What
is reported is the sum of the former over the sum of the latter, of all steps but the first ones of a run, and the
median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import frame
from launched import launch

CONFIGS = Path(__file__).parents[1] / "configs"
COUNTS = {"equal": CONFIGS / "arithmetic.toml", "gvm": CONFIGS / "gvm_grpo.toml"}
WAYS = {  # (prompts by planned rollouts, sequences by tokens)
    "as winnow deals": (True, True),
    "prompts one by one": (False, True),
    "sequences by number": (True, False),
    "neither": (False, False),
}
WARM_UP = 2  # first steps of a run, which allocate and are left out
NO_MORE = ["evaluate.problems=2", "evaluate.rollouts_per_prompt=1", "evaluate.greedy=false", "checkpoint.every=0"]
MEANS = ("bytes_rollouts", "bytes_gradients", "bytes_logprobs", "bytes_decisions", "bytes_metrics", "bytes_norms")


def main() -> None:
    made = frame.parser(__doc__, ranks=2, steps=8, rounds=2)
    made.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of every run")
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # where a rank is to write
    options = frame.parse(made)
    if options.folder is not None:
        rank_of(options)
        return
    with tempfile.TemporaryDirectory(prefix="winnow-waiting-") as name:
        launch(options.ranks, __file__, [*sys.argv[1:], "--folder", name])
        report = {counts: {way: found(options, Path(name), counts, way) for way in WAYS} for counts in COUNTS}
    del options.folder
    frame.finish("waiting", report, options, show=tuple(COUNTS))


def rank_of(options: argparse.Namespace) -> None:
    """Every run of every round, as one of the ranks."""
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for number in range(options.rounds):
        for counts, config in COUNTS.items():
            for way in WAYS:
                run(options, config, way, run_folder(options.folder, counts, way, number))
    torch.distributed.destroy_process_group()


def run(options: argparse.Namespace, config: Path, way: str, folder: Path) -> None:
    from winnow.config_file import load
    from winnow.training.fit import fit
    from winnow.training.resolve import resolve_members

    own = [f"steps={options.steps}", f"output={json.dumps(str(folder))}", "threads=1", 'device="cpu"', *NO_MORE]
    members = resolve_members(load(config, [*own, *options.set]), base=config.parent)
    with dealing(*WAYS[way]):
        fit(members)


@contextlib.contextmanager
def dealing(by_rollouts: bool, by_tokens: bool) -> Iterator[None]:
    """While this lasts, prompts and sequences are dealt in these ways."""
    from winnow.algos.dealing import in_runs

    def one_by_one(loads: Sequence[float], parts: int) -> list[list[int]]:
        return [list(range(part, len(loads), parts)) for part in range(parts)]

    def by_number(loads: Sequence[float], parts: int) -> list[list[int]]:
        return in_runs([1.0] * len(loads), parts)

    with contextlib.ExitStack() as patched:
        if not by_rollouts:
            patched.enter_context(mock.patch("winnow.training.collect.deal", one_by_one))
        if not by_tokens:
            patched.enter_context(mock.patch("winnow.learner.rank_shares.in_runs", by_number))
        yield


def run_folder(folder: Path, counts: str, way: str, number: int) -> Path:
    return folder / f"{counts}-{list(WAYS).index(way)}-{number}"


def found(options: argparse.Namespace, folder: Path, counts: str, way: str) -> dict[str, Any]:
    """Of all rounds of a way."""
    rounds = [logged(run_folder(folder, counts, way, number)) for number in range(options.rounds)]
    shares = [sum_of(rows, "ranks/seconds_waiting") / sum_of(rows, "seconds/step") for rows in rounds]
    steps = [row for rows in rounds for row in rows]
    tokens = sum_of(steps, "budget/tokens_generated")
    return {
        "waiting share": frame.median(shares, 4),
        "waiting share of each round": [round(share, 4) for share in shares],
        "waiting share of each step": [round(row["ranks/waiting_share"], 3) for row in rounds[0]],
        "seconds of a step": frame.median([row["seconds/step"] for row in steps], 3),
        "steps of which each rank is the slowest": [
            sum(row["ranks/slowest"] == rank for row in steps) for rank in range(options.ranks)
        ],
        "tokens sampled in a step": round(tokens / len(steps)),
        "tokens trained in a step": round(sum_of(steps, "budget/tokens_trained") / len(steps)),
        "bytes a rank gives in a step": {
            name.removeprefix("bytes_"): round(sum_of(steps, f"ranks/{name}") / len(steps)) for name in MEANS
        },
        "bytes of a sampled token": round(options.ranks * sum_of(steps, "ranks/bytes_rollouts") / tokens, 2),
    }


def logged(folder: Path) -> list[dict[str, float]]:
    """Rows of steps, the first ones left out."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "seconds/step" in row][WARM_UP:]


def sum_of(rows: Sequence[dict[str, float]], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


if __name__ == "__main__":
    main()
