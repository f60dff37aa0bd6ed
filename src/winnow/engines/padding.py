"""Prompts of unequal length as one left-padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from winnow.records import IntArray


class Tokens(Protocol):
    """A prompt, or another text."""

    @property
    def tokens(self) -> IntArray: ...


def left_pad(prompts: Sequence[Tokens], *, pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens [R, P] and which of them are real [R, P] (int64, 0 or 1), P the longest prompt's length."""
    width = max(len(prompt.tokens) for prompt in prompts)
    tokens = np.full((len(prompts), width), pad, dtype=np.int64)
    real = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt.tokens) :] = prompt.tokens
        real[row, width - len(prompt.tokens) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(real).to(device)
