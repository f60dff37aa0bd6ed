from __future__ import annotations

import pytest
import torch

from winnow.errors import ConfigError
from winnow.models.device import resolve_device


def test_auto_takes_the_fastest_that_is_there() -> None:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto") == torch.device(best)
    assert resolve_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        assert resolve_device("cuda") == torch.device("cuda")
    else:
        with pytest.raises(ConfigError, match="'cuda' is not available on this machine; use 'auto' or one of"):
            resolve_device("cuda")


def test_mps_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="'mps' has no float64"):
        resolve_device("mps")
