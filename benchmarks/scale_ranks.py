"""What ranks exchange, store and compute redundantly per step: measured on this machine, and extrapolated.

    python benchmarks/scale_ranks.py --data path/of/gsm8k --tokenizer FOLDER

Measured are bytes and nanoseconds of one core per sampled token. Every rank packs its own rollouts, and unpacks,
selects and schedules all of them, with 128, 1,024 and 8,192 tokens as in scale.py. The counters of a small policy on
two ranks, replicated and sharded, are compared with the formulas below. The formulas then give a step of PODS' settings
(d) and (e), Qwen2.5-3B and 7B on eight GPUs of 80 GB (configs/published), with every rollout at its full length. They
also give the redundant work of every rank for 64 and 512 ranks with a prompt each. The memory is that of `winnow check
--ranks 8`.

Bytes are those that a rank sends in a ring: (N - 1) / N of what is gathered or scattered, twice that for an all-reduce.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import frame
import numpy as np
import rank_memory
import torch
from half_billion import write_model
from launched import launch
from scale import LENGTHS, PER_PROMPT, Recorded, batches, metrics, per_token, recorded, words_and_prompts

from winnow.algos.advantage import grpo
from winnow.algos.selectors import max_variance
from winnow.core.collect import _Sent
from winnow.errors import ConfigError
from winnow.memory import footprint
from winnow.models.load import load_tokenizer
from winnow.models.meta import meta_model
from winnow.records import Group
from winnow.seeds import Rng

PUBLISHED = Path(__file__).parents[1] / "configs" / "published"
GPUS, MEMORY = 8, "80GiB"
# config.json of Qwen/Qwen2.5-3B-Instruct and Qwen/Qwen2.5-7B-Instruct on the hub; the model cards say 3.09B and 7.61B
# parameters, of which 2.77B and 6.53B are not embeddings.
COMMON = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}
SHAPES = {
    "3B": {
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
CONFIGS = {"3B": "pods_d.toml", "7B": "pods_e.toml"}


def main() -> None:
    made = frame.parser(__doc__, rounds=5, tokens=(2**20, "of a step"), threads=1)
    made.add_argument("--data", required=True, help="folder with gsm8k_train.jsonl and gsm8k_test.jsonl")
    made.add_argument("--tokenizer", default="bundled", help="a tokenizer's folder")
    options = frame.parse(made)
    token = of_a_token(options)
    print(json.dumps(token), flush=True)
    report = {
        "a token": token,
        "two ranks": two_ranks(options),
        "published": {size: published(size, token) for size in SHAPES},
        "a prompt for each rank": {str(ranks): alike(ranks, token) for ranks in (8, 64, 512)},
    }
    del options.data
    frame.finish("scale_ranks", report, options, show=("two ranks", "published", "a prompt for each rank"))


def of_a_token(options: argparse.Namespace) -> dict[str, Any]:
    """length -> cost of the work that every rank does with a step's rollouts."""
    tokenizer = load_tokenizer(options.tokenizer)
    words, prompts = words_and_prompts(tokenizer)
    steps = [judged(recorded(tokenizer, words, prompts, length, options.tokens)) for length in LENGTHS]
    sent, chosen = {s.length: packed(s) for s in steps}, {s.length: credited(s) for s in steps}
    parts = {
        "packed": packed,
        "unpacked": lambda step: unpacked(step, sent[step.length]),
        "selected and credited": credited,
        "scheduled": lambda step: batches(chosen[step.length]),
        "metrics": lambda step: metrics(chosen[step.length]),
    }
    texts = {s.length: sum(len(r.text.encode()) for g in s.groups for r in g.rollouts) / s.tokens for s in steps}
    return {
        "bytes": {str(step.length): round(len(sent[step.length]) / step.tokens, 2) for step in steps},
        "bytes of its text": {str(length): round(size, 2) for length, size in texts.items()},
        **{name: per_token(steps, work, options.rounds) for name, work in parts.items()},
    }


def judged(step: Recorded) -> Recorded:
    """Groups as they are gathered: with outcomes and float32 log-probs, without advantages."""
    groups = []
    for group in step.groups:
        exact = [rollout.logprobs.astype(np.float32).astype(np.float64) for rollout in group.rollouts]
        rollouts = tuple(dataclasses.replace(r, logprobs=e) for r, e in zip(group.rollouts, exact, strict=True))
        groups.append(Group(prompt=group.prompt, rollouts=rollouts, outcomes=group.outcomes))
    return dataclasses.replace(step, groups=tuple(groups))


def packed(step: Recorded) -> bytes:
    """Pack a rank's groups as it sends them."""
    return pickle.dumps(_Sent.of(range(len(step.groups)), step.groups), protocol=5)


def unpacked(step: Recorded, data: bytes) -> None:
    pickle.loads(data).groups([group.prompt for group in step.groups], 0)


def credited(step: Recorded) -> Recorded:
    """Select a quarter of the rollouts."""
    keep = PER_PROMPT // 4
    kept = [group.fill(keep=max_variance(group, Rng((0,)), keep_per_prompt=keep)) for group in step.groups]
    filled = [group.fill(advantages=own) for group, own in zip(kept, grpo(kept), strict=True)]
    return dataclasses.replace(step, groups=tuple(filled))


def two_ranks(options: argparse.Namespace) -> dict[str, Any]:
    """The exchanges of rank_memory.py's policy in a step on two ranks, and by the formulas."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="winnow-scale-ranks-") as name:
        folder = Path(name)
        write_model(folder, rank_memory.SHAPE)
        model = meta_model(name, dtype="float32")
        for learner in rank_memory.LEARNERS:
            own = ["--data", options.data, "--folder", name, "--learner", learner]
            launch(2, rank_memory.__file__, own, frame.AT_ONCE)
            counted = json.loads(rank_memory.file(folder, learner, 0).read_text())
            found[learner] = {key: counted[key] for key in ("bytes", "tokens", "fsdp")}
        found["replicated"]["gradients by formula"] = all_reduced(model, 2)
        scattered = found["sharded"]["fsdp"]["scattered"]
        passes = scattered["calls"] // (model.config.num_hidden_layers + 1)
        found["sharded"]["backward passes"] = passes
        found["sharded"]["gathered by formula"] = passes * gathered(model, 2)
        found["sharded"]["scattered by formula"] = passes * scattered_once(model, 2)
    return found


def all_reduced(model: Any, ranks: int) -> float:
    """Bytes that a rank sends for the gradients of an update: float32, once as pieces and once as sums."""
    return 2 * (ranks - 1) / ranks * 4 * numbers(model)


def gathered(model: Any, ranks: int) -> int:
    """Total bytes gathered in a forward and a backward pass: the layers twice, and the other parameters once."""
    root = footprint.gathered_root_bytes(model, ranks)
    return 2 * (footprint.frozen_share_bytes(model, ranks) * ranks) - root


def scattered_once(model: Any, ranks: int) -> int:
    """Total bytes scattered in a backward pass, in float32."""
    return ranks * footprint.gradient_share_bytes(model, ranks)


def numbers(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def published(size: str, token: dict[str, Any]) -> dict[str, Any]:
    """A step on eight GPUs, by the formulas, and the memory plan of both learners."""
    from winnow.config_file import load
    from winnow.training.budget import budget, plan_devices
    from winnow.training.resolve import resolve_members

    with tempfile.TemporaryDirectory(prefix="winnow-scale-ranks-") as name:
        (Path(name) / "config.json").write_text(json.dumps({**COMMON, **SHAPES[size]}))
        own = [f"model.path={json.dumps(name)}", "rollout.engine.use='native'"]
        plans, plan = {}, partial(plan_devices, memory=parse_bytes(MEMORY), planned_ranks=GPUS)
        for learner in rank_memory.LEARNERS:
            sets = [*own, f"ranks.learner={json.dumps(learner)}"]
            members = resolve_members(load(PUBLISHED / CONFIGS[size], sets), base=PUBLISHED)
            plans[learner] = in_words(plan(members, torch.device("cuda")))
        counts, model = budget(members), meta_model(name, dtype="bfloat16")
        sampled = counts.rollouts * members.config.rollout.max_new_tokens
        passes = -(-counts.micro_batches // GPUS)
        ring = (GPUS - 1) / GPUS
        return {
            "parameters": numbers(model),
            "sampled tokens": sampled,
            "GB of gathered rollouts": gigabytes(sampled * token["bytes"]["1024"]),
            "micro-batches of a rank": passes,
            "GB given by a replicated rank": {"gradients": gigabytes(all_reduced(model, GPUS)), "weights": 0.0},
            "GB given by a sharded rank": {
                "weights gathered by passes": gigabytes(ring * passes * gathered(model, GPUS)),
                "gradients": gigabytes(ring * passes * scattered_once(model, GPUS)),
                "weights to its engine": gigabytes(ring * GPUS * footprint.frozen_share_bytes(model, GPUS)),
            },
            "GB of a checkpoint": gigabytes(plan(members, torch.device("cuda")).checkpoint),
            "memory": plans,
        }


def in_words(plan: Any) -> dict[str, Any]:
    """Peak GiB of a GPU, and the lines of `winnow check` about it."""
    try:
        plan.check(lambda device: parse_bytes(MEMORY) if device.startswith("cuda") else None)
        fits = True
    except ConfigError:
        fits = False
    lines = list(plan.lines(lambda device: parse_bytes(MEMORY) if device.startswith("cuda") else None))
    return {"fits": fits, "GiB": round(plan.need("cuda:0") / 2**30, 1), "said": [line.strip() for line in lines]}


def parse_bytes(text: str) -> int:
    from winnow.memory.plan import parse_bytes

    return parse_bytes(text)


def alike(ranks: int, token: dict[str, Any]) -> dict[str, Any]:
    """The redundant work of each rank if every rank has a prompt with 512 rollouts of 1,024 tokens."""
    tokens, own = ranks * 512 * 1024, 512 * 1024
    seconds = {"packed, its own": own * nanoseconds(token, "packed") / 1e9}
    seconds |= {
        name: tokens * nanoseconds(token, name) / 1e9
        for name in ("unpacked", "selected and credited", "scheduled", "metrics")
    }
    return {
        "tokens": tokens,
        "GB that each rank receives": gigabytes(tokens * token["bytes"]["1024"]),
        "seconds of one core of each rank": {name: round(value, 2) for name, value in seconds.items()},
        "in all": round(sum(seconds.values()), 2),
    }


def nanoseconds(token: dict[str, Any], part: str) -> float:
    return float(token[part]["ns_per_token_1024"])


def gigabytes(size: float) -> float:
    return round(size / 1e9, 3)


if __name__ == "__main__":
    sys.exit(main())
