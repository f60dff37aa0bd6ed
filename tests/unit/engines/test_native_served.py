"""The native engine as its own process runs it: on a copy that it makes from a description and receives weights for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refusals import refused
from winnow.engines.base import EngineContext
from winnow.engines.native.sampler import Native
from winnow.engines.native.served import NativeServer
from winnow.engines.served import ServerEngine, describe
from winnow.errors import EngineError
from winnow.records import Prompt, Sampling
from winnow.testing import tiny

SAMPLING = Sampling(max_new_tokens=6)


def prompt(name, *tokens):
    return Prompt(id=name, tokens=np.array(tokens), text=name, answer="", task="t")


PROMPTS = [prompt("a", 5, 6, 7), prompt("b", 8, 9)]


def sampled(engine):
    groups = engine.generate(PROMPTS, [2, 1], SAMPLING, seed=("s", 1))
    return [(r.version, r.tokens.tolist(), r.logprobs.tolist()) for group in groups for r in group.rollouts]


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_a_server_samples_what_the_engine_in_the_trainer_does(arch, tmp_path):
    """To the bit, on one thread, before and after an update."""
    before, threads = torch.get_num_threads(), 1
    loaded = tiny(arch)
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=4
    )
    try:
        server = NativeServer(describe(context, tmp_path), {"packed": False}, threads)
        assert server.version == -1
        own, inside = ServerEngine(server, loaded.model, adapter=False), Native(context, packed=False)
        assert sampled(own) == sampled(inside)
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.add_(torch.full_like(parameter, 0.01))
        weights = dict(loaded.model.named_parameters())
        assert sampled(own)[0][1:] != (first := sampled(inside))[0][1:]  # not handed over yet
        own.load(weights, version=1)
        inside.load(weights, version=1)
        assert sampled(own) == [(1, *rest) for _, *rest in first]
        with refused(EngineError, code="engine.stale_weights"):
            server.load({}, version=1)
        with refused(EngineError, code="engine.contract"):
            server.load({}, version=2)
        own.close()
    finally:
        torch.set_num_threads(before)
