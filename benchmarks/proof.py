"""The memory plan over torch's tracker, with operations and exchanged bytes, of updates too large for this machine.

    nice -n 10 python benchmarks/proof.py --folder FOLDER --minutes 60

The cases are shapes of Qwen2.5 x ranks x checkpointing x precision x tokens of a micro-batch, chosen so that every pair
of values occurs together, most pairs more than once. Every result is a file of --folder, so a second call continues.
The cheapest cases come first. After --minutes no new case starts, and the dated result lists those that are left.
"""

from __future__ import annotations

import collections
import itertools
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import frame

COMMON = {  # of config.json of Qwen/Qwen2.5-*-Instruct on the hub
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}
KEYS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
SHAPES = {
    "0.5B": (24, 896, 4_864, 14, 2),
    "1.5B": (28, 1_536, 8_960, 12, 2),
    "3B": (36, 2_048, 11_008, 16, 2),
    "7B": (28, 3_584, 18_944, 28, 4),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "shape": tuple(SHAPES),
    "ranks": (1, 2, 8, 64),
    "checkpointing": ("none", "selective", "full"),
    "precision": ("float32", "bfloat16", "adapter"),
    "tokens": (1_024, 4_096, 8_192),
}
PROMPT, COMPLETION = 128, 896  # tokens of the longest row
Case = tuple[Any, ...]


def main() -> None:
    made = frame.parser(__doc__, cases=40, minutes=(60, "after which no case starts"))
    made.add_argument("--folder", type=Path, required=True, help="of the cases' results")
    options = frame.parse(made)
    begin = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    found, left = {}, []
    for case in sorted(pairwise(options.cases), key=cost):
        name = "_".join(map(str, case))
        file = options.folder / f"{name}.json"
        if not file.exists() and time.monotonic() - begin < 60 * options.minutes:
            file.write_text(json.dumps(proved(case)))
            print(name, json.loads(file.read_text())["plan / tracker"], flush=True)
        if file.exists():
            found[name] = json.loads(file.read_text())
        else:
            left.append(name)
    del options.folder
    worst = collections.defaultdict[str, list[float]](list)
    for result in found.values():
        for row, ratio in result["plan / tracker"].items():
            worst[row].append(ratio)
    report = {
        "plan / tracker": {row: {"least": min(r), "most": max(r), "cases": len(r)} for row, r in worst.items()},
        "cases": found,
        "left": left,
    }
    frame.finish("proof", report, options, show=("plan / tracker", "left"))


def pairwise(count: int) -> list[Case]:
    """`count` cases, each with the pairs of values that were least often together so far."""
    every, chosen = list(itertools.product(*VALUES.values())), list[Case]()
    random.Random(0).shuffle(every)
    seen: collections.Counter[Any] = collections.Counter()

    def pairs(case: Case) -> list[Any]:
        return list(itertools.combinations(enumerate(case), 2))

    for _ in range(count):
        left = [case for case in every if case not in chosen]
        best = max(left, key=lambda case: sum(4.0 ** -seen[pair] for pair in pairs(case)))
        chosen.append(best)
        seen.update(pairs(best))
    return chosen


def cost(case: Case) -> float:
    """An estimate of the time of a case, in layers."""
    shape, ranks, how, precision, _ = case
    slow = (2 if ranks > 1 else 1) * (1 if how == "none" else 1.5) * (3 if precision == "adapter" else 1)
    return SHAPES[shape][0] * slow


def proved(case: Case) -> dict[str, Any]:
    """A case's bytes by part, operations per token and exchanged bytes."""
    import torch

    from winnow.commands.check.proof import prove
    from winnow.config_file import validate
    from winnow.training.budget import demand_of, log_probs_needed
    from winnow.training.resolve import resolve_members

    shape, ranks, how, precision, tokens = case
    sizes = dict(zip(KEYS, SHAPES[shape], strict=True))
    vocabulary = {"vocab_size": 152_064 if shape == "7B" else 151_936, "tie_word_embeddings": shape != "7B"}
    adapter = {"dtype": "bfloat16", "lora": {"rank": 32}}
    with tempfile.TemporaryDirectory(prefix="winnow-proof-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**COMMON, **sizes, **vocabulary}))
        model = adapter if precision == "adapter" else {"dtype": precision}
        config = {
            "model": {**model, "path": folder, "gradient_checkpointing": how},
            "select": "all",
            "prompt": {"max_prompt_tokens": PROMPT},
            "rollout": {"prompts_per_step": 64, "rollouts_per_prompt": 16, "max_new_tokens": COMPLETION},
            "update": {"tokens_per_micro_batch": tokens, "updates_per_step": 2},
            "ranks": {"learner": "sharded"},
        }
        members = resolve_members(validate(config), base=Path())
        demand = demand_of(members, torch.device("cpu"), longest_prompt=PROMPT, planned_ranks=ranks)
        found = prove(demand, needs=log_probs_needed(members))
    return {
        "plan / tracker": {row.name: round(row.ratio, 4) for row in found.rows},
        "bytes": {row.name: {"plan": row.planned, "tracker": row.tracked} for row in found.rows},
        "passes": {
            each.name: {
                "tokens": each.tokens,
                "completion tokens": each.completion_tokens,
                "operations": each.operations,
                "gathered": each.gathered,
                "scattered": each.scattered,
            }
            for each in found.passes
        },
        "seconds": round(found.seconds, 1),
    }


if __name__ == "__main__":
    main()
