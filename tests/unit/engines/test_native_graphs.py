"""Recorded decoding steps, repeated from their operators on a CPU, draw what plain steps draw: see cpu_graphs.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cpu_graphs
from refusals import refused
from winnow.engines.base import EngineContext
from winnow.engines.native import cuda
from winnow.engines.native.cuda import CudaGraphs
from winnow.engines.native.engine import native
from winnow.errors import EngineError
from winnow.records import Group, Prompt, Sampling
from winnow.testing import tiny

COUNTS = (5, 3, 1)


def sampled(tokens: int, *, at_once: int = 64, recorded: bool = False, stops: bool = False) -> list[Group]:
    """Rollouts of three prompts of unequal lengths, by a fresh engine; and again after an update of the weights."""
    loaded = tiny()
    context = EngineContext(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stop_tokens=tuple(range(3, 20)) if stops else (),  # rollouts end at different lengths
        max_rollouts_at_once=at_once,
    )
    engine: Any = native(context, packed=False)
    # As on a device: by the model's modules, whose weights an update changes in place
    engine._graphs, engine._modules = recorded, recorded
    prompts = [
        Prompt(id=str(length), tokens=np.arange(3, 3 + length), text="", answer=None, task="t") for length in (4, 9, 2)
    ]
    groups: list[Group] = engine.generate(prompts, COUNTS, Sampling(max_new_tokens=tokens), seed=(1,))
    with torch.no_grad():
        for number, weight in enumerate(loaded.model.parameters()):
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    engine.load({}, 1)
    return [*groups, *engine.generate(prompts, COUNTS, Sampling(max_new_tokens=tokens), seed=(2,))]


@pytest.mark.parametrize("stops", [False, True], ids=["together", "one by one"])
@pytest.mark.parametrize(("tokens", "at_once"), [(6, 64), (6, 4), (70, 5)], ids=["all", "in turns", "several blocks"])
def test_recorded_steps_draw_the_tokens_of_plain_ones(
    tokens: int, at_once: int, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sampled(tokens, at_once=at_once, stops=stops)
    graphs = cpu_graphs.use(monkeypatch)
    recorded = sampled(tokens, at_once=at_once, stops=stops, recorded=True)
    for one, other in zip(plain, recorded, strict=True):
        for left, right in zip(one.rollouts, other.rollouts, strict=True):
            assert left.tokens.tolist() == right.tokens.tolist()
            np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)
    assert len(graphs) < sum(graph.replays for graph in graphs)  # most steps are replayed


def test_a_step_that_a_device_cannot_record_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a step that reads a result of the device."""
    cpu_graphs.use(monkeypatch)
    numbers = torch.ones(3)

    def step() -> torch.Tensor:
        return numbers * float(numbers.sum())

    with refused(EngineError, key="rollout.engine.graphs", code="engine.failed"):
        CudaGraphs().run("a shape", step)


def test_a_replay_repeats_what_python_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that was Python's is repeated; memory at its address is read again. 2 x 1, then 2 x 5 and not 3 x 5."""
    cpu_graphs.use(monkeypatch)
    graphs, numbers, factor = CudaGraphs(), torch.ones(3), 2.0

    def step() -> torch.Tensor:
        return numbers * factor

    assert graphs.run("a shape", step).tolist() == [2.0] * 3
    factor = 3.0
    numbers.fill_(5.0)
    assert graphs.run("a shape", step).tolist() == [10.0] * 3


def test_the_oldest_graph_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cpu_graphs.use(monkeypatch)
    monkeypatch.setattr(cuda, "MOST_SHAPES", 2)
    graphs, numbers = CudaGraphs(), torch.ones(3)
    for shape in (1, 2, 1, 3, 2, 1):  # 3 drops 1, which is recorded again and drops 2
        graphs.run(shape, lambda: numbers + 1)
    assert len(made) == 4
