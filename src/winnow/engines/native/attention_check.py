"""A check that the native engine computes a model's attention correctly, on a prompt of two blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.engines.native.cache_size import BLOCK
from winnow.engines.native.decoder import Decoder
from winnow.engines.native.kv_cache import KVCache
from winnow.engines.native.reading import Text
from winnow.engines.native.scheduler import Scheduler
from winnow.engines.requests import PendingRollout
from winnow.errors import ConfigError
from winnow.records import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# In standard deviations of the logits. HALF_GAP is for 16 bits, where rounding may select other experts
GAP, HALF_GAP = 1e-2, 0.5


def check_attention(model: PreTrainedModel) -> None:
    """Decode two tokens and compare their logits with those of one plain forward pass. Raises ConfigError where they
    differ, or where a layer does not attend through transformers' attention interface.

    Reading the configuration is not enough: a layer may change keys, values or mask outside the interface, for example
    repeat heads in another order.
    """
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise _unsupported(f"{', '.join(sorted(kinds))} layers")
    try:
        cache, decoded, plain = _decode_and_forward(model)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError) as error:
        raise _unsupported(f"a forward pass that raises {type(error).__name__}: {error}") from error
    if len(cache.attended) != cache.spec.layers:
        raise _unsupported("layers that do not attend through transformers' attention interface")
    if not plain.isfinite().all():
        return  # the weights are not finite, which sampling reports
    off = float((decoded - plain).abs().max() / plain.std().clamp(min=1e-9))
    if not off <= (HALF_GAP if plain.dtype.itemsize < 4 else GAP):
        raise _unsupported(f"layers with a different attention: decoded logits are off by {off:.2g} of their spread")


def _decode_and_forward(model: PreTrainedModel) -> tuple[KVCache, Tensor, Tensor]:
    """Decode two tokens after a prompt of two blocks.

    Returns the cache, the logits [V] of decoding, and the logits [V] of one plain forward pass over all tokens.
    """
    length = BLOCK + 3
    tokens = np.arange(length + 2) % model.config.get_text_config().vocab_size
    prompt = Prompt(id="", tokens=tokens[:length], text="", answer=None, task="")
    scheduler = Scheduler([PendingRollout(0, prompt, 0)], rows=1, longest=2)
    decoder = Decoder(model, scheduler.pool.tokens, rows=1)
    cache, row = decoder.cache, np.zeros(1, dtype=np.int64)
    with decoder.sampling(scheduler):
        cache.add_prompts(row + length)
        cache.add_rows(row)
        decoder.read([Text(tokens[:length], prompts=(0,))])
        decoder.set_prompts(row)
        cache.extend(row)
        for written in (0, 1):
            decoded = decoder.decode(tokens[length + written, None], row + length + written, row + written)[0]
        every = torch.from_numpy(tokens)[None].to(model.device)
        plain: Tensor = model(input_ids=every, use_cache=False).logits[0, -1]
    return cache, decoded, plain


def _unsupported(why: str) -> ConfigError:
    return ConfigError(
        f"rollout.engine: native decodes full attention through transformers' interface only, and this model has {why}",
        remedy="use the engine 'hf'",
        key="rollout.engine",
        code="config.unsupported",
    )
