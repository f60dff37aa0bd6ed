"""The matrix products of a generation by themselves: what no engine on this machine and in this precision can avoid.

Every prompt is read once, then each step multiplies as many rows as are alive; nothing is normalised, rotated, sampled
or stored. The attention's products read each prompt once for all its rollouts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.engines.native.kv_cache import KVCacheSpec
from winnow.records import Group, Prompt


@dataclass(frozen=True)
class Work:
    """What is multiplied."""

    weights: list[Tensor]  # [out, in] of every linear layer but the output layer
    head: Tensor  # [V, hidden]: of each prompt only the last token gets there
    rows: list[int]  # tokens fed at once: the prompts first, then a token of each living rollout
    groups: list[list[int]]  # living rollouts of each prompt, per step
    prompt_tokens: list[int]
    spec: KVCacheSpec
    query_heads: int


def of(model: PreTrainedModel, prompts: Sequence[Prompt], groups: Sequence[Group]) -> Work:
    """The last token of a rollout is never fed."""
    lengths = [np.asarray(group.lengths) for group in groups]
    head = model.get_output_embeddings()
    steps = range(1, max(int(found.max()) for found in lengths))
    living = [[int((found > step).sum()) for found in lengths] for step in steps]
    return Work(
        weights=[m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear) and m is not head],
        head=head.weight.detach(),
        rows=[sum(len(prompt.tokens) for prompt in prompts), *(sum(step) for step in living)],
        groups=living,
        prompt_tokens=[len(prompt.tokens) for prompt in prompts],
        spec=KVCacheSpec.of(model),
        query_heads=model.config.num_attention_heads,
    )


@torch.inference_mode()
def seconds(work: Work) -> dict[str, float]:
    """Of the linear layers, and of all products with those of the attention."""
    inputs = {weight.shape[1]: torch.randn(max(work.rows), weight.shape[1]) for weight in work.weights}
    start = time.perf_counter()
    for step, rows in enumerate(work.rows):
        for weight in work.weights:
            nn.functional.linear(inputs[weight.shape[1]][:rows], weight)
        nn.functional.linear(inputs[work.head.shape[1]][: rows if step else len(work.prompt_tokens)], work.head)
    linear = time.perf_counter() - start
    return {"linear_layers": linear, "matrix_products": linear + _attention(work)}


def _attention(work: Work) -> float:
    """Queries times keys and weights times values, over the prompts (one product per step) and over own tokens."""
    heads, width = work.spec.heads, work.spec.width
    prompt, asking = max(work.prompt_tokens), work.query_heads // heads
    most = max(max(step) for step in work.groups)
    keys = torch.randn(len(work.prompt_tokens), heads, width, prompt)
    own = torch.randn(max(map(sum, work.groups)), heads, width, len(work.groups))
    on_prompt = torch.randn(len(work.prompt_tokens), heads, most * asking, width)
    on_own = torch.randn(len(own), heads, asking, width)
    weights, own_weights = on_prompt @ keys, on_own @ own
    start = time.perf_counter()
    for column, step in enumerate(work.groups, start=1):
        members, rows = max(step) * asking, sum(step)
        for _ in range(work.spec.layers):
            on_prompt[:, :, :members] @ keys
            weights[:, :, :members] @ keys.mT
            on_own[:rows] @ own[:rows, :, :, :column]
            own_weights[:rows, :, :, :column] @ own[:rows, :, :, :column].mT
    return time.perf_counter() - start
