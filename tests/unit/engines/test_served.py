"""The policy as a plain model: the description and the weights that an engine with separate weights receives."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from refusals import refused
from winnow.config_file import validate
from winnow.engines.base import EngineContext, Tolerance
from winnow.engines.served import ServerEngine, describe, served_weights
from winnow.engines.vllm.engine import check_devices, device_environment, fits
from winnow.errors import ConfigError, EngineError
from winnow.models.adapter import adapter_weights, add_lora
from winnow.testing import tiny


class Server:
    """A fake server that records the weights it receives."""

    logprob_tolerance = Tolerance(mean=0.5, tail=0.5)
    generate = close = None

    def __init__(self) -> None:
        self.version = -1
        self.loaded: list[tuple[dict[str, torch.Tensor], int]] = []

    def load(self, weights, version):
        self.version = version
        self.loaded.append(({name: w.clone() for name, w in weights.items()}, version))


def adapted(model):
    """Add an adapter that changes the model's outputs."""
    wrapped = add_lora(model, rank=2, alpha=6.0, targets=("q_proj", "down_proj"), seed=0)
    with torch.no_grad():
        for name, p in wrapped.named_parameters():
            if "lora_B" in name:
                p.normal_()
    return wrapped


def trained(model):
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def context(model, loaded, **more) -> EngineContext:
    stop = loaded.stop_tokens
    return EngineContext(model=model, tokenizer=loaded.tokenizer, stop_tokens=stop, max_rollouts_at_once=8, **more)


def test_a_plain_model_is_served_without_copies():
    model = tiny("llama").model
    weights = served_weights(model, {})
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert all(weights[name].data_ptr() == p.data_ptr() for name, p in model.named_parameters())


def test_given_weights_replace_the_module_s():
    model = tiny("llama").model
    other = torch.zeros_like(model.model.norm.weight)
    weights = served_weights(model, {"model.norm.weight": other})
    assert weights["model.norm.weight"].data_ptr() == other.data_ptr()


def test_each_weight_is_read_once_in_order_and_names_read_none():
    read = []

    class Gathered(dict):
        def __getitem__(self, name):
            read.append(name)
            return super().__getitem__(name)

    for adapter in (False, True):
        model = adapted(tiny("llama").model) if adapter else tiny("llama").model
        engine, weights = ServerEngine(Server(), model, adapter=adapter), Gathered(trained(model))
        served = served_weights(model, weights)
        assert len(served) == len(list(served)) > 0
        assert read == []
        engine.load(weights, version=1)
        assert read == list(weights)
        read.clear()


def test_an_adapter_is_merged_into_copies():
    base = tiny("qwen2").model
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    policy = adapted(base)
    served = served_weights(policy, trained(policy))
    assert served.keys() == before.keys()
    q = policy.get_base_model().model.layers[0].self_attn.q_proj
    change = 6.0 / 2 * q.lora_B["default"].weight @ q.lora_A["default"].weight
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(served[name], before[name] + change)
    moved = {name for name in before if not torch.equal(served[name], before[name])}
    assert moved == {name for name in before if name.endswith(("q_proj.weight", "down_proj.weight"))}
    assert torch.equal(q.base_layer.weight, before[name])


def test_after_the_first_load_an_adapter_is_sent_without_the_base():
    policy, server = adapted(tiny("qwen2").model), Server()
    engine = ServerEngine(server, policy, adapter=True)
    engine.load(trained(policy), version=1)
    (first, zero), (second, one) = server.loaded
    assert (zero, one, engine.version) == (0, 1, 1)
    assert second.keys() == adapter_weights(policy).keys()
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in second
    assert first.keys() - second.keys() == dict(tiny("qwen2").model.named_parameters()).keys()


def test_foreign_and_missing_weights_are_refused():
    model = tiny("llama").model
    engine = ServerEngine(Server(), model, adapter=False)
    with refused(EngineError, "head.weight", code="engine.contract"):
        engine.load({**trained(model), "head.weight": torch.zeros(1)}, version=1)
    with refused(EngineError, "model.embed_tokens.weight", code="engine.contract"):
        engine.load({}, version=1)
    assert engine.version == 0


@pytest.mark.parametrize("adapter", [False, True])
def test_the_description_of_a_model_can_be_pickled(adapter, tmp_path: Path):
    loaded = tiny("qwen2")
    names = set(dict(loaded.model.named_parameters()))
    policy = adapted(loaded.model)
    served = pickle.loads(pickle.dumps(describe(context(policy, loaded, context_tokens=32), tmp_path, adapter=adapter)))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    assert served.names == names
    assert (served.dtype, served.context_tokens) == ("float32", 32)
    if adapter:
        assert served.adapter["r"] == 2
        assert served.adapter_names == adapter_weights(policy).keys()
        json.dumps(served.adapter)


def test_devices_are_counted_among_the_trainer_s_visible_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_environment(None, 1) == {}
    assert device_environment("cuda:1", 2) == {"CUDA_VISIBLE_DEVICES": "1,2"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert device_environment("cuda:1", 1) == {"CUDA_VISIBLE_DEVICES": "5"}


@pytest.mark.parametrize(("rank", "shown"), [(0, "3,4"), (1, "5,6")])
def test_the_engines_of_several_ranks_have_consecutive_devices(monkeypatch: pytest.MonkeyPatch, rank: int, shown: str):
    """Two trainers on GPUs 1 and 2, and two devices for each engine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3,4,5,6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert device_environment("cuda:2", 2, rank) == {"CUDA_VISIBLE_DEVICES": shown}
    check_devices("cuda:2", 2)
    assert device_environment(None, 1, rank) == {"CUDA_VISIBLE_DEVICES": str(1 + rank)}  # its trainer's


def test_one_copy_on_more_devices_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch):
    for present, ranks in ((1, 2), (3, 4)):
        monkeypatch.setattr("winnow.engines.vllm.engine._cuda_devices", lambda present=present: present)
        with refused(ConfigError, ranks, present, key="rollout.engine.tensor_parallel", code="config.unsupported"):
            check_devices(None, ranks)
        check_devices(None, present)
    monkeypatch.setattr("winnow.engines.vllm.engine._cuda_devices", lambda: 0)
    check_devices(None, 2)  # on a CPU


@pytest.mark.parametrize(("beside", "device"), [(True, "cuda:2"), (False, "cuda:0")])
def test_engines_of_several_ranks_on_several_devices_need_a_device(monkeypatch, beside: bool, device: str):
    """Else each would begin at its rank's device, and use the next rank's too."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("winnow.engines.vllm.engine._cuda_devices", lambda: 8)
    with refused(ConfigError, device, key="rollout.engine.tensor_parallel", code="config.combination"):
        check_devices(None, 2, beside_trainers=beside)
    check_devices(None, 1, beside_trainers=beside)


def test_the_first_gpu_is_free_if_the_trainer_uses_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    engine = {"use": "vllm", "process": "own", "device": "cuda:0"}
    keys = {"model": {"dtype": "float32"}, "rollout": {"engine": engine}}
    fits(validate({"device": "cpu", **keys}))
    with refused(ConfigError, "cuda:0", key="rollout.engine.device", code="config.combination"):
        fits(validate({"device": "cuda", **keys}))


def test_unusable_devices_and_adapters_are_refused_before_a_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def config(**engine):
        return validate(
            {
                "ranks": {"learner": "sharded"},
                "model": {"dtype": "bfloat16", "lora": {}},
                "rollout": {"engine": {"use": "vllm", **engine}},
            }
        )

    fits(config(process="own", device="cuda:2"))
    with refused(ConfigError, "cuda:1", "cuda:2", key="rollout.engine.device", code="config.combination"):
        fits(config(process="own", device="cuda:1"))
    with refused(ConfigError, "rank 1", "cuda:4", "4 devices", key="rollout.engine.device", code="config.unsupported"):
        fits(config(process="own", device="cuda:2", tensor_parallel=2))
    with refused(ConfigError, 2, "rollout.engine.process", key="rollout.engine.tensor_parallel"):
        fits(config(tensor_parallel=2))
    with refused(ConfigError, "merged", "ranks.learner", key="rollout.engine.lora", code="config.combination"):
        fits(config(lora="merged"))


@pytest.mark.parametrize("engine", [{}, {"process": "own", "device": "cuda:1"}])
def test_a_float32_adapter_next_to_its_base_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch, engine):
    """vLLM's kernels for adapters assert 16 bits; on a CPU it has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    rollout = {"engine": {"use": "vllm", "lora": "adapter", **engine}}
    keys = {"device": "cuda", "model": {"dtype": "float32", "lora": {}}, "rollout": rollout}
    with refused(ConfigError, "float32", "bfloat16", "merged", key="model.dtype", code="config.combination"):
        fits(validate(keys))
    fits(validate({**keys, "model": {"dtype": "bfloat16", "lora": {}}}))
    fits(validate({**keys, "device": "cpu", "rollout": {"engine": {"use": "vllm", "lora": "adapter"}}}))


def test_vllm_is_refused_in_deterministic_runs():
    keys = {"model": {"dtype": "bfloat16"}, "rollout": {"engine": "vllm"}}
    fits(validate(keys))
    with refused(ConfigError, "native", "hf", key="deterministic", code="config.combination"):
        fits(validate({**keys, "deterministic": True}))


@pytest.mark.parametrize("section", ["rollout", "evaluate"])
def test_a_temperature_that_vllm_would_raise_is_refused(section: str):
    keys = {"device": "cpu", "model": {"dtype": "float32"}, "rollout": {"engine": "vllm"}, "evaluate": {}}
    fits(validate({**keys, section: {**keys[section], "temperature": 0.01}}))
    with refused(ConfigError, 0.001, 0.01, key=f"{section}.temperature", code="config.combination"):
        fits(validate({**keys, section: {**keys[section], "temperature": 0.001}}))


def test_sleep_is_refused_where_vllm_samples_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("winnow.models.device.planned_device", lambda name: torch.device("cpu"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    keys, engine = {"model": {"dtype": "float32"}}, {"use": "vllm", "sleep": True}
    with refused(ConfigError, key="rollout.engine.sleep", code="config.combination"):
        fits(validate({**keys, "rollout": {"engine": engine}}))
    other = {**engine, "process": "own", "device": "cuda:0"}
    fits(validate({**keys, "device": "cpu", "rollout": {"engine": other}}))
