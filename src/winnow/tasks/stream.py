"""The prompts of a step: a pure function of (seed, step), so that a resume needs no cursor."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from winnow.errors import ConfigError
from winnow.records import Prompt
from winnow.seeds import SeedName, generator


def digest_of(prompts: Sequence[Prompt]) -> str:
    """The SHA-256 of every prompt's id and tokens, in their order."""
    whole = hashlib.sha256()
    for prompt in prompts:
        whole.update(f"{prompt.id}\0{len(prompt.tokens)}\0".encode(errors="surrogatepass"))
        whole.update(prompt.tokens.tobytes())
    return whole.hexdigest()


class PromptStream:
    """The prompts of each step, for any number of steps: each epoch is a new permutation, cut to whole steps.

    Prompts that are left over at the end of an epoch are not used. They differ from epoch to epoch, so that no prompt
    is omitted every time.
    """

    def __init__(self, prompts: Sequence[Prompt], *, per_step: int, seed: tuple[SeedName, ...]) -> None:
        if per_step > len(prompts):
            raise ConfigError(
                f"rollout.prompts_per_step = {per_step}, but the task has only {len(prompts)} prompts to train on",
                remedy=f"lower it to at most {len(prompts)} or enlarge the task",
                key="rollout.prompts_per_step",
                code="config.combination",
            )
        self.prompts = tuple(prompts)
        self._per_step = per_step
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        return len(self.prompts) // self._per_step

    def digest(self) -> str:
        """The digest of all prompts, in the order of the task."""
        return digest_of(self.prompts)

    def take(self, step: int, extra: int = 0) -> list[Prompt]:
        """[G] the prompts of a step, all different; with `extra` = n those of its n-th round of dynamic sampling.

        A round contains no prompt that the step or one of its earlier rounds had. It is shorter, or empty, where the
        task has too few prompts.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        order = generator(*self._seed, "epoch", epoch).permutation(len(self.prompts))
        chosen = order[place * self._per_step : (place + 1) * self._per_step]
        if extra > 0:
            others = np.setdiff1d(order, chosen)
            generator(*self._seed, "refill", step).shuffle(others)  # the name seeds the order, so it must not change
            chosen = others[(extra - 1) * self._per_step : extra * self._per_step]
        return [self.prompts[i] for i in chosen]
