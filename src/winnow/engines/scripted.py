"""An engine whose texts come from a function instead of a model: for tests, documentation, and developing rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from winnow.config import Config
from winnow.engines.base import Engine, EngineContext, OnRollout, Tolerance
from winnow.engines.freshness import check_newer
from winnow.engines.requests import SamplingRequest
from winnow.engines.stopping import stop_rules
from winnow.errors import ConfigError
from winnow.records import Group, Prompt, Sampling
from winnow.registry import register
from winnow.seeds import SeedName
from winnow.user_code import load_function

if TYPE_CHECKING:
    from torch import Tensor

Script = Callable[[Prompt, int], str]


def ahead(config: Config) -> None:
    """Accept every configuration: a script shares nothing with the policy."""


@register("engine", ahead=ahead)
def scripted(context: EngineContext, *, script: Script | str | Sequence[str]) -> Engine:
    """Rollouts from a function (prompt, index) -> text, or from a list of texts used in turn; log-probs are 0."""
    if callable(script):
        return Scripted(context, script)
    if isinstance(script, str):
        return Scripted(context, load_function(script))
    texts = tuple(script)
    if not texts:
        raise ConfigError(
            "rollout.engine.script is an empty list",
            remedy="add at least one text",
            key="rollout.engine.script",
            code="config.value",
        )
    return Scripted(context, lambda prompt, index: texts[index % len(texts)])


class Scripted:
    """See `scripted`. A text is tokenized, followed by a stop token, and cut where a model's rollout would end."""

    logprob_tolerance = Tolerance(mean=float("inf"), tail=float("inf"))

    def __init__(self, context: EngineContext, script: Script) -> None:
        self.version = 0
        self._context = context
        self._script = script
        vocabulary = max((len(context.tokenizer), *(token + 1 for token in context.stop_tokens)))
        self._rule = stop_rules(context.tokenizer, context.stop_tokens, vocabulary)

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`; the seed is not used."""
        rule, limit = self._rule(sampling.stop), sampling.max_new_tokens
        with SamplingRequest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout) as request:
            for pending in request.rollouts:
                ids = self._context.tokenizer.encode(
                    self._script(pending.prompt, pending.index), add_special_tokens=False
                )
                whole = np.array([*ids, *self._context.stop_tokens[:1]], dtype=np.int64)
                ends = (n for n in range(1, min(len(whole), limit)) if rule.ends(whole[:n]))
                tokens = whole[: next(ends, limit)]
                request.finish(pending, tokens, np.zeros(len(tokens)))
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Record the version; the weights are not used."""
        check_newer(version, than=self.version)
        self.version = version

    def close(self) -> None:
        """See `Engine`; does nothing."""
