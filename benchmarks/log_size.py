"""Bytes per token of a run's rollouts on disk, by column: GSM8K's solutions under a tokenizer of a real vocabulary.

    python benchmarks/log_size.py TOKENIZER [--data FOLDER]

TOKENIZER is a tokenizer's folder, or a file of tiktoken ranks (package tiktoken), such as the 151,643 of Qwen's that
the package dashscope contains. A group's rollouts are the solutions of different problems, so that no two are equal;
rollouts of one prompt have more in common and need fewer bytes. Log-probs are logarithms of draws from Beta(1.6, 0.25)
with a mean of -0.19, 37% of them above log 0.99. They are float32 with a random mantissa; those of a policy are
differences of rounded numbers, and have fewer random bits. Every rollout has text, and each group a different prompt.
The values of a value model are logistic functions of random walks, also float32 with a random mantissa. The value model
reads kept rollouts and trains on returns of lambda 1 (Monte-Carlo) or 0.95. Advantages are then GAE's, one per token.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frame
import numpy as np
import pyarrow.parquet as pq

from winnow.algos.gae import gae, value_targets
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.logbook import Logbook

WORDS = (  # pieces that are encoded separately
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PAPER_ROLLOUTS, PAPER_TOKENS = 1_000_000, 1_000


def encoder(path: Path) -> tuple[Callable[[str], list[int]], int]:
    """A function from text to tokens, and the size of its vocabulary."""
    if path.is_dir():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path)
        return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], len(tokenizer)
    import tiktoken

    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    return tiktoken.Encoding(path.stem, pat_str=WORDS, mergeable_ranks=ranks, special_tokens={}).encode, len(ranks)


def solved(data: Path) -> list[tuple[str, str]]:
    """(question, solution) pairs of GSM8K's training set, without calculator annotations."""
    lines = (data / "gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["question"], re.sub(r"<<.*?>>", "", row["answer"])) for row in map(json.loads, lines)]


def groups(
    problems: list[tuple[str, str]], encode: Callable[[str], list[int]], *, count: int, rollouts: int, kept: float
) -> Iterator[Group]:
    """Groups whose rollouts are solutions of other problems; a share of the rollouts is kept."""
    rng = np.random.default_rng(0)
    dealt = iter(rng.permutation(len(problems))[: count * rollouts])
    for place in range(count):
        question = problems[place][0]
        prompt = Prompt(
            id=f"gsm8k-train-{place}", tokens=np.array(encode(question)), text=question, answer="42", task="gsm8k"
        )
        texts = [problems[next(dealt)][1] for _ in range(rollouts)]
        right = rng.random(rollouts) < 0.5
        keep = rng.permutation(rollouts) < round(kept * rollouts)
        yield Group(
            prompt=prompt,
            rollouts=tuple(_rollout(i, text, np.array(encode(text)), rng) for i, text in enumerate(texts)),
            outcomes=tuple(
                Outcome(
                    reward=float(r),
                    correct=bool(r),
                    kind="correct" if r else "wrong",
                    answer="42",
                    seconds=rng.random(),
                )
                for r in right
            ),
        ).fill(keep=keep, advantages=np.where(keep, rng.standard_normal(rollouts), 0.0))


def _rollout(index: int, text: str, tokens: Any, rng: np.random.Generator) -> Rollout:
    logprobs = np.log(np.clip(rng.beta(1.6, 0.25, len(tokens)), 1e-9, 1 - 1e-7))
    return Rollout(index=index, tokens=tokens, logprobs=logprobs, text=text, finish="stop", version=0)


def valued(group: Group, *, lam: float) -> Group:
    """The group with the values and returns of a value model that reads kept rollouts, with this lambda."""
    rng = np.random.default_rng(len(group.prompt.tokens))
    walks = [np.cumsum(rng.normal(0.0, 0.2, length)) for length in group.lengths]
    values = tuple(
        np.where(keep, 1 / (1 + np.exp(-walk)), np.nan) for walk, keep in zip(walks, group.keep, strict=True)
    )
    bare = dataclasses.replace(group, advantages=None).fill(values=values)
    (advantages,) = gae([bare])
    return bare.fill(returns=value_targets(bare, gamma=1.0, lam=lam), advantages=advantages)


def measured(made: list[Group], **keys: Any) -> dict[str, Any]:
    """Bytes per token of a step's file, and of its columns."""
    with tempfile.TemporaryDirectory() as folder:
        Logbook(Path(folder), seed=0, **keys).write(0, {}, made, [])
        path = Path(folder) / "rollouts" / "step-000000.parquet"
        size, parts = path.stat().st_size, pq.ParquetFile(path).metadata
    tokens = sum(len(rollout.tokens) for group in made for rollout in group.rollouts)
    columns: dict[str, int] = {}
    for part in range(parts.num_row_groups):
        for place in range(parts.num_columns):
            column = parts.row_group(part).column(place)
            name = column.path_in_schema.partition(".")[0]
            columns[name] = columns.get(name, 0) + column.total_compressed_size
    largest = sorted(columns.items(), key=lambda item: -item[1])
    return {
        "bytes_per_token": round(size / tokens, 3),
        "without_text": round((size - columns["text"]) / tokens, 3),
        "by_column": {name: round(taken / tokens, 3) for name, taken in largest if taken / tokens >= 0.001},
        f"{PAPER_ROLLOUTS:,}_rollouts_of_{PAPER_TOKENS:,}_tokens_GB": round(
            size / tokens * PAPER_ROLLOUTS * PAPER_TOKENS / 1e9, 2
        ),
    }


def main() -> None:
    parser = frame.parser(__doc__, prompts=(32, "of the step"), rollouts=(64, "of each prompt"))
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WINNOW_TEST_DATA", ".")))
    options = frame.parse(parser)
    encode, vocabulary = encoder(options.tokenizer)
    problems = solved(options.data)
    report: dict[str, Any] = {"vocabulary": vocabulary}
    for name, (kept, keys) in {
        "all kept": (1.0, {}),
        "1/4 kept": (0.25, {}),
        'log.rollouts = "kept", 1/4 kept': (0.25, {"rollouts": "kept"}),
    }.items():
        made = list(groups(problems, encode, count=options.prompts, rollouts=options.rollouts, kept=kept))
        report[name] = measured(made, **keys)
        if name == "1/4 kept":
            for lam in (1.0, 0.95):
                report[f"{name}, a value model taught lambda {lam}"] = measured([valued(g, lam=lam) for g in made])
    lengths = [len(rollout.tokens) for group in made for rollout in group.rollouts]
    report |= {"rollouts": len(lengths), "tokens": sum(lengths), "tokens_of_a_rollout": round(np.mean(lengths).item())}
    del options.tokenizer, options.data  # the result must not contain paths of this machine
    frame.finish("log_size", report, options, packages=("winnow-rl", "pyarrow", "numpy"), show=tuple(report))


if __name__ == "__main__":
    main()
