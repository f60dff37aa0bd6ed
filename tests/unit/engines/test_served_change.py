"""The change that an adapter makes on a base of 16 bits, as engines serve it.

An adapter's step is small: after one update at a learning rate of 1e-4, B is 1e-4 everywhere. Engines apply it beside
the base, because rounding the sum to bfloat16 would remove it.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from refusals import refused
from winnow.config_file import validate
from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.engines.policy_copy import PolicyCopy
from winnow.engines.served import ServerEngine, describe
from winnow.engines.vllm.engine import check_merge, fits
from winnow.engines.vllm.settings import serves_adapter
from winnow.errors import ConfigError
from winnow.models.adapter import adapter_weights, add_lora, merges, plain_model, plain_names
from winnow.models.load import Loaded, load
from winnow.testing import tiny

ALPHA, RANK, B = 32.0, 16, 1e-4
PREFIX = "base_model.model."


def policy() -> nn.Module:
    """The bundled policy in bfloat16, with an adapter after its first update."""
    model = add_lora(load("bundled", dtype="bfloat16").model, rank=RANK, alpha=ALPHA, targets="all-linear", seed=0)
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data.copy_(B * torch.randn(p.shape, generator=generator).sign())
    return model


def pairs(weights: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, B) by the plain model's weight that they change."""
    named = {name.removeprefix(PREFIX).replace(".default", ""): w.double() for name, w in weights.items()}
    return {
        name.replace(".lora_A", ""): (a, named[name.replace("lora_A", "lora_B")])
        for name, a in named.items()
        if "lora_A" in name
    }


def changes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """(alpha / rank) B A in float64."""
    return {name: ALPHA / RANK * b @ a for name, (a, b) in pairs(weights).items()}


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def lost(served: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """|| served change - exact change || / || exact change ||, over all matrices."""
    assert served.keys() == exact.keys()
    off = sum(float((served[name] - exact[name]).square().sum()) for name in exact)
    return (off / sum(float(change.square().sum()) for change in exact.values())) ** 0.5


def module_change(module: nn.Module, base: dict[str, Tensor]) -> dict[str, Tensor]:
    """The change of a module that applies base and adapter: the change of its base, plus the adapter's product."""
    own = dict(plain_names(plain_model(module).named_parameters()))
    beside_it = changes({name: p.detach() for name, p in module.named_parameters() if ".lora_" in name})
    return {name: own[name].detach().double() - base[name].double() + change for name, change in beside_it.items()}


def test_an_engine_on_the_policy_or_on_a_copy_rounds_nothing() -> None:
    model = policy()
    base = {n: p.detach().clone() for n, p in plain_names(plain_model(model).named_parameters())}
    exact = changes(trained(model))
    loaded = load("bundled", dtype="bfloat16")
    context = EngineContext(
        model=model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=1
    )
    assert lost(module_change(native(context)._model, base), exact) == 0, "native"
    copied = PolicyCopy(copy.deepcopy(model))
    copied.load({name: 3 * weight for name, weight in trained(model).items()})
    copied.load(trained(model))
    assert lost(module_change(copied.model, base), exact) == 0, "hf"


class Server:
    """A fake server that records the weights it receives."""

    generate = close = logprob_tolerance = None
    version = -1

    def __init__(self) -> None:
        self.loaded: list[dict[str, Tensor]] = []

    def load(self, weights, version) -> None:
        self.loaded.append({name: weight.clone() for name, weight in weights.items()})


def test_an_adapter_beside_a_16_bit_base_keeps_the_change_merging_loses() -> None:
    """vLLM casts A and B to bfloat16: an error of 2^-9 of each number at most, so of 2^-8 of their product. In half of
    the bundled weights, above 0.065, bfloat16's numbers are 5e-4 apart or more. The change is about 4e-5, so adding it
    to one of them rounds it away.
    """
    model = policy()
    base = {n: p.detach().clone() for n, p in plain_names(plain_model(model).named_parameters())}
    exact, server = changes(trained(model)), Server()
    ServerEngine(server, model, adapter=True).load(trained(model), version=1)
    first, again = server.loaded
    assert first.keys() - again.keys() == base.keys()
    assert all(torch.equal(first[name], weight) for name, weight in base.items())
    assert all(weight.dtype == torch.float32 for weight in again.values())
    cast = changes({name: weight.bfloat16() for name, weight in again.items()})
    assert lost(cast, exact) <= 2**-8, "vLLM, beside"
    merged = {name: make().double() - base[name].double() for name, make in merges(model).items()}
    assert lost(merged, exact) > 0.5, "merged"


@pytest.mark.parametrize(
    ("lora", "dtype", "expected"),
    [
        ("auto", "bfloat16", True),
        ("auto", "float32", False),
        ("adapter", "float32", True),
        ("adapter", "bfloat16", True),
        ("merged", "float32", False),
    ],
)
def test_an_adapter_is_separate_where_merging_would_round(lora: str, dtype: str, expected: bool) -> None:
    assert serves_adapter(lora, dtype) == expected
    check_merge(dtype, lora)
    keys = {
        "device": "cpu",
        "model": {"dtype": dtype, "lora": {}},
        "rollout": {"engine": {"use": "vllm", "lora": lora}},
    }
    fits(validate(keys))


def test_merging_an_adapter_into_a_bfloat16_base_is_refused() -> None:
    with refused(ConfigError, "bfloat16", key="rollout.engine.lora", code="config.combination"):
        check_merge("bfloat16", "merged")


@pytest.mark.parametrize("lora", ["auto", "merged", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_without_an_adapter_is_served_plain(lora: str, dtype: str, tmp_path) -> None:
    """The checkpoint of a run with an adapter is such a model: the adapter is merged into its float32 weights."""
    keys = {"device": "cpu", "model": {"dtype": dtype}, "rollout": {"engine": {"use": "vllm", "lora": lora}}}
    fits(validate(keys))
    loaded: Loaded = tiny("llama", dtype=dtype)
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=8
    )
    served = describe(context, tmp_path)
    assert (served.adapter, served.adapter_names) == (None, frozenset())
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_every_adapted_matrix_is_counted() -> None:
    model = policy()
    assert changes(adapter_weights(model)).keys() == {name: make() for name, make in merges(model).items()}.keys()
