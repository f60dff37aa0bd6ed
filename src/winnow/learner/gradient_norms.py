"""The gradient norm of a rollout, || grad log P(rollout | prompt) ||_2, by which GVM allocates rollouts.

log P is the sum over the completion's trained tokens, at the sampling temperature, without length normalisation. The
gradient is the one with respect to a single [V, H] matrix, and for one rollout that is a sum of outer products a b':

    output head      d_t h_t'            d_t = (onehot(y_t) - p_t) / temperature, h_t the hidden state that predicts y_t
    input embedding  onehot(x_s) g_s'    g_s = the gradient at the embedded token x_s

The squared norm of such a sum is sum_ij (a_i . a_j) (b_i . b_j), so the matrix itself is never made. Where the model
ties the two, the gradient is that of the shared matrix, and the sum runs over the outer products of both roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

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
) -> FloatArray:
    """[n] of || d log P(rollout | prompt) / d matrix ||_2 under the module's present weights, as the sequences come.

    No parameter's own gradient changes. Of a micro-batch, [T, V] logits exist at once. Raises ConfigError where the
    embedding is more than a table.
    """
    norms = np.zeros(len(sequences), dtype=np.float64)
    for part in cut(sequences, tokens=tokens_per_micro_batch):
        rollouts = _Rollouts.of([sequences[i] for i in part], pad_token, temperature, module.device)
        norms[part] = NORMS[of](module, rollouts)
    return norms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollouts:
    """R rollouts as the model reads them, and what their log P is the sum of."""

    given: ModelInput
    targets: Tensor  # [T] completion tokens, rollout after rollout
    mask: Tensor  # [T] bool, False where log P leaves a token out
    lengths: list[int]  # [R] completion tokens
    temperature: float

    @classmethod
    def of(cls, sequences: Sequence[AnySequence], pad_token: int, temperature: float, device: torch.device) -> Self:
        return cls(
            given=side_by_side(sequences, pad_token, device),
            targets=torch.from_numpy(targets(sequences)).to(device),
            mask=torch.from_numpy(trained(sequences)).to(device),
            lengths=[len(sequence.rollout.tokens) for sequence in sequences],
            temperature=temperature,
        )

    def logit_gradients(self, logits: Tensor) -> Tensor:
        """d log P / d logits [T, V]: (onehot - softmax) / temperature, and 0 for tokens that log P leaves out."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        gradients = (logits / self.temperature).softmax(dim=-1).neg_()
        gradients[torch.arange(len(gradients), device=gradients.device), self.targets] += 1
        return gradients.mul_(self.mask.to(gradients).div_(self.temperature).unsqueeze(-1))


@torch.no_grad()
def output_head_norms(module: PolicyModule, rollouts: _Rollouts) -> list[float]:
    """[R] with respect to the output head's weight alone, tied or not. Forward only."""

    def compute(backbone: nn.Module, head: nn.Module) -> tuple[Tensor, Tensor]:
        hidden = predictors(
            backbone(input_ids=rollouts.given.tokens, use_cache=False).last_hidden_state, rollouts.given
        )
        return hidden, head(hidden)

    hidden, logits = module(compute)
    gradients = rollouts.logit_gradients(logits)
    per_rollout = zip(
        torch.split(gradients, rollouts.lengths), torch.split(hidden.to(gradients), rollouts.lengths), strict=True
    )
    return _roots(_squared(d @ d.T, h) for d, h in per_rollout)


@torch.enable_grad()
def embedding_norms(module: PolicyModule, rollouts: _Rollouts) -> list[float]:
    """[R] with respect to the input embedding, in both its roles where the head is tied to it.

    One backward for all rollouts: what they are embedded as is kept apart, so each finds its own gradient there, and no
    parameter gets one. Raises ConfigError where the embedding is more than a table.
    """

    def compute(backbone: nn.Module, head: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        embedded = _table(backbone)(rollouts.given.tokens).detach().requires_grad_()
        hidden = predictors(backbone(inputs_embeds=embedded, use_cache=False).last_hidden_state, rollouts.given)
        return embedded, hidden, head(hidden)

    with _frozen(module):
        embedded, hidden, logits = module(compute)
        gradients = rollouts.logit_gradients(logits.detach())
        (inputs,) = torch.autograd.grad(logits, embedded, gradients.to(logits.dtype))
    tied = module.parts.head.weight is _table(module.parts.backbone).weight
    squared = _tied_squared if tied else _input_squared
    per_rollout = zip(
        rollouts.given.tokens,
        inputs.to(gradients),
        torch.split(gradients, rollouts.lengths),
        torch.split(hidden.detach().to(gradients), rollouts.lengths),
        strict=True,
    )
    return _roots(squared(*rollout) for rollout in per_rollout)


NORMS: dict[Matrix, Callable[[PolicyModule, _Rollouts], list[float]]] = {
    "embedding": embedding_norms,
    "output_head": output_head_norms,
}


def _tied_squared(tokens: Tensor, inputs: Tensor, gradients: Tensor, hidden: Tensor) -> Tensor:
    between = (gradients[:, tokens] * (hidden @ inputs.T)).sum(dtype=torch.float64)
    return _input_squared(tokens, inputs, gradients, hidden) + 2 * between + _squared(gradients @ gradients.T, hidden)


def _input_squared(tokens: Tensor, inputs: Tensor, gradients: Tensor, hidden: Tensor) -> Tensor:
    """Padding has no gradient, so it adds nothing."""
    return _squared((tokens.unsqueeze(1) == tokens).to(inputs.dtype), inputs)


def _squared(products: Tensor, right: Tensor) -> Tensor:
    """|| sum_i a_i b_i' ||^2 from the inner products of the a_i [n, n] and the b_i [n, H]."""
    return (products * (right @ right.T)).sum(dtype=torch.float64)


def _roots(squares: Iterable[Tensor]) -> list[float]:
    """Rounding may leave the square of a vanishing norm below 0."""
    found: list[float] = torch.stack(list(squares)).clamp(min=0).sqrt().tolist()
    return found


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
