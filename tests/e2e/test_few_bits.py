"""Runs on a base of 4 bits and with moments of 8 bits: what they leave behind, and how they go on."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import low_precision
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import winnow

# Found, not imported: to import it takes a second, and every worker collects this file
pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (winnow-rl[bnb])")

QLORA = {"lora": {"rank": 32}, "quantization": "nf4"}


def settings(output: Path, *, steps: int = 2, dtype: str = "float32", engine: str = "native", **model: object) -> dict:
    return low_precision.settings(
        output,
        steps=steps,
        model={"path": "bundled", "dtype": dtype, **QLORA, **model},
        prompt={"template": "question_only"},
        rollout={"engine": engine},
        evaluate={"problems": 1, "rollouts_per_prompt": 1, "greedy": False},
        terms=[{"use": "kl", "coefficient": 0.01}],
        checkpoint={"every": 1},
        optimizer={"learning_rate": 1e-2, "moments": "8bit"},
    )


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    saved = folder / "checkpoints" / f"step-{step:06}"
    files = ("model.safetensors", "trainer.tensors", "adapter/adapter_model.safetensors")
    return {f"{file}: {name}": value for file in files for name, value in load_file(saved / file).items()}


@pytest.mark.parametrize(
    ("dtype", "engine"),
    # test_sixteen_bits.py resumes in bfloat16, without 4 bits
    [("float32", "native"), pytest.param("bfloat16", "hf", marks=pytest.mark.slow)],
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, dtype, engine):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    result = winnow.train(**settings(straight, dtype=dtype, engine=engine))
    low_precision.broken_off(straight, resumed, steps=2)
    winnow.train(**settings(resumed, dtype=dtype, engine=engine), resume=True)
    one, other = tensors(straight, 2), tensors(resumed, 2)
    low_precision.check_same_bits(one, other)
    assert {one[name].dtype for name in one if name.endswith("/state1")} == {torch.uint8, torch.float32}
    rows = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    alarms = [row["policy/parity_alarm"] for row in rows if "policy/parity_alarm" in row]
    assert alarms == [0, 0], "engine and policy are one distribution"
    model, said = AutoModelForCausalLM.from_pretrained(result.model, dtype="auto", output_loading_info=True)
    assert (str(model.dtype), said["missing_keys"], said["unexpected_keys"]) == (f"torch.{dtype}", set(), set())
    assert "quantization_config" not in json.loads((Path(result.model) / "config.json").read_text())
    measured = winnow.evaluate(result.model, problems=1, rollouts_per_prompt=1, trust_run=True, **EVALUATED)
    assert len(measured.sampled) == 1


EVALUATED = {"task": {"use": "arithmetic", "size": 8}, "reward": "r1_zero", "device": "cpu", "threads": 1}
