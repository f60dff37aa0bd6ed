"""The gradient norm of a rollout, || grad log P(rollout | prompt) ||_2, by which GVM allocates rollouts.

log P is the sum over the completion's trained tokens, at the sampling temperature, without length normalisation. The
gradient is the one with respect to a single [V, H] matrix, and for one rollout that is a sum of outer products a b':

    output head      d_t h_t'            d_t = (onehot(y_t) - p_t) / temperature, h_t the hidden state that predicts y_t
    input embedding  onehot(x_s) g_s'    g_s = the gradient at the embedded token x_s

The squared norm of such a sum is sum_ij (a_i . a_j) (b_i . b_j), so the matrix itself is never made. Where the model
ties the two, the gradient is that of the shared matrix, and the sum runs over the outer products of both roles.

The d_t are [V] each: they exist for `chunk` tokens at a time, twice. A rollout of more tokens goes through the output
head once for every pair of its chunks, which takes no more memory, and any head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from winnow.errors import ConfigError
from winnow.learner.micro_batches import cut
from winnow.learner.model_input import AnySequence, ModelInput, predictors, side_by_side, targets, trained
from winnow.learner.policy_module import PolicyModule
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
) -> FloatArray:
    """[n] of || d log P(rollout | prompt) / d matrix ||_2 under the module's present weights, as the sequences come.

    No parameter's own gradient changes. At most three times [chunk, V] exist at once. Raises ConfigError where the
    embedding is more than a table.
    """
    norms = np.zeros(len(sequences), dtype=np.float64)
    for part in cut(sequences, tokens=tokens_per_micro_batch):
        rollouts = _Rollouts.of([sequences[i] for i in part], pad_token, temperature, chunk, module.device)
        # Rounding may leave the square of a vanishing norm below 0.
        norms[part] = NORMS[of](module, rollouts).clamp(min=0).sqrt().tolist()
    return norms


class _Chunk(NamedTuple):
    """Of one rollout, at most `chunk` completion tokens."""

    hidden: Tensor  # [c, H] what predicts them
    targets: Tensor  # [c] they themselves
    mask: Tensor  # [c] bool, False where log P leaves a token out


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

    def split(self, hidden: Tensor) -> Iterator[list[_Chunk]]:
        """Every rollout's chunks, from the hidden states [T, H] that predict the completion tokens."""
        each = (torch.split(whole, self.lengths) for whole in (hidden, self.targets, self.mask))
        for rollout in zip(*each, strict=True):
            yield [_Chunk(*chunk) for chunk in zip(*(torch.split(part, self.chunk) for part in rollout), strict=True)]

    def logit_gradients(self, logits: Tensor, chunk: _Chunk) -> Tensor:
        """d log P / d logits [c, V]: (onehot - softmax) / temperature, and 0 for tokens that log P leaves out."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.temperature != 1.0:
            logits = logits / self.temperature
        gradients = logits.softmax(dim=-1).neg_()
        gradients[torch.arange(len(gradients), device=gradients.device), chunk.targets] += 1
        return gradients.mul_(chunk.mask.to(gradients).div_(self.temperature).unsqueeze(-1))

    @torch.no_grad()
    def outer_squared(self, head: nn.Module, chunks: Sequence[_Chunk], number: int, gradients: Tensor) -> Tensor:
        """What chunk `number`, of which d log P / d logits are the `gradients`, and those before it add to the squared
        norm of sum_t d_t h_t'.
        """
        own = chunks[number].hidden.to(gradients)
        squared = ((gradients @ gradients.T) * (own @ own.T)).sum(dtype=torch.float64)
        for other in chunks[:number]:
            theirs = self.logit_gradients(head(other.hidden), other)
            squared += 2 * ((gradients @ theirs.T) * (own @ other.hidden.to(theirs).T)).sum(dtype=torch.float64)
        return squared


@torch.no_grad()
def output_head_norms(module: PolicyModule, rollouts: _Rollouts) -> Tensor:
    """[R] squares, with respect to the output head's weight alone, tied or not. Forward only."""

    def compute(backbone: nn.Module, head: nn.Module) -> Tensor:
        hidden = predictors(
            backbone(input_ids=rollouts.given.tokens, use_cache=False).last_hidden_state, rollouts.given
        )
        return torch.stack([squared(head, chunks) for chunks in rollouts.split(hidden)])

    def squared(head: nn.Module, chunks: Sequence[_Chunk]) -> Tensor:
        found = torch.zeros((), dtype=torch.float64, device=module.device)
        for number, chunk in enumerate(chunks):
            gradients = rollouts.logit_gradients(head(chunk.hidden), chunk)
            found += rollouts.outer_squared(head, chunks, number, gradients)
        return found

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
    head_squares, *columns = roles
    crossed = zip(columns, torch.split(hidden.detach(), rollouts.lengths), inputs, strict=True)
    between = [(d * (h.to(d) @ g.to(d).T)).sum(dtype=torch.float64) for d, h, g in crossed]
    return squares + 2 * torch.stack(between) + head_squares


def _through_head(head: nn.Module, hidden: Tensor, rollouts: _Rollouts, *, tied: bool) -> Iterator[Tensor]:
    """d log P / d hidden [T, H]; if `tied`, also [R] what the head's role adds to the squares, and for every rollout
    the columns [L, S] of its d that belong to the tokens it is embedded as.
    """
    above, columns = list[Tensor](), list[Tensor]()
    squares = hidden.new_zeros(len(rollouts.lengths), dtype=torch.float64)
    for row, chunks in enumerate(rollouts.split(hidden)):
        own = []
        for number, chunk in enumerate(chunks):
            below = chunk.hidden.detach().requires_grad_()
            logits = head(below)
            gradients = rollouts.logit_gradients(logits.detach(), chunk)
            above += torch.autograd.grad(logits, below, gradients.to(logits.dtype))
            del logits
            if tied:
                squares[row] += rollouts.outer_squared(head, chunks, number, gradients)
                own.append(gradients[:, rollouts.given.tokens[row]])
        columns += [torch.cat(own)] if tied else []
    yield torch.cat(above)
    if tied:
        yield from (squares, *columns)


NORMS: dict[Matrix, Callable[[PolicyModule, _Rollouts], Tensor]] = {
    "embedding": embedding_norms,
    "output_head": output_head_norms,
}


def _input_squared(tokens: Tensor, inputs: Tensor) -> Tensor:
    """|| sum_s onehot(x_s) g_s' ||^2. Padding has no gradient, so it adds nothing."""
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    return ((tokens.unsqueeze(1) == tokens) * (inputs @ inputs.T)).sum(dtype=torch.float64)


def _table(backbone: nn.Module) -> nn.Embedding:
    """The input embedding, if what it answers is a row of its weight and nothing more."""
    embedding = backbone.get_input_embeddings()  # type: ignore[operator]
    if type(embedding) is not nn.Embedding:
        raise ConfigError(
            f"the gradient norm of the embedding cannot be taken: {type(embedding).__name__} is more than a table (it "
            f'scales its rows, or an adapter is on it); take that of "output_head" instead'
        )
    return embedding


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """No parameter needs a gradient here, so that forward keeps no activations for the sake of one."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
