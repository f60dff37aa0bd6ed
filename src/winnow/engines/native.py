"""The fast engine: decodes on the policy's own module, without a copy of its weights."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from winnow.engines.base import Engine, EngineContext, OnRollout, check_newer
from winnow.engines.harvest import Harvest, waves
from winnow.engines.rows import Rows
from winnow.engines.sampling import choose
from winnow.engines.stopping import StopRule
from winnow.errors import ConfigError, EngineError
from winnow.records import Group, Prompt, Sampling
from winnow.registry import register
from winnow.seeds import Part

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@register("engine")
def native(context: EngineContext) -> Engine:
    """Fast decoding on the policy's own module: each prompt is read once, finished rollouts leave the batch."""
    return Native(context)


class Native:
    """See `native`."""

    logprob_tolerance = 1e-4

    def __init__(self, context: EngineContext) -> None:
        _check_attention(context.model)
        self.version = 0
        self._model = context.model
        self._at_once = context.max_rollouts_at_once
        self._rule = functools.cache(
            partial(StopRule, context.tokenizer, context.stop_tokens, context.model.config.vocab_size)
        )

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[Part, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`."""
        rule = self._rule(sampling.stop)
        harvest = Harvest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout)
        with _evaluating(self._model), torch.inference_mode():
            for wave in waves(harvest.slots, self._at_once):
                _decode(Rows(self._model, wave, sampling, seed), harvest, rule, sampling)
        return harvest.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes the version; refuses weights that are not the very ones of the module it decodes on."""
        check_newer(version, than=self.version)
        own = self._model.state_dict()
        for name, weight in weights.items():
            if name not in own or own[name].data_ptr() != weight.data_ptr():
                raise EngineError(
                    f"{name!r} is not a weight of the policy's own module, on which the native engine decodes; "
                    "hand over the module's weights, not copies of them, or use the engine 'hf'"
                )
        self.version = version


def _decode(rows: Rows, harvest: Harvest, rule: StopRule, sampling: Sampling) -> None:
    """Sample one wave to its end, a token per living rollout at a time."""
    watch = torch.from_numpy(rule.watch).to(rows.logits.device)
    while rows:
        token, logprob = choose(rows.logits, rows.uniforms, sampling)
        rows.append(token, logprob)
        if rows.column == sampling.max_new_tokens:
            finished = list(range(len(rows)))
        else:
            watched = watch[token].nonzero()[:, 0].tolist()
            finished = [row for row in watched if rule.ends(rows.tokens(row).numpy(force=True))]
        if finished:
            rows.retire(finished, harvest)
        if rows:
            rows.advance()


@contextlib.contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _check_attention(model: PreTrainedModel) -> None:
    """Decoding hands the layers a full mask of its own making; others would ignore it or need another."""
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    kernel = model.config._attn_implementation
    if kinds or kernel not in ("sdpa", "eager"):
        found = ", ".join(sorted(kinds)) or kernel
        raise ConfigError(
            f"rollout.engine: native decodes full attention by 'sdpa' or 'eager' only; this model has {found}, use 'hf'"
        )
