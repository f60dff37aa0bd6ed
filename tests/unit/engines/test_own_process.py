"""The native engine as its own process runs it: on a copy that it makes from a description and receives weights for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from refusals import refused
from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.engines.native.own_process import NativeServer
from winnow.engines.native.sampler import Native
from winnow.engines.policy_copy import KVCacheSpec
from winnow.engines.served import ServerEngine, describe
from winnow.errors import EngineError
from winnow.models.load import load
from winnow.records import Prompt, Sampling
from winnow.testing import tiny

SAMPLING = Sampling(max_new_tokens=6)


def prompt(name, *tokens):
    return Prompt(id=name, tokens=np.array(tokens), text=name, answer="", task="t")


PROMPTS = [prompt("a", 5, 6, 7), prompt("b", 8, 9)]


def sampled(engine):
    groups = engine.generate(PROMPTS, [2, 1], SAMPLING, seed=("s", 1))
    return [(r.version, r.tokens.tolist(), r.logprobs.tolist()) for group in groups for r in group.rollouts]


def check(found, expected):
    assert [rollout[:2] for rollout in found] == [rollout[:2] for rollout in expected]
    for (*_, one), (*_, other) in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_a_server_samples_what_the_engine_in_the_trainer_does(arch, tmp_path):
    """The same tokens, and log-probs up to rounding; two servers to the bit. Before and after an update."""
    before, threads = torch.get_num_threads(), 1
    loaded = tiny(arch)
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=4
    )
    try:
        server = NativeServer(describe(context, tmp_path), {"packed": False}, threads)
        assert server.version == -1
        own, inside = ServerEngine(server, loaded.model, adapter=False), Native(context, packed=False)
        second = NativeServer(describe(context, tmp_path), {"packed": False}, threads)
        other = ServerEngine(second, loaded.model, adapter=False)
        assert sampled(own) == sampled(other)
        check(sampled(own), sampled(inside))
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.add_(torch.full_like(parameter, 0.01))
        weights = dict(loaded.model.named_parameters())
        assert sampled(own) == sampled(other)  # not handed over yet, and
        with pytest.raises(AssertionError):
            check(sampled(own), sampled(inside))
        own.load(weights, version=1)
        inside.load(weights, version=1)
        check(sampled(own), sampled(inside))
        with refused(EngineError, code="engine.stale_weights"):
            server.load({}, version=1)
        with refused(EngineError, code="engine.contract"):
            server.load({}, version=2)
        own.close()
        other.close()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("process", ["inside", "own"])
def test_keys_and_values_have_the_memory_that_the_plan_leaves(process, monkeypatch):
    def in_this_process(make, options, **settings):
        assert make == "winnow.engines.native.own_process:NativeServer"
        return NativeServer(**options)

    monkeypatch.setattr("winnow.engines.process.engine.SecondProcess", in_this_process)
    before, loaded = torch.get_num_threads(), tiny("qwen2")
    each = KVCacheSpec.of(loaded.model).bytes_per_token
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=4
    )
    try:
        enough = native(dataclasses.replace(context, cache_bytes=100 * each), process=process)
        assert len(sampled(enough)) == 3
        with refused(EngineError, code="engine.memory"):
            sampled(native(dataclasses.replace(context, cache_bytes=5 * each), process=process))
    finally:
        torch.set_num_threads(before)


def test_a_policy_that_is_not_loaded_sends_the_weights_of_its_files(monkeypatch):
    """A sharded learner's, on the meta device."""

    def here(_, options, **settings):
        return NativeServer(**{name: options[name] for name in ("served", "options", "threads")})

    monkeypatch.setattr("winnow.engines.process.engine.SecondProcess", here)
    before, found = torch.get_num_threads(), []
    try:
        for later in (False, True):
            loaded = load("bundled", later=later)
            context = EngineContext(
                model=loaded.model,
                tokenizer=loaded.tokenizer,
                stop_tokens=loaded.stop_tokens,
                max_rollouts_at_once=4,
                sharded=later,
                saved=loaded.saved,
            )
            engine = native(context, process="own")
            found.append(sampled(engine))
            engine.close()
        assert found[0] == found[1]
    finally:
        torch.set_num_threads(before)
