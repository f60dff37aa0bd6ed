"""How hard a rollout would pull at the policy: || grad log P(rollout | prompt) ||_2, which GVM allocates rollouts by.

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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from winnow.errors import ConfigError
from winnow.records import FloatArray, Group, TrainingSequence

if TYPE_CHECKING:
    from winnow.learner.policy import Policy

Matrix = Literal["embedding", "output_head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """R rollouts as the model is fed with them, each after its prompt, padded on the right to S tokens."""

    tokens: Tensor  # [R, S]
    predicting: Tensor  # [T] flat positions that predict a completion token
    targets: Tensor  # [T] those tokens, rollout after rollout
    mask: Tensor  # [T] bool, False where a token was not the policy's choice: log P leaves it out
    lengths: list[int]  # [R] completion tokens


def prompt_gradient_norms(policy: Policy, groups: Sequence[Group], *, of: Matrix) -> FloatArray:
    """G_i of every prompt: the mean of `Policy.gradient_norms` over its correct rollouts, under the present weights.

    Yao et al. 2025, arXiv 2505.02391, Algorithm 2, with the norm inside the mean as there (Proposition 1 has the root
    of the mean square). Returns [G]: 0 where no rollout is correct, NaN where none was verified.
    """
    rows = [row for place, group in enumerate(groups) for row in _correct_rows(group, place)]
    owners = np.array([row.group for row in rows], dtype=np.int64)
    totals = np.bincount(owners, weights=policy.gradient_norms(rows, of=of), minlength=len(groups))
    counts = np.bincount(owners, minlength=len(groups))
    verified = np.array([group.valid.any() for group in groups], dtype=np.bool_)
    return np.where(verified, totals / np.maximum(counts, 1), np.nan)


@torch.no_grad()
def output_head_norms(decoder: nn.Module, head: nn.Module, fed: Fed, *, temperature: float) -> list[float]:
    """[R] with respect to the output head's weight alone, tied or not. Forward only; [T, V] exists at once."""
    hidden = _predictors(decoder(input_ids=fed.tokens, use_cache=False), fed)
    slopes = _slopes(head(hidden), fed, temperature)
    per_rollout = zip(torch.split(slopes, fed.lengths), torch.split(hidden.to(slopes), fed.lengths), strict=True)
    return _roots(_squared(d @ d.T, h) for d, h in per_rollout)


@torch.enable_grad()
def embedding_norms(decoder: nn.Module, head: nn.Module, fed: Fed, *, temperature: float) -> list[float]:
    """[R] with respect to the input embedding, in both its roles where the head is tied to it. [T, V] exists at once.

    One backward for all rollouts: what they are fed with is kept apart, so each finds its own gradient there, and no
    parameter gets one. Raises ConfigError where the embedding is more than a table.
    """
    embedding = _table(decoder)
    embedded = embedding(fed.tokens).detach().requires_grad_()
    with _frozen(decoder, head):
        hidden = _predictors(decoder(inputs_embeds=embedded, use_cache=False), fed)
        logits = head(hidden)
        slopes = _slopes(logits.detach(), fed, temperature)
        (inputs,) = torch.autograd.grad(logits, embedded, slopes.to(logits.dtype))
    squared = _tied_squared if head.weight is embedding.weight else _input_squared
    per_rollout = zip(
        fed.tokens,
        inputs.to(slopes),
        torch.split(slopes, fed.lengths),
        torch.split(hidden.detach().to(slopes), fed.lengths),
        strict=True,
    )
    return _roots(squared(*rollout) for rollout in per_rollout)


NORMS: dict[Matrix, Callable[..., list[float]]] = {"embedding": embedding_norms, "output_head": output_head_norms}


def _correct_rows(group: Group, place: int) -> Iterator[TrainingSequence]:
    for rollout, correct in zip(group.rollouts, group.correct, strict=True):
        if correct:
            yield TrainingSequence(prompt=group.prompt, rollout=rollout, group=place, advantage=0.0, weight=0.0)


def _predictors(output: Any, fed: Fed) -> Tensor:
    """[T, H] the hidden states that predict a completion token."""
    hidden: Tensor = output.last_hidden_state
    return hidden.flatten(0, 1).index_select(0, fed.predicting)


def _slopes(logits: Tensor, fed: Fed, temperature: float) -> Tensor:
    """d log P / d logits [T, V]: (onehot - softmax) / temperature, and 0 for tokens that log P leaves out."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    slopes = (logits / temperature).softmax(dim=-1).neg_()
    slopes[torch.arange(len(slopes), device=slopes.device), fed.targets] += 1
    return slopes.mul_(fed.mask.to(slopes).div_(temperature).unsqueeze(-1))


def _tied_squared(tokens: Tensor, inputs: Tensor, slopes: Tensor, hidden: Tensor) -> Tensor:
    between = (slopes[:, tokens] * (hidden @ inputs.T)).sum(dtype=torch.float64)
    return _input_squared(tokens, inputs, slopes, hidden) + 2 * between + _squared(slopes @ slopes.T, hidden)


def _input_squared(tokens: Tensor, inputs: Tensor, slopes: Tensor, hidden: Tensor) -> Tensor:
    """Padding has no gradient, so it adds nothing."""
    return _squared((tokens.unsqueeze(1) == tokens).to(inputs.dtype), inputs)


def _squared(products: Tensor, right: Tensor) -> Tensor:
    """|| sum_i a_i b_i' ||^2 from the inner products of the a_i [n, n] and the b_i [n, H]."""
    return (products * (right @ right.T)).sum(dtype=torch.float64)


def _roots(squares: Iterable[Tensor]) -> list[float]:
    """Rounding may leave the square of a vanishing norm below 0."""
    found: list[float] = torch.stack(list(squares)).clamp(min=0).sqrt().tolist()
    return found


def _table(decoder: nn.Module) -> nn.Embedding:
    """The input embedding, if what it answers is a row of its weight and nothing more."""
    embedding = decoder.get_input_embeddings()  # type: ignore[operator]
    if type(embedding) is not nn.Embedding:
        raise ConfigError(
            f"the gradient norm of the embedding cannot be taken: {type(embedding).__name__} is more than a table (it "
            f'scales its rows, or an adapter is on it); take that of "output_head" instead'
        )
    return embedding


@contextmanager
def _frozen(*modules: nn.Module) -> Iterator[None]:
    """No parameter needs a gradient here, so that forward keeps no activations for the sake of one."""
    parameters = {p for module in modules for p in module.parameters() if p.requires_grad}
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
