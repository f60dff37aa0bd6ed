"""Left padding of prompts of unequal length into one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from winnow.records import IntArray


class Tokens(Protocol):
    """A prompt or another tokenized text."""

    @property
    def tokens(self) -> IntArray: ...


def left_pad(prompts: Sequence[Tokens], *, pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad to the longest length P: tokens [R, P], and a mask [R, P] (int64) with 0 for padding and 1 elsewhere."""
    width = max(len(prompt.tokens) for prompt in prompts)
    tokens = np.full((len(prompts), width), pad, dtype=np.int64)
    real = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt.tokens) :] = prompt.tokens
        real[row, width - len(prompt.tokens) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(real).to(device)
