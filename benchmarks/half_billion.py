"""A model of half a billion parameters on this CPU: planned and measured memory of two steps, and the seconds
compared with plain transformers.

    python benchmarks/half_billion.py --data path/of/gsm8k

The shape is Qwen2.5-0.5B's (494M parameters, 151,936 tokens, tied) with random weights. The published tokenizer is not
part of this repository. A small one of the same kind encodes GSM8K's questions: prompts have about twice as many tokens
as published, and most sampled tokens have no text. The reward is a hash of the sampled tokens, so that no group is flat
and the update trains every rollout. All weights are trained once, and adapters once, each in a separate process. Plain
transformers then does the same work in another process: `generate` for the same prompts with as many tokens, then
forward, backward and AdamW on the sequences that winnow trained on, two rows at a time.

With gradient checkpointing winnow reads each prompt with each rollout, as its plan assumes. Without it a prompt is read
once for all its rollouts, which is faster and uses less memory than planned.

"grown" is the peak memory of a process (VmHWM) minus the use before the model was loaded (VmRSS). Freed memory is
returned to the system at once, because the plan does not contain what the C library would keep; --keep-freed turns
this off.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from trl_sides import hash_reward

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from published_models import make

QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151_936,
}
LORA = {"rank": 16, "alpha": 32.0, "targets": "all-linear"}
WAYS = ("full", "lora")
PLAIN_ROWS = 2  # rows per forward and backward pass of plain transformers
LEARNING_RATE = 1e-6
Sizes = argparse.Namespace  # prompts, rollouts, tokens, steps, micro_batch_tokens, checkpointing, data


def main() -> None:
    made = frame.parser(__doc__, steps=2, prompts=2, rollouts=8, tokens=96, threads=1, micro_batch_tokens=1024)
    made.add_argument("--checkpointing", choices=("none", "selective", "full"), default="selective")
    made.add_argument("--data", required=True, help="folder with gsm8k_train.jsonl and gsm8k_test.jsonl")
    made.add_argument("--keep-freed", action="store_true", help="leave freed memory to the C library")
    made.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS), help="what is trained")
    made.add_argument("--child", choices=("winnow", "plain"), help=argparse.SUPPRESS)
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = frame.parse(made)
    if options.child:
        side = {"winnow": winnow_side, "plain": plain_side}[options.child]
        found = side(options.way[0], options.folder, options)
        (options.folder / f"{options.child}_{options.way[0]}.json").write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="winnow-half-billion-") as name:
        folder = Path(name)
        write_model(folder, QWEN)
        sides, at_once = ("winnow", "plain"), {} if options.keep_freed else frame.AT_ONCE
        report = {way: compared(*(child(side, way, folder, at_once) for side in sides)) for way in options.way}
    del options.child, options.folder, options.data
    frame.finish("half_billion", report, options, packages=(*frame.PACKAGES, "peft"), show=options.way)


def child(side: str, way: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The result of one side, measured in a separate process."""
    own = ["--child", side, "--folder", str(folder), "--way", way]
    subprocess.run([sys.executable, __file__, *sys.argv[1:], *own], check=True, env={**os.environ, **environment})
    found: dict[str, Any] = json.loads((folder / f"{side}_{way}.json").read_text())
    print(way, side, json.dumps({k: v for k, v in found.items() if k != "trained"}), flush=True)
    return found


def compared(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Ratios of the last step's seconds; the first step is the warm-up."""
    last = [side["seconds"][-1] for side in (ours, plain)]
    ratios = {phase: round(last[1][phase] / last[0][phase], 3) for phase in ("generate", "update", "step")}
    return {
        "plan / grown": round(ours["plan"]["need"] / ours["grown"], 3),
        "plain / winnow": ratios,
        "winnow": {key: value for key, value in ours.items() if key != "trained"},
        "plain": plain,
    }


def write_model(folder: Path, shape: dict[str, Any]) -> None:
    """The fixture's tokenizer, and random weights of a shape."""
    from transformers import AutoConfig, AutoModelForCausalLM

    make("qwen2.5", folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **shape, "torch_dtype": "float32"}))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).save_pretrained(folder)


def winnow_side(way: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Steps as in `fit`, without evaluation and checkpoints."""
    from winnow.config_file import validate
    from winnow.core.plan import plan
    from winnow.core.step import train_step
    from winnow.training.budget import plan_devices
    from winnow.training.build import build
    from winnow.training.resolve import resolve_members

    _import_what_computes()
    members = resolve_members(validate(config_of(way, folder, sizes)), base=Path.cwd())
    before = held("VmRSS")
    built = build(members, folder=Path(tempfile.mkdtemp(dir=folder)), device=torch.device("cpu"))
    seconds, peaks, trained = [], [], []
    run, progress = built.run, built.progress
    begin = run.logbook.begin
    run.logbook.begin = lambda step, groups, updates: (  # type: ignore[method-assign]
        trained.append([_as_lists(group) for group in groups]) or begin(step, groups, updates)
    )
    for step in range(sizes.steps):
        plan(run, progress, step)
        metrics = train_step(run, progress, step).metrics
        seconds.append(
            {k.removeprefix("seconds/"): round(v, 2) for k, v in metrics.items() if k.startswith("seconds/")}
        )
        peaks.append({k.split("/")[1]: round(v) for k, v in metrics.items() if k.endswith("cpu/peak_resident")})
    grown = held("VmHWM") - before
    longest = max(len(p.tokens) for p in run.prompts.prompts)
    planned = plan_devices(members, torch.device("cpu"), longest_prompt=longest)
    built.close()
    parts = {f"{part.phase}: {part.name}": part.bytes for part in planned.parts if part.device == "cpu"}
    return {
        "parameters": sum(p.numel() for p in run.learner.model.model.parameters()),
        "trained rollouts": [sum(len(group["rollouts"]) for group in step) for step in trained],
        "prompt tokens": [len(group["prompt"]) for step in trained for group in step],
        "longest prompt of the data": longest,
        "grown": grown,
        "plan": {"need": planned.need("cpu"), "parts": parts},
        "peak resident, MiB": peaks,
        "seconds": seconds,
        "trained": trained,
    }


def config_of(way: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """The configuration of the comparison."""
    return {
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "model": {
            "path": str(folder),
            "dtype": "float32",
            "gradient_checkpointing": sizes.checkpointing,
            **({"lora": LORA} if way == "lora" else {}),
        },
        "task": {"use": "gsm8k", "path": str(Path(sizes.data).resolve())},
        "prompt": {"template": "question_only"},
        "rollout": {
            "engine": "native",
            "prompts_per_step": sizes.prompts,
            "rollouts_per_prompt": sizes.rollouts,
            "max_new_tokens": sizes.tokens,
            "max_rollouts_at_once": sizes.prompts * sizes.rollouts,
        },
        "reward": {"use": hash_reward},
        "select": "all",
        "advantage": "grpo",
        "update": {"tokens_per_micro_batch": sizes.micro_batch_tokens},
        "optimizer": {"learning_rate": LEARNING_RATE},
        "evaluate": {"problems": 1, "rollouts_per_prompt": 1, "greedy": False},
        "verify": {"workers": 0},
    }


def plain_side(way: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """The same prompts, lengths and sequences, by transformers' own functions."""
    _import_what_computes()
    steps = json.loads((folder / f"winnow_{way}.json").read_text())["trained"]
    before = held("VmRSS")
    model = plain_model(way, folder)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    seconds = []
    for groups in steps:
        start = time.perf_counter()
        generate(model, [group["prompt"] for group in groups for _ in group["rollouts"]], sizes.tokens)
        sampled = time.perf_counter()
        update(model, optimizer, groups)
        end = time.perf_counter()
        phases = {"generate": sampled - start, "update": end - sampled, "step": end - start}
        seconds.append({name: round(value, 2) for name, value in phases.items()})
    return {"grown": held("VmHWM") - before, "rows of a micro-batch": PLAIN_ROWS, "seconds": seconds}


def plain_model(way: str, folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if way == "full":
        return model
    import peft

    adapter = {"r": LORA["rank"], "lora_alpha": LORA["alpha"], "target_modules": LORA["targets"]}
    return peft.get_peft_model(model, peft.LoraConfig(**adapter, task_type="CAUSAL_LM"))


@torch.no_grad()
def generate(model: Any, prompts: list[list[int]], tokens: int) -> Tensor:
    """Sample the same number of tokens for every prompt, padded on the left."""
    model.eval()
    width = max(map(len, prompts))
    given = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = {"do_sample": True, "top_k": 0, "temperature": 1.0, "pad_token_id": 0}
    answer: Tensor = model.generate(
        input_ids=given, attention_mask=real, min_new_tokens=tokens, max_new_tokens=tokens, **options
    )
    return answer


def update(model: nn.Module, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """The policy gradient of every sequence, a few rows at a time, padded on the right; then AdamW."""
    rows = [
        (group["prompt"], tokens, advantage)
        for group in groups
        for tokens, advantage in zip(group["rollouts"], group["advantages"], strict=True)
    ]
    total = sum(len(tokens) for _, tokens, _ in rows)
    for start in range(0, len(rows), PLAIN_ROWS):
        part = rows[start : start + PLAIN_ROWS]
        width = max(len(prompt) + len(tokens) for prompt, tokens, _ in part)
        given = torch.tensor([p + t + [0] * (width - len(p) - len(t)) for p, t, _ in part])
        weights = torch.zeros(len(part), width - 1)
        for weight, (prompt, tokens, advantage) in zip(weights, part, strict=True):
            weight[len(prompt) - 1 : len(prompt) - 1 + len(tokens)] = advantage / total
        logits = model(input_ids=given, use_cache=False).logits[:, :-1]
        losses = functional.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten(), reduction="none")
        (losses * weights.flatten()).sum().backward()
        del logits, losses
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def held(name: str) -> int:
    """A value of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@functools.cache
def _import_what_computes() -> None:
    """Import the modules that both sides need, so that they are not part of the growth."""
    import peft
    import transformers

    assert peft.get_peft_model is not None
    tiny = transformers.Qwen2Config(**{**QWEN, "hidden_size": 28, "intermediate_size": 8, "num_hidden_layers": 1,
                                       "max_window_layers": 1, "vocab_size": 8})  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(tiny)
    model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    torch.optim.AdamW(model.parameters(), fused=True).step()


def _as_lists(group: Any) -> dict[str, Any]:
    return {
        "prompt": group.prompt.tokens.tolist(),
        "rollouts": [rollout.tokens.tolist() for rollout in group.rollouts],
        "advantages": np.asarray(group.advantages).tolist(),
    }


if __name__ == "__main__":
    main()
