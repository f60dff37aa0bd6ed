"""A causal language model taken apart: the decoder that makes hidden states, and the head that makes logits."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn

from winnow.errors import ConfigError

Halves = tuple[nn.Module, nn.Module]  # decoder, head


def decoder_and_head(model: nn.Module) -> Halves:
    """The two halves of a transformers model, wrapped by peft or not, such that logits = head(decoder(tokens)).

    Raises ConfigError for a model that does more than that (a soft cap, a final scale): its log-probs would be wrong.
    """
    causal = causal_model(model)
    decoder, head = causal.get_decoder(), causal.get_output_embeddings()
    if head is None or not _composes(causal, decoder, head):
        raise ConfigError(
            f"model: the logits of {type(causal).__name__} are not its output layer applied to its last hidden state "
            f"(soft-capped or scaled logits?), so its log-probs would be computed wrongly; choose another model"
        )
    return cast(nn.Module, decoder), cast(nn.Module, head)


def causal_model(model: nn.Module) -> Any:
    """The transformers model inside a peft wrapper, or the model itself."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def reads_in_pieces(model: nn.Module) -> bool:
    """Whether a text can be read on top of another's keys and values: every token sees all before it (no layer has a
    window), and stands where it is told to.
    """
    causal = causal_model(model)
    if "position_ids" not in inspect.signature(causal.get_decoder().forward).parameters:
        return False
    config = causal.config.get_text_config()
    if kinds := getattr(config, "layer_types", None):
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


@torch.no_grad()
def _composes(causal: Any, decoder: nn.Module, head: nn.Module) -> bool:
    """Let the head answer with known logits, large enough for a soft cap to bend them, and see what comes out."""
    seen: dict[str, Tensor] = {}

    def answer(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen["hidden"] = inputs[0]
        seen["logits"] = torch.zeros_like(output) + torch.linspace(-50, 50, output.shape[-1]).to(output)
        return seen["logits"]

    tokens = torch.zeros((1, 2), dtype=torch.int64, device=next(causal.parameters()).device)
    handle = head.register_forward_hook(answer)
    try:
        logits = causal(input_ids=tokens, use_cache=False).logits
    finally:
        handle.remove()
    hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
    same_logits = torch.equal(logits.float(), seen["logits"].float())
    return same_logits and torch.allclose(hidden, seen["hidden"])
