"""Weights reach the engine of every rank or of none. tests/ranks has the tests between real processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from winnow.core.collect import sync_weights
from winnow.errors import EngineError
from winnow.learner.sharding import GatheredWeights


class Shares(GatheredWeights):
    """Weights of one process, which record the names that are read."""

    def __init__(self) -> None:
        super().__init__({name: torch.ones(1) for name in "abc"}, None)
        self.read: list[str] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return super().__getitem__(name)


def test_an_engine_gets_weights_and_version() -> None:
    loaded = []
    engine = SimpleNamespace(load=lambda weights, version: loaded.append((dict(weights), version)))
    learner = SimpleNamespace(weights=lambda: {"a": 1})
    sync_weights(learner, engine, version=3)
    assert loaded == [({"a": 1}, 3)]


def test_names_are_available_without_reading_a_weight() -> None:
    shares = Shares()
    assert list(shares) == ["a", "b", "c"]
    assert "b" in shares
    assert "d" not in shares
    assert len(shares) == 3
    assert shares.read == []


@pytest.mark.parametrize("before", [0, 1, 3])
def test_weights_that_a_failed_engine_did_not_read_are_gathered(before: int) -> None:
    """The other ranks gather them too, and would wait."""
    shares, error = Shares(), EngineError("no room")

    def load(weights: GatheredWeights, version: int) -> None:
        for name in list(weights)[:before]:
            weights[name]
        raise error

    with pytest.raises(EngineError) as caught:
        sync_weights(SimpleNamespace(weights=lambda: shares), SimpleNamespace(load=load), version=1)
    assert caught.value is error
    assert shares.read == ["a", "b", "c"]
