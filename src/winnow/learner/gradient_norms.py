"""The gradient norm of a rollout, || grad log P(rollout | prompt) ||_2, by which GVM allocates rollouts.

log P is the sum over the completion's trained tokens, at the sampling temperature, without length normalisation. The
gradient is the one with respect to a single [V, H] matrix, and for one rollout that is a sum of outer products a b':

    output head      d_t h_t'            d_t = (onehot(y_t) - p_t) / temperature, h_t the hidden state that predicts y_t
    input embedding  onehot(x_s) g_s'    g_s = the gradient at the embedded token x_s

The first is found as head_gradient.py says. The second has one row per distinct token, the sum of its g_s. Where the
model ties the two, the gradient is that of the shared matrix, W + E for the sums of both roles, and || W + E ||^2 =
|| W ||^2 + || E ||^2 + 2 sum_s W[x_s] . g_s. Nothing but attention grows faster than the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from winnow import ranks
from winnow.errors import ConfigError
from winnow.learner.head_gradient import Chunk, HeadGradient, head_gradient, logit_gradients
from winnow.learner.micro_batches import cut
from winnow.learner.model_input import AnySequence, ModelInput, predictors, side_by_side, targets, trained
from winnow.learner.policy_module import PolicyModule
from winnow.learner.rank_shares import dealt, passes_short, shortest
from winnow.learner.sharding import is_sharded, reshard
from winnow.records import FloatArray

Matrix = Literal["embedding", "output_head"]


def gradient_norms(
    module: PolicyModule,
    sequences: Sequence[AnySequence],
    *,
    of: Matrix,
    pad_token: int,
    temperature: float,
    tokens_per_micro_batch: int,
    chunk: int,
    even: bool = False,
) -> FloatArray:
    """[n] of || d log P(rollout | prompt) / d matrix ||_2 under the module's present weights, as the sequences come.

    Each rank computes those of its share, and all get all; with `even`, they make as many passes on every rank. No
    parameter's own gradient changes. At most three times [chunk, V] exist at once. Raises ConfigError where the
    embedding is more than a table.
    """

    def compute(part: Sequence[AnySequence]) -> list[float]:
        rollouts = _Rollouts.of(part, pad_token, temperature, chunk, module.device)
        # Rounding may leave the square of a vanishing norm below 0.
        return NORMS[of](module, rollouts).clamp(min=0).sqrt().tolist()

    every = dealt(sequences, partial(cut, tokens=tokens_per_micro_batch))
    own = dict[int, float]()
    for part in every[ranks.rank()]:
        own.update(zip(part, compute([sequences[i] for i in part]), strict=True))
    if even:
        for _ in range(passes_short(every)):
            compute([shortest(sequences)])
    reshard(module)
    norms = np.zeros(len(sequences), dtype=np.float64)
    for found in ranks.each(own, what="norms"):
        norms[list(found)] = list(found.values())
    return norms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollouts:
    """R rollouts as the model reads them, and what their log P is the sum of."""

    given: ModelInput
    targets: Tensor  # [T] completion tokens, rollout after rollout
    mask: Tensor  # [T] bool, False where log P leaves a token out
    lengths: list[int]  # [R] completion tokens
    temperature: float
    chunk: int

    @classmethod
    def of(
        cls, sequences: Sequence[AnySequence], pad_token: int, temperature: float, chunk: int, device: torch.device
    ) -> Self:
        return cls(
            given=side_by_side(sequences, pad_token, device),
            targets=torch.from_numpy(targets(sequences)).to(device),
            mask=torch.from_numpy(trained(sequences)).to(device),
            lengths=[len(sequence.rollout.tokens) for sequence in sequences],
            temperature=temperature,
            chunk=chunk,
        )

    def split(self, hidden: Tensor) -> Iterator[list[Chunk]]:
        """Every rollout's chunks, from the hidden states [T, H] that predict the completion tokens."""
        each = (torch.split(whole, self.lengths) for whole in (hidden, self.targets, self.mask))
        for rollout in zip(*each, strict=True):
            yield [Chunk(*chunk) for chunk in zip(*(torch.split(part, self.chunk) for part in rollout), strict=True)]

    def head_gradient(self, head: nn.Module, row: int) -> HeadGradient:
        """Of one rollout."""
        return head_gradient(
            head, self.given.tokens[row], self.lengths[row], chunk=self.chunk, temperature=self.temperature
        )


@torch.no_grad()
def output_head_norms(module: PolicyModule, rollouts: _Rollouts) -> Tensor:
    """[R] squares, with respect to the output head's weight alone, tied or not. Forward only."""

    def compute(backbone: nn.Module, head: nn.Module) -> Tensor:
        hidden = predictors(
            backbone(input_ids=rollouts.given.tokens, use_cache=False).last_hidden_state, rollouts.given
        )
        return torch.stack([squared(head, row, chunks) for row, chunks in enumerate(rollouts.split(hidden))])

    def squared(head: nn.Module, row: int, chunks: Sequence[Chunk]) -> Tensor:
        gradient = rollouts.head_gradient(head, row)
        for chunk in chunks:
            gradient.add(chunk, logit_gradients(head(chunk.hidden), chunk, rollouts.temperature))
        return gradient.found()[0]

    squares: Tensor = module(compute)
    return squares


@torch.enable_grad()
def embedding_norms(module: PolicyModule, rollouts: _Rollouts) -> Tensor:
    """[R] squares, with respect to the input embedding, in both its roles where the head is tied to it.

    One backward for all rollouts: what they are embedded as is kept apart, so each finds its own gradient there, and no
    parameter gets one. Raises ConfigError where the embedding is more than a table.
    """
    tied = module.parts.head.weight is _table(module.parts.backbone).weight

    def compute(backbone: nn.Module, head: nn.Module) -> tuple[Tensor, ...]:
        embedded = _table(backbone)(rollouts.given.tokens).detach().requires_grad_()
        hidden = predictors(backbone(inputs_embeds=embedded, use_cache=False).last_hidden_state, rollouts.given)
        return embedded, hidden, *_through_head(head, hidden.detach(), rollouts, tied=tied)

    with _frozen(module):
        answer: tuple[Tensor, ...] = module(compute)
        embedded, hidden, above, *roles = answer
        (inputs,) = torch.autograd.grad(hidden, embedded, above)
    squares = torch.stack([_input_squared(*row) for row in zip(rollouts.given.tokens, inputs, strict=True)])
    if not tied:
        return squares
    head_squares, rows = roles
    return squares + 2 * (rows * inputs.to(rows)).sum(dim=(1, 2), dtype=torch.float64) + head_squares


def _through_head(head: nn.Module, hidden: Tensor, rollouts: _Rollouts, *, tied: bool) -> Iterator[Tensor]:
    """d log P / d hidden [T, H]; if `tied`, also [R] what the head's role adds to the squares, and [R, S, H] the
    rows of its gradients for the tokens that are embedded.
    """
    above, found = list[Tensor](), list[tuple[Tensor, Tensor]]()
    for row, chunks in enumerate(rollouts.split(hidden)):
        role = rollouts.head_gradient(head, row) if tied else None
        for chunk in chunks:
            below = chunk.hidden.detach().requires_grad_()
            logits = head(below)
            gradients = logit_gradients(logits.detach(), chunk, rollouts.temperature)
            above += torch.autograd.grad(logits, below, gradients.to(logits.dtype))
            del logits
            if role is not None:
                role.add(chunk, gradients)
        found += [] if role is None else [role.found()]
    yield torch.cat(above)
    yield from map(torch.stack, zip(*found, strict=True))


NORMS: dict[Matrix, Callable[[PolicyModule, _Rollouts], Tensor]] = {
    "embedding": embedding_norms,
    "output_head": output_head_norms,
}


def _input_squared(tokens: Tensor, inputs: Tensor) -> Tensor:
    """|| sum_s onehot(x_s) g_s' ||^2. Padding has no gradient, so it adds nothing."""
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    distinct, places = torch.unique(tokens, return_inverse=True)
    return torch.zeros_like(inputs[: len(distinct)]).index_add_(0, places, inputs).square().sum(dtype=torch.float64)


def _table(backbone: nn.Module) -> nn.Embedding:
    """The input embedding, if what it answers is a row of its weight and nothing more."""
    embedding = backbone.get_input_embeddings()  # type: ignore[operator]
    if type(embedding) is not nn.Embedding:
        raise ConfigError(
            f"the gradient norm of the embedding cannot be computed: {type(embedding).__name__} is more than a table "
            f"(it scales its rows, or an adapter is on it)",
            remedy="set probe.gradient_norm to 'output_head'",
            key="probe.gradient_norm",
            code="config.unsupported",
        )
    return embedding


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """No parameter needs a gradient here, so that forward keeps no activations for the sake of one. What is gathered
    from shares needs one for good if it did at first, so sharded parameters stay as they are.
    """
    parameters = [p for p in module.parameters() if p.requires_grad and not is_sharded(p)]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
