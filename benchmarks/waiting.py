"""The share of a step in which ranks wait at exchanges, by the way in which prompts and sequences are distributed.

    OMP_NUM_THREADS=1 python benchmarks/waiting.py

--ranks processes with one thread of torch each form a process group, in which short runs alternate: the default task
with equal counts (the recipe arithmetic), and with GVM's (the recipe gvm_grpo). winnow distributes prompts by their
planned rollouts, the most first, and sequences of an update by their tokens. The alternatives are one by one in order,
and equally many sequences per rank. Equal counts are distributed one by one in both ways.

A step's share is `ranks/waiting_share`: seconds at exchanges over seconds of the step, both means over the ranks. The
result is the sum of the former over the sum of the latter, without the first steps of a run, as the median over the
rounds. "The most of a rank over the mean" is no time and does not depend on the load of the machine. It is the ratio of
the largest to the mean share of a rank, of planned rollouts and of trained tokens.
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

from winnow.recipes import recipe_paths

COUNTS = {"equal": recipe_paths()["arithmetic"], "gvm": recipe_paths()["gvm_grpo"]}
WAYS = {  # (prompts by planned rollouts, sequences by tokens)
    "as winnow deals": (True, True),
    "prompts one by one": (False, True),
    "sequences by number": (True, False),
    "neither": (False, False),
}
EXCESS = "excess.json"  # every rank computes and writes the same
FEW = 8  # prompts; a call with fewer belongs to an evaluation
WARM_UP = 2  # first steps of a run, which allocate memory and are omitted
NO_MORE = ["evaluate.problems=2", "evaluate.rollouts_per_prompt=1", "evaluate.greedy=false", "checkpoint.every=0"]
MEANS = ("bytes_rollouts", "bytes_gradients", "bytes_logprobs", "bytes_decisions", "bytes_metrics", "bytes_norms")


def main() -> None:
    made = frame.parser(__doc__, ranks=2, steps=8, rounds=2)
    made.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for every run")
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # for the results of the ranks
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
    """Make every run of every round, as one of the ranks."""
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
    with dealing(*WAYS[way]) as excess:
        if fit(members).interrupted:
            sys.exit("interrupted")
    (folder / EXCESS).write_text(json.dumps({what: sum(of) / len(of) for what, of in excess.items()}))


@contextlib.contextmanager
def dealing(by_rollouts: bool, by_tokens: bool) -> Iterator[dict[str, list[float]]]:
    """During the block, distribute prompts and sequences in these ways, and record the largest share over the mean one.

    The share is one of planned rollouts in sampling, and of tokens in an update.
    """
    from winnow.ranks import deal, in_runs

    excess: dict[str, list[float]] = {"rollouts": [], "tokens": []}

    def told(what: str, loads: Sequence[float], dealt: list[list[int]]) -> list[list[int]]:
        of_ranks = [sum(loads[place] for place in part) for part in dealt]
        if len(loads) >= FEW:
            excess[what].append(max(of_ranks) / (sum(of_ranks) / len(of_ranks)) - 1)
        return dealt

    def prompts(loads: Sequence[float], parts: int) -> list[list[int]]:
        one_by_one = [list(range(part, len(loads), parts)) for part in range(parts)]
        return told("rollouts", loads, deal(loads, parts) if by_rollouts else one_by_one)

    def sequences(loads: Sequence[float], parts: int) -> list[list[int]]:
        return told("tokens", loads, in_runs(loads if by_tokens else [1.0] * len(loads), parts))

    with (
        mock.patch("winnow.core.collect.deal", prompts),
        mock.patch("winnow.learner.micro_batches.in_runs", sequences),
    ):
        yield excess


def run_folder(folder: Path, counts: str, way: str, number: int) -> Path:
    return folder / f"{counts}-{list(WAYS).index(way)}-{number}"


def found(options: argparse.Namespace, folder: Path, counts: str, way: str) -> dict[str, Any]:
    """The result of one way, over all rounds."""
    excess = json.loads((run_folder(folder, counts, way, 0) / EXCESS).read_text())
    rounds = [logged(run_folder(folder, counts, way, number)) for number in range(options.rounds)]
    shares = [sum_of(rows, "ranks/seconds_waiting") / sum_of(rows, "seconds/step") for rows in rounds]
    steps = [row for rows in rounds for row in rows]
    tokens = sum_of(steps, "budget/tokens_generated")
    return {
        "waiting share": frame.median(shares, 4),
        "waiting share of each round": [round(share, 4) for share in shares],
        "waiting share of each step": [round(row["ranks/waiting_share"], 3) for row in rounds[0]],
        "the most of a rank over the mean, less 1": {what: round(more, 4) for what, more in excess.items()},
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
    """Rows of steps, without the first ones."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "seconds/step" in row][WARM_UP:]


def sum_of(rows: Sequence[dict[str, float]], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


if __name__ == "__main__":
    main()
