"""A causal language model in two parts: the backbone (hidden states) and the head (logits).

A custom attention function is registered for every model that attends through transformers' interface.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from winnow.errors import unsupported
from winnow.models.adapter import plain_model
from winnow.models.attention import MORE, attention
from winnow.models.meta import has_numbers

CAUSAL = "winnow_causal"


def register(name: str, argument: str, attend: Callable[..., Tensor]) -> None:
    """Register the attention `name` with transformers.

    Where a forward pass gets `argument`, the result is `attend(module, query, key, value, argument, scaling)` of [R,
    heads, L, D], which returns [R, L, heads, D]. Otherwise it is that of attention.py. With `argument`, a model
    that needs more than full attention raises TypeError.
    """

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        given = options.pop(argument, None)
        if given is None:
            return attention(module, query, key, value, attention_mask, scaling=scaling, **options)
        if unknown := [name for name in MORE if options.get(name) is not None]:
            raise TypeError(f"its attention needs {unknown[0]}")
        return attend(module, query, key, value, given, scaling), None

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)


def attend_causally(model: nn.Module) -> None:
    """Make a model without numbers attend as one with numbers does where no mask is given: by plain causal attention.

    transformers takes fake tensors for a program that is traced, and would give each row a mask [S, S] of packed
    sequences. It makes none for an attention that has no function for masks.
    """
    AttentionInterface.register(CAUSAL, sdpa_attention_forward)
    plain_model(model).set_attn_implementation(CAUSAL)


class BackboneAndHead(NamedTuple):
    """The parts of a causal language model: logits = head(backbone(tokens))."""

    backbone: nn.Module
    head: nn.Module


def backbone_and_head(model: nn.Module) -> BackboneAndHead:
    """The parts of a transformers model, with an adapter or without.

    Raises ConfigError for a model that does more than that (a soft cap, a final scale): its log-probs would be wrong.
    """
    causal = plain_model(model)
    backbone, head = causal.get_decoder(), causal.get_output_embeddings()
    if head is None or not _composes(causal, backbone, head):
        raise unsupported(
            f"model: the logits of {type(causal).__name__} are not its output layer applied to its last hidden state "
            f"(soft-capped or scaled logits?), so its log-probs would be computed wrongly",
            remedy="choose another model",
            key="model.path",
        )
    return BackboneAndHead(backbone, head)


def reads_in_pieces(model: nn.Module) -> bool:
    """Whether text can be read on top of another text's keys and values.

    That needs full attention in every layer, and explicit position ids.
    """
    causal = plain_model(model)
    if "position_ids" not in inspect.signature(causal.get_decoder().forward).parameters:
        return False
    config = causal.config.get_text_config()
    if getattr(config, "alibi", False):  # a bias that is made from a mask [R, S]
        return False
    if kinds := getattr(config, "layer_types", None):
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


@torch.no_grad()
def _composes(causal: Any, backbone: nn.Module, head: nn.Module) -> bool:
    """Whether the model's logits are its head applied to its last hidden state.

    The test is a forward pass in which known numbers replace the head's output. They are so large that a soft cap would
    change them. A model without numbers is not tested.
    """
    if not has_numbers(next(causal.parameters())):
        return True
    seen: dict[str, Tensor] = {}

    def replace_logits(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen["hidden"] = inputs[0]
        seen["logits"] = torch.zeros_like(output) + torch.linspace(-50, 50, output.shape[-1]).to(output)
        return seen["logits"]

    tokens = torch.zeros((1, 2), dtype=torch.int64, device=next(causal.parameters()).device)
    handle = head.register_forward_hook(replace_logits)
    try:
        logits = causal(input_ids=tokens, use_cache=False).logits
    finally:
        handle.remove()
    hidden = backbone(input_ids=tokens, use_cache=False).last_hidden_state
    same_logits = torch.equal(logits.float(), seen["logits"].float())
    return same_logits and torch.allclose(hidden, seen["hidden"])
