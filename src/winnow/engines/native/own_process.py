"""The native engine in a process of its own: on a copy of the policy that the process makes from its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from winnow.engines.base import EngineContext
from winnow.engines.freshness import check_newer
from winnow.engines.native.sampler import Native
from winnow.engines.policy_copy import TOLERANCES, PolicyCopy
from winnow.engines.served import Served

if TYPE_CHECKING:
    from torch import Tensor


class NativeServer(Native):
    """Before the first load its version is -1, its weights are random, and it cannot sample."""

    def __init__(
        self, served: Served, options: Mapping[str, Any], threads: int, cache_bytes: int | None = None
    ) -> None:
        """`options` are `Native`'s, and `cache_bytes` is `EngineContext.cache_bytes`. `threads` are the threads of the
        process, which multiplies on nothing else.
        """
        torch.set_num_threads(threads)
        self.version = -1
        dtype = getattr(torch, served.dtype)
        config = AutoConfig.from_pretrained(served.folder, trust_remote_code=False)
        self._received = PolicyCopy(AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa"))
        self._context = EngineContext(
            model=self._received.model,
            tokenizer=served.tokenizer,
            stop_tokens=served.stop_tokens,
            max_rollouts_at_once=served.max_rollouts_at_once,
            context_tokens=served.context_tokens,
            cache_bytes=cache_bytes,
        )
        self._options = options
        self.logprob_tolerance = TOLERANCES[dtype]

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy the plain model's weights, in place, each read once."""
        check_newer(version, than=self.version)
        self._received.load(weights)
        if self.version < 0:  # only now, because it checks the attention on these weights
            super().__init__(self._context, **self._options)
        self.version = version
