"""Attention over sequences that are concatenated in a single row.

It works for any model that attends through transformers' interface. The row has no padding, needs no [S, S] mask, and
contains a prompt once for all its rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.integrations.flex_attention import flex_attention_forward

from winnow.errors import ConfigError, unsupported
from winnow.learner import packed_attention
from winnow.learner.packed_attention import Segment as Segment
from winnow.models.adapter import plain_model
from winnow.models.attention import attention
from winnow.models.backbone import reads_in_pieces, register
from winnow.models.device import is_cpu, to_device
from winnow.models.meta import has_numbers
from winnow.records import BoolArray, IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel


NAME = "winnow_packed"
BLOCK = 128  # tokens: flex attention skips blocks of this many queries and keys
MASKED = 1024  # longest completion that attends over a mask, which has a row per token
GAP, HALF_GAP = 1e-3, 0.2  # tolerance as a share of a token's hidden state; HALF_GAP for 16 bits


@dataclass(frozen=True, slots=True)
class Packing:
    """The attention of a row of S tokens: each attends to its segment up to itself, and to all of its prompt."""

    segments: Sequence[Segment]  # the row's tokens in order, without gaps
    blocks: BlockMask | None = None  # for flex attention; None: attend segment by segment
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # by (L, P), shared by all layers
    pieces: list[packed_attention.Piece] | None = None  # on a CPU, if all segments are short

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device, heads: int) -> Packing:
        """A packing for flex attention on a GPU. Elsewhere short segments attend together, and others one by one by
        scaled dot-product attention. `heads` is the number of query heads.
        """
        if device.type == "cuda":
            return cls(segments, block_mask(segments, device))
        return cls(segments, pieces=packed_attention.pieces(segments, heads) if is_cpu(device) else None)

    def mask(self, length: int, prompt: int, like: Tensor) -> Tensor:
        """[1, 1, L, P + L], 0 where a completion's token attends: to its prompt, and to its completion up to itself."""
        if (length, prompt) not in self.masks:
            hidden = torch.ones(length, prompt + length, dtype=torch.bool, device=like.device).triu_(prompt + 1)
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
            self.masks[length, prompt] = mask[None, None]
        return self.masks[length, prompt]


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None
) -> Tensor:
    """[1, S, heads, D] the attention of a row [1, heads, S, D], by its `packing`."""
    if packing.blocks is not None:
        output: Tensor = flex_attention_forward(module, query, key, value, packing.blocks, scaling=scaling)[0]
        return output
    if packing.pieces is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return packed_attention.attend(query, key, value, packing.pieces, scale)
    places = range(len(packing.segments))
    return torch.cat([_attend_segment(module, query, key, value, packing, place, scaling) for place in places], 1)


def _attend_segment(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, packing: Packing, place: int, scaling: float | None
) -> Tensor:
    """[1, L, heads, D] of one segment.

    A completion of at most MASKED tokens that is no longer than its prompt attends over a mask [L, P + L]. Otherwise
    prompt and completion attend together, which is plain causal attention without a mask, and the prompt's part is
    dropped.
    """
    start, end, prompt_start, prompt_end = packing.segments[place]
    length, prompt = end - start, prompt_end - prompt_start

    def whole(states: Tensor) -> Tensor:
        return torch.cat([states[:, :, prompt_start:prompt_end], states[:, :, start:end]], 2)

    masked = length <= min(prompt, MASKED)
    queries = query[:, :, start:end] if masked else whole(query)
    mask = packing.mask(length, prompt, query) if masked else None
    output, _ = attention(module, queries, whole(key), whole(value), mask, scaling=scaling)
    return output[:, -length:]


register(NAME, "packing", attend)


def block_mask(segments: Sequence[Segment], device: torch.device) -> BlockMask:
    """Flex attention's block mask from the segments' bounds; `create_block_mask` would allocate [S, S] numbers."""
    length = segments[-1].end
    lengths = [segment.end - segment.start for segment in segments]
    bounds = np.array([(s.start, s.prompt_start, s.prompt_end) for s in segments]).T
    start, first, last = (to_device(np.repeat(of, lengths), device) for of in bounds)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = (key >= start[query]) & (key <= query)
        return own | ((key >= first[query]) & (key < last[query]))

    seen, whole = _blocks(segments, -(-length // BLOCK))
    some, every = (_listed(blocks, device) for blocks in (seen & ~whole, whole))
    return BlockMask.from_kv_blocks(*some, *every, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(length, length))


def _blocks(segments: Sequence[Segment], count: int) -> tuple[BoolArray, BoolArray]:
    """[count, count] the blocks of queries and keys with any visible pair, and those in which every pair is visible."""
    seen, whole = np.zeros((count, count), dtype=np.bool_), np.zeros((count, count), dtype=np.bool_)
    for segment in segments:
        queries, inside = _touched(segment.start, segment.end), _covered(segment.start, segment.end)
        seen[queries, queries] = True
        whole[inside, inside] = True
        if segment.prompt_end > segment.prompt_start:
            seen[queries, _touched(segment.prompt_start, segment.prompt_end)] = True
            whole[inside, _covered(segment.prompt_start, segment.prompt_end)] = True
    return np.tril(seen), np.tril(whole, -1)  # a segment follows its prompt; diagonal blocks are only partly causal


def _touched(start: int, end: int) -> slice:
    return slice(start // BLOCK, -(-end // BLOCK))


def _covered(start: int, end: int) -> slice:
    return slice(-(-start // BLOCK), max(-(-start // BLOCK), end // BLOCK))


def _listed(blocks: BoolArray, device: torch.device) -> tuple[Tensor, Tensor]:
    """For every block of queries: [1, 1, n] the number of its marked key blocks, and [1, 1, n, n] the indices of all
    key blocks, marked ones first.
    """
    counts: IntArray = blocks.sum(axis=1)
    order: IntArray = np.argsort(~blocks, axis=1, kind="stable")
    return tuple(to_device(a, device).to(torch.int32)[None, None] for a in (counts, order))  # type: ignore[return-value]


def read(backbone: nn.Module, tokens: Tensor, positions: Tensor, packing: Packing) -> Tensor:
    """Hidden states [S, H] of a row of tokens [S], from a backbone that `attend_packed` has prepared."""
    no_mask = torch.empty((1, 1, 0, 0), device=tokens.device)  # transformers passes a 4-d mask on and makes none
    out = backbone(
        input_ids=tokens[None], position_ids=positions[None], attention_mask=no_mask, packing=packing, use_cache=False
    )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


def attend_packed(model: nn.Module) -> None:
    """Make the model's layers attend through `attend` from now on.

    Raises ConfigError for a model whose layers cannot, or whose layers need more than full attention. The check: a
    prompt with two completions in one row must get the hidden states that it gets in two rows.
    """
    causal: PreTrainedModel = plain_model(model)
    if not reads_in_pieces(model):
        raise _unsupported("layers that do not attend to all earlier tokens, or separate positions")
    before = causal.config._attn_implementation
    try:
        causal.set_attn_implementation(NAME)
        difference = _largest_difference(causal.get_decoder())
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError) as error:
        causal.set_attn_implementation(before)
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _unsupported(f"a forward pass that raises {type(error).__name__}: {error}") from error
    if not difference <= (HALF_GAP if causal.dtype.itemsize < 4 else GAP):
        causal.set_attn_implementation(before)
        raise _unsupported(
            f"layers with a different attention: hidden states differ by {difference:.2g} of their length"
        )


def can_join(model: nn.Module) -> bool:
    """Make a model in 16 bits on a CPU attend through `attend` from now on. Returns whether that was possible.

    There a pass costs little more than its products, and one pass over a row of prompts and completions makes half as
    many as one over the prompts and one over the completions.
    """
    weight = next(model.parameters())
    if not is_cpu(weight.device) or not has_numbers(weight) or plain_model(model).dtype.itemsize != 2:
        return False
    try:
        attend_packed(model)
    except ConfigError:
        return False
    return True


@torch.no_grad()
def _largest_difference(backbone: nn.Module) -> float:
    """Largest length of the difference of a token's hidden states between packed and padded rows, as a share of their
    length. Single numbers differ by more: in 16 bits by half a standard deviation and above.

    0 where weights give values that are not finite, which training reports, and for a model without numbers.
    """
    if not has_numbers(next(backbone.parameters())):
        return 0.0
    device = next(backbone.parameters()).device
    vocabulary = backbone.config.get_text_config().vocab_size  # type: ignore[union-attr, operator]
    rows = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6]], device=device) % vocabulary
    segments = [Segment(0, 3, 0, 0), Segment(3, 5, 0, 3), Segment(5, 7, 0, 3)]
    places = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6]], device=device)
    packed = read(
        backbone,
        torch.cat([rows[0], rows[1, 3:]]),
        torch.tensor([0, 1, 2, 3, 4, 3, 4], device=device),
        Packing(segments),
    )[places]
    plain: Tensor = backbone(input_ids=rows, use_cache=False).last_hidden_state
    if not plain.isfinite().all():
        return 0.0
    lengths = torch.linalg.vector_norm(plain.float(), dim=-1).clamp(min=1e-9)
    return float((torch.linalg.vector_norm((packed - plain).float(), dim=-1) / lengths).max())


def _unsupported(why: str) -> ConfigError:
    return unsupported(
        f"update.layout: 'packed' needs full attention through transformers' interface, and this model has {why}",
        remedy="set it to 'padded'",
        key="update.layout",
    )
