"""How vLLM's outputs become rollouts and memory figures; these tests do not need vLLM."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refusals import refused
from winnow.engines.base import PendingRollout
from winnow.engines.vllm.sampler import GrowingRollout, VllmEngine
from winnow.engines.vllm.settings import VllmSettings
from winnow.engines.vllm.start import start
from winnow.errors import EngineError
from winnow.records import Prompt, Sampling


def completion(tokens: list[int], logprobs: list[float]) -> Any:
    return SimpleNamespace(token_ids=tokens, logprobs=SimpleNamespace(logprobs=logprobs))


def test_each_output_appends_its_new_tokens() -> None:
    rollout = GrowingRollout()
    for tokens, logprobs in ([5], [-0.1]), ([], []), ([7, 6], [-1e-300, -2.5]):
        rollout.add(completion(tokens, logprobs))
    ids, values = rollout.arrays()
    assert (ids.tolist(), values.tolist()) == ([5, 7, 6], [-0.1, -1e-300, -2.5])
    assert (ids.dtype, values.dtype) == ("int64", "float64")


@pytest.mark.parametrize(
    ("logprobs", "code"),
    [([float("nan")], "engine.diverged"), ([float("-inf")], "engine.diverged"), ([], "engine.contract")],
)
def test_a_missing_or_infinite_log_prob_is_an_error(logprobs: list[float], code: str) -> None:
    with refused(EngineError, code=code):
        GrowingRollout().add(completion([5], logprobs))


def test_requests_of_one_seed_have_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of the ranks of a step, and of the rounds of dynamic sampling, have the step's seed."""
    monkeypatch.setattr(VllmEngine, "_parameters", lambda *arguments: None)
    output = SimpleNamespace(request_id="0", finished=True, outputs=[completion([5], [-0.1])])
    inner = SimpleNamespace(
        add_request=lambda *arguments: None, step=lambda: [output], abort_request=lambda names: None
    )
    seeded: list[int] = []
    engine = VllmEngine.__new__(VllmEngine)
    engine._seed_per, engine._adapter = "request", None
    engine._llm = SimpleNamespace(llm_engine=inner, collective_rpc=lambda name, args: seeded.extend(args))
    rule: Any = None
    for name in ("a", "b", "a"):
        prompt = Prompt(id=name, tokens=np.array([1]), text="", answer=None, task="t")
        request: Any = SimpleNamespace(
            rollouts=[PendingRollout(0, prompt, 0)], check=lambda: None, finish=lambda *made: None
        )
        engine._sample(request, rule, Sampling(max_new_tokens=4), (0,))
    assert seeded[0] == seeded[2] != seeded[1]


def test_a_fixed_cache_requires_no_free_share_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def make(**arguments: Any) -> Any:
        shares.append(arguments["gpu_memory_utilization"])
        return SimpleNamespace(init_weight_transfer_engine=lambda request: None)

    vllm: Any = SimpleNamespace(LLM=make)
    platforms: Any = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    served: Any = SimpleNamespace(folder="", adapter=None, dtype="float32", context_tokens=64, max_rollouts_at_once=8)
    for key_value_gib in (2.0, None):
        start(served, VllmSettings(gpu_memory_utilization=0.5, key_value_gib=key_value_gib))
    assert shares == [0.001, 0.5]


@pytest.mark.parametrize(("per_row", "seed_per"), [(False, "request"), (True, "rollout")])
def test_a_runner_with_a_seed_per_row_gets_one_for_each_rollout(
    monkeypatch: pytest.MonkeyPatch, per_row: bool, seed_per: str
) -> None:
    llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(use_v2_model_runner=per_row)))
    monkeypatch.setattr("winnow.engines.vllm.sampler.start", lambda served, settings: llm)
    served: Any = SimpleNamespace(dtype="float32", tokenizer=None, stop_tokens=(), vocabulary=1, adapter=None)
    assert VllmEngine(served, VllmSettings(seed_per="request"))._seed_per == seed_per


class SleepingLLM:
    """A fake of vLLM with two workers, one device each; their memory is smaller while they sleep."""

    def __init__(self) -> None:
        self.held = 100.0
        self.llm_engine = SimpleNamespace(abort_request=lambda names: None)

    def collective_rpc(self, name: str) -> list[Any]:
        return {
            "weights_version": [0, 0],
            "used_on_devices": [{"cuda0/used": self.held}, {"cuda1/used": self.held + 1}],
        }[name]

    def wake_up(self, tags: list[str]) -> None:
        self.held = 900.0

    def sleep(self, level: int) -> None:
        self.held = 100.0


def test_memory_is_read_from_the_workers_after_sampling_and_asleep() -> None:
    engine = VllmEngine.__new__(VllmEngine)
    engine._llm, engine._sleep, engine._adapter, engine.version, engine.memory_mib = SleepingLLM(), True, None, 0, {}
    engine._seed_per, engine._asleep = "rollout", {"weights", "kv_cache"}
    engine._rule = lambda stop: SimpleNamespace(tokens=(), strings=())  # type: ignore[assignment, return-value]
    engine._served = SimpleNamespace(context_tokens=64)  # type: ignore[assignment]
    assert engine.generate([], [], Sampling(max_new_tokens=4), seed=(0,)) == []
    devices = {name: mib for name, mib in engine.memory_mib.items() if "/cuda" in name}
    assert devices == {
        "sampled/cuda0/used": 900.0, "sampled/cuda1/used": 901.0,
        "asleep/cuda0/used": 100.0, "asleep/cuda1/used": 101.0,
    }  # fmt: skip
    assert engine.memory_mib["asleep/cpu/resident"] > 10  # MiB of this process
    assert engine._asleep == {"weights", "kv_cache"}


def test_memory_that_is_awake_is_not_allocated_again() -> None:
    """The weights are woken by a load, and the rest by the next request."""
    woken: list[list[str]] = []
    engine = VllmEngine.__new__(VllmEngine)
    engine._llm, engine._asleep = SimpleNamespace(wake_up=woken.append), {"weights", "kv_cache"}
    for tags in (("weights",), ("weights",), (), ()):
        engine._wake(*tags)
    assert woken == [["weights"], ["kv_cache"]]
