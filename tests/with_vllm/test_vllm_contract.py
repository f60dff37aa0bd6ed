"""The tests of tests/contract/test_engine_contract.py, run with vLLM.

The policies are wider, because vLLM's kernels need heads of 32 numbers or more.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from winnow.engines.base import Engine

_FILE = Path(__file__).parents[1] / "contract" / "test_engine_contract.py"
_SPEC = importlib.util.spec_from_file_location("engine_contract", _FILE)
contract = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(contract)
contract.SIZES |= {"hidden_size": 128}
contract.ARCHITECTURES["qwen3"] = (partial(Qwen3Config, head_dim=32), Qwen3ForCausalLM)
contract.OPTIONS["vllm"] = {"compiled": False, "key_value_gib": 0.1}

# vLLM samples with its own random numbers, and the public check covers the engines that need no package
OTHERS = {
    "test_engines_agree_token_by_token",
    "test_the_public_check_passes",
    "test_the_public_check_names_what_is_broken",
}
globals().update({k: v for k, v in vars(contract).items() if k.startswith("test_") and k not in OTHERS})


@pytest.fixture(params=["llama", "qwen3"])
def policy(request: pytest.FixtureRequest) -> torch.nn.Module:
    return contract.tiny(request.param)


@pytest.fixture
def engine(policy: torch.nn.Module) -> Iterator[Engine]:
    made = contract.build("vllm", policy)
    yield made
    made.close()


def spelling(policy: torch.nn.Module) -> torch.nn.Module:
    """Make the two bytes of "é" as likely as "a" and ">": vLLM's random numbers would not sample it otherwise."""
    first, second, a, end = contract.merging().convert_tokens_to_ids(["<0xC3>", "<0xA9>", "a", ">"])
    with torch.no_grad():
        policy.lm_head.weight[[first, second]] = policy.lm_head.weight[[a, end]]
    return policy


@pytest.fixture(scope="module")
def merging_engine() -> Iterator[Engine]:
    made = contract.build("vllm", spelling(contract.tiny("llama")), tokens=contract.merging)
    yield made
    made.close()


@pytest.fixture
def sampler(engine: Engine, policy: torch.nn.Module) -> tuple[str, Engine, torch.nn.Module]:
    return "vllm", engine, policy
