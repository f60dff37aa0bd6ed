"""vLLM samples with the change that an adapter makes on a base of fewer bits."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import winnow
from winnow.engines.base import EngineContext
from winnow.engines.vllm.engine import vllm
from winnow.learner.policy import Policy
from winnow.models.adapter import adapter_off, add_lora
from winnow.models.load import load
from winnow.records import Prompt, Rollout, Sampling, TrainingSequence

PROMPT = Prompt(id="p", tokens=np.arange(3, 15), text="", answer=None, task="")


def logprobs(policy: Policy, rollouts: tuple[Rollout, ...]) -> np.ndarray:
    """[2, T] the log-probs of the policy and of the engine."""
    rows = [TrainingSequence(prompt=PROMPT, rollout=r, group=0, advantage=1.0, weight=1.0) for r in rollouts]
    with torch.no_grad():
        (mb,) = policy.micro_batches(rows)
        own = policy.forward(mb).logprobs.double().numpy()
    return np.stack([own, np.concatenate([row.rollout.logprobs for row in mb.sequences])])  # mb has sorted the rows


@pytest.mark.parametrize("quantization", [None, "nf4"])
def test_log_probs_change_as_the_policy_s_do(quantization: str | None) -> None:
    """The loaded adapter changes log-probs by far more than bfloat16's activations differ (0.002)."""
    if quantization is not None:
        pytest.importorskip("bitsandbytes", reason="needs bitsandbytes (winnow-rl[bnb])")
    loaded = load("bundled", dtype="bfloat16", quantization=quantization)
    model = add_lora(loaded.model, rank=8, alpha=16.0, targets="all-linear", seed=0)
    context = EngineContext(
        model=model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=32,
        context_tokens=64,
    )
    engine = vllm(context, compiled=False, key_value_gib=0.1)
    try:
        change_adapter(model)
        engine.load({name: p.detach() for name, p in model.named_parameters() if p.requires_grad}, version=1)
        rollouts = engine.generate([PROMPT], [32], Sampling(max_new_tokens=24), seed=(0,))[0].rollouts
    finally:
        engine.close()
    policy = Policy(model, temperature=1.0, pad_token=0, tokens_per_micro_batch=10**6)
    now, served = logprobs(policy, rollouts)
    with adapter_off(model):
        before, _ = logprobs(policy, rollouts)
    change = np.abs(now - before).mean()
    assert change > 0.1
    assert np.abs((served - before) - (now - before)).mean() < 0.1 * change


def change_adapter(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data.normal_(std=0.05, generator=generator)


def test_a_run_with_an_adapter_beside_a_16_bit_base_is_evaluated(train: Callable, tmp_path, capsys) -> None:
    model = {"dtype": "bfloat16", "lora": {"rank": 4}}
    reports = train(steps=2, model=model, engine={"lora": "adapter"}, optimizer={"learning_rate": 1e-2})
    assert [report.metrics["policy/parity_alarm"] for report in reports] == [0, 0]
    checkpoint = max((tmp_path / "run" / "checkpoints").iterdir())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["rollout"]["engine"]["lora"] == "adapter"
    measured = winnow.evaluate(str(checkpoint), problems=4, rollouts_per_prompt=2, trust_run=True)
    assert len(measured.sampled) == 4
