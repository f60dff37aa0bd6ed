"""G_i, the mean gradient norm of a prompt's correct rollouts, by which GVM allocates rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from winnow.learner.gradient_norms import Matrix
from winnow.learner.learner import Learner
from winnow.learner.model_input import PromptAndRollout
from winnow.learner.schedule import first_tokens
from winnow.records import FloatArray, Group


def prompt_gradient_norms(
    learner: Learner, groups: Sequence[Group], *, of: Matrix | Literal["none"], max_trained_tokens: int | None = None
) -> FloatArray | None:
    """[G] the mean of `Learner.gradient_norms` over each group's correct rollouts, with the present weights.

    Only the first `max_trained_tokens` of a rollout count, as in training. None where `of` is "none". 0 where no
    rollout is correct, NaN where none was verified.

    Yao et al. 2025, arXiv 2505.02391, Algorithm 2. The mean is over norms, as in the algorithm; Proposition 1 has the
    root of the mean square instead.
    """
    if of == "none":
        return None
    correct = [
        [first_tokens(r, max_trained_tokens) for r, right in zip(g.rollouts, g.correct, strict=True) if right]
        for g in groups
    ]
    sequences = [PromptAndRollout(g.prompt, r) for g, rollouts in zip(groups, correct, strict=True) for r in rollouts]
    counts = np.array([len(rollouts) for rollouts in correct], dtype=np.int64)
    owners = np.repeat(np.arange(len(groups)), counts)
    totals = np.bincount(owners, weights=learner.gradient_norms(sequences, of=of), minlength=len(groups))
    verified = np.array([group.valid.any() for group in groups], dtype=np.bool_)
    return np.where(verified, totals / np.maximum(counts, 1), np.nan)
