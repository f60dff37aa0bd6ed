"""Behaviour of the vLLM engine beyond the contract of all engines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from refusals import refused
from winnow.engines.base import EngineContext
from winnow.engines.vllm.engine import vllm
from winnow.errors import ConfigError, EngineError
from winnow.models.load import Loaded, load
from winnow.records import Prompt, Sampling

OPTIONS = {"compiled": False, "key_value_gib": 0.25}


def context(loaded: Loaded, *, at_once: int = 64) -> EngineContext:
    return EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=loaded.stop_tokens,
        max_rollouts_at_once=at_once,
        context_tokens=64,
    )


@pytest.fixture(scope="module")
def engine() -> Iterator:
    made = vllm(context(load("bundled")), **OPTIONS)
    yield made
    made.close()


def prompt(text: str, tokens: int = 8) -> Prompt:
    return Prompt(id=text, tokens=np.arange(1, tokens + 1), text=text, answer=None, task="none")


def test_a_version_that_no_worker_has_is_refused(engine):
    engine._server.version += 1
    with refused(EngineError, 1, code="engine.stale_weights"):
        engine.generate([prompt("a")], [1], Sampling(max_new_tokens=2), seed=(0,))
    engine._server.version -= 1
    engine.generate([prompt("a")], [1], Sampling(max_new_tokens=2), seed=(0,))


def test_more_tokens_than_it_was_started_for_are_refused(engine):
    with refused(EngineError, 60, 5, 64, key="prompt.max_prompt_tokens", code="engine.contract"):
        engine.generate([prompt("a", tokens=60)], [1], Sampling(max_new_tokens=5), seed=(0,))


def test_a_load_must_contain_the_whole_model(engine):
    with refused(EngineError, code="engine.contract"):
        engine._server.load({}, version=9)
    assert engine.version == 0


def test_an_exception_in_on_rollout_does_not_affect_the_next_request(engine):
    class Failure(Exception):
        pass

    def fail(prompt: Prompt, rollout: object) -> None:
        raise Failure

    with pytest.raises(Failure):
        engine.generate([prompt("a")], [8], Sampling(max_new_tokens=16), seed=(0,), on_rollout=fail)
    rollouts = engine.generate([prompt("a")], [2], Sampling(max_new_tokens=4), seed=(0,))[0].rollouts
    assert [rollout.index for rollout in rollouts] == [0, 1]


def test_rollouts_are_announced_while_others_are_still_sampled(engine):
    order = []
    prompts = [prompt("a", tokens=4), prompt("b", tokens=6)]
    groups = engine.generate(
        prompts, [16, 16], Sampling(max_new_tokens=40), seed=(0,), on_rollout=lambda _, r: order.append(len(r.tokens))
    )
    assert order == sorted(order)
    assert len(set(order)) > 4
    assert len(order) == sum(len(group.rollouts) for group in groups)


def test_a_seed_per_request_repeats_a_request_as_a_whole_and_depends_on_its_rollouts():
    made = vllm(context(load("bundled")), **OPTIONS, seed_per="request")
    try:

        def tokens(count: int, seed: int) -> list[list[int]]:
            group, *_ = made.generate([prompt("a")], [count], Sampling(max_new_tokens=16), seed=(seed,))
            return [rollout.tokens.tolist() for rollout in group.rollouts]

        once = tokens(16, 0)
        assert tokens(16, 0) == once
        assert tokens(16, 1) != once
        assert len(set(map(tuple, once))) > 1  # the rows of a request have noise of their own
    finally:
        made.close()


def test_unsupported_settings_are_refused_before_vllm_starts():
    with refused(ConfigError, "float64", key="model.dtype", code="config.combination"):
        vllm(context(load("bundled", dtype="float64")))
    with refused(ConfigError, "cuda:1", key="rollout.engine.device", code="config.combination"):
        vllm(context(load("bundled")), device="cuda:1")
    with refused(ConfigError, key="rollout.engine.sleep", code="config.combination"):
        vllm(context(load("bundled")), sleep=True)
