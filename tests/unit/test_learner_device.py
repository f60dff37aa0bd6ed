from __future__ import annotations

import pytest
import torch

from winnow.errors import ConfigError
from winnow.learner.device import resolve_device


def test_auto_takes_the_fastest_that_is_there() -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert resolve_device("auto") == torch.device(best)
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    if {"cuda": torch.cuda, "mps": torch.backends.mps}[name].is_available():
        assert resolve_device(name) == torch.device(name)
    else:
        with pytest.raises(ConfigError, match=f"'{name}' is not available on this machine; use 'auto' or one of"):
            resolve_device(name)
