"""What vLLM as an engine adds to the contract that every engine is tested for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

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


def ask(text: str, tokens: int = 8) -> Prompt:
    return Prompt(id=text, tokens=np.arange(1, tokens + 1), text=text, answer=None, task="none")


def test_a_version_that_no_worker_has_is_refused(engine):
    engine._server.version += 1
    with pytest.raises(EngineError, match="stale weights"):
        engine.generate([ask("a")], [1], Sampling(max_new_tokens=2), seed=(0,))
    engine._server.version -= 1
    engine.generate([ask("a")], [1], Sampling(max_new_tokens=2), seed=(0,))


def test_more_tokens_than_it_was_started_for_are_refused(engine):
    with pytest.raises(EngineError, match=r"60 tokens and max_new_tokens = 5 .* 64 tokens"):
        engine.generate([ask("a", tokens=60)], [1], Sampling(max_new_tokens=5), seed=(0,))


def test_a_hand_over_must_be_of_the_whole_model(engine):
    with pytest.raises(EngineError, match="weights lack"):
        engine._server.load({}, version=9)
    assert engine.version == 0


def test_a_failed_listener_leaves_nothing_behind(engine):
    def fail(prompt: Prompt, rollout: object) -> None:
        raise KeyError("listener")

    with pytest.raises(KeyError, match="listener"):
        engine.generate([ask("a")], [8], Sampling(max_new_tokens=16), seed=(0,), on_rollout=fail)
    rollouts = engine.generate([ask("a")], [2], Sampling(max_new_tokens=4), seed=(0,))[0].rollouts
    assert [rollout.index for rollout in rollouts] == [0, 1]


def test_rollouts_are_announced_while_others_are_still_sampled(engine):
    order = []
    prompts = [ask("a", tokens=4), ask("b", tokens=6)]
    groups = engine.generate(
        prompts, [16, 16], Sampling(max_new_tokens=40), seed=(0,), on_rollout=lambda _, r: order.append(len(r.tokens))
    )
    assert order == sorted(order)
    assert len(set(order)) > 4
    assert len(order) == sum(len(group.rollouts) for group in groups)


def test_what_it_cannot_do_is_refused_before_it_starts():
    with pytest.raises(ConfigError, match="float64"):
        vllm(context(load("bundled", dtype="float64")))
    with pytest.raises(ConfigError, match="process = 'own'"):
        vllm(context(load("bundled")), device="cuda:1")
    with pytest.raises(ConfigError, match="cannot sleep on a CPU"):
        vllm(context(load("bundled")), sleep=True)
