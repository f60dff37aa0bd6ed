"""The gradient norm of a rollout, || grad log P(rollout | prompt) ||_2, from which GVM allocates rollouts.

log P is the sum over the completion's trained tokens, at the sampling temperature, without length normalisation. The
gradient is taken with respect to a single [V, H] matrix. For one rollout it is a sum of outer products a b':

    output head      d_t h_t'            d_t = (onehot(y_t) - p_t) / temperature, h_t the hidden state that predicts y_t
    input embedding  onehot(x_s) g_s'    g_s = the gradient at the embedded token x_s

head.py computes the first. The second has one row per distinct token, the sum of its g_s. Where the model ties the two,
the gradient is that of the shared matrix, W + E, with W and E the sums of the two roles:

    || W + E ||^2 = || W ||^2 + || E ||^2 + 2 sum_s W[x_s] . g_s

Only attention costs more than linear time in the number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from winnow import ranks
from winnow.errors import unsupported
from winnow.learner.head import Chunk, HeadGradient, head_gradient, logit_gradients
from winnow.learner.micro_batches import cut, deal_parts, missing_passes, shortest
from winnow.learner.model_input import AnySequence, predictors, side_by_side, targets, trained
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sequence_model import SequenceModel
from winnow.learner.sharding import is_sharded, reshard
from winnow.models.adapter import plain_model
from winnow.records import FloatArray, Matrix


def gradient_norms(
    model: SequenceModel, sequences: Sequence[AnySequence], *, of: Matrix, temperature: float, chunk: int
) -> FloatArray:
    """[n] norms || d log P(rollout | prompt) / d matrix ||_2 under the model's present weights, in the order of
    `sequences`.

    Each rank computes its share, and every rank gets all norms. All ranks of a sharded model make equally many passes.
    No parameter's `grad` changes. At most four [chunk, V] tensors exist at once, and never [T, V] for T > `chunk`.
    Raises ConfigError if the embedding does more than look up a row.
    """

    squared = embedding_norms if of == "embedding" else output_head_norms

    def compute(part: Sequence[AnySequence]) -> list[float]:
        rollouts = Rollouts(part, model, temperature, chunk)
        # Rounding can make the square of a tiny norm negative.
        return squared(model.module, rollouts).clamp(min=0).sqrt().tolist()

    every = deal_parts(sequences, partial(cut, tokens=model.tokens_per_micro_batch))
    local = dict[int, float]()
    for part in every[ranks.rank()]:
        local.update(zip(part, compute([sequences[i] for i in part]), strict=True))
    if model.sharded:
        for _ in range(missing_passes(every)):
            compute([shortest(sequences)])
    reshard(model.module)
    norms = np.zeros(len(sequences), dtype=np.float64)
    for of_rank in ranks.gather_from_all(local, what="norms"):
        norms[list(of_rank)] = list(of_rank.values())
    return norms


class Rollouts:
    """R rollouts as model input, and the T completion tokens whose log-probs log P sums."""

    def __init__(self, sequences: Sequence[AnySequence], model: SequenceModel, temperature: float, chunk: int) -> None:
        self.given = side_by_side(sequences, model.pad_token, model.device)
        self.targets = torch.from_numpy(targets(sequences)).to(model.device)  # [T] rollout after rollout
        self.mask = torch.from_numpy(trained(sequences)).to(model.device)  # [T] False where log P omits a token
        self.lengths = [len(sequence.rollout.tokens) for sequence in sequences]  # [R] completion tokens
        self.temperature, self.chunk = temperature, chunk

    def split(self, hidden: Tensor) -> Iterator[list[Chunk]]:
        """Chunks of every rollout, from the hidden states [T, H] that predict the completion tokens."""
        each = (torch.split(whole, self.lengths) for whole in (hidden, self.targets, self.mask))
        for rollout in zip(*each, strict=True):
            yield [Chunk(*chunk) for chunk in zip(*(torch.split(part, self.chunk) for part in rollout), strict=True)]

    def head_gradient(self, head: nn.Module, row: int) -> HeadGradient:
        """Accumulator for the head gradient of one rollout."""
        return head_gradient(
            head, self.given.tokens[row], self.lengths[row], chunk=self.chunk, temperature=self.temperature
        )


@torch.no_grad()
def output_head_norms(module: PolicyModule, rollouts: Rollouts) -> Tensor:
    """[R] squared norms with respect to the output head's weight alone, tied or not. Runs no backward pass."""

    def compute(backbone: nn.Module, head: nn.Module) -> Tensor:
        hidden = predictors(
            backbone(input_ids=rollouts.given.tokens, use_cache=False).last_hidden_state, rollouts.given
        )
        return torch.stack([squared(head, row, chunks) for row, chunks in enumerate(rollouts.split(hidden))])

    def squared(head: nn.Module, row: int, chunks: Sequence[Chunk]) -> Tensor:
        gradient = rollouts.head_gradient(head, row)
        for chunk in chunks:
            gradient.add(chunk, logit_gradients(head(chunk.hidden), chunk, rollouts.temperature))
        return gradient.result()[0]

    squares: Tensor = module(compute)
    return squares


def embedding_norms(module: PolicyModule, rollouts: Rollouts) -> Tensor:
    """[R] squared norms with respect to the input embedding, with both roles of the matrix where the head is tied to
    it. Raises ConfigError if the embedding does more than look up a row.
    """
    inputs, *roles = embedding_gradients(module, rollouts)
    squares = torch.stack([_input_squared(*row) for row in zip(rollouts.given.tokens, inputs, strict=True)])
    if not roles:
        return squares
    head_squares, rows = roles
    return squares + 2 * (rows * inputs.to(rows)).sum(dim=(1, 2), dtype=torch.float64) + head_squares


@torch.enable_grad()
def embedding_gradients(module: PolicyModule, rollouts: Rollouts) -> tuple[Tensor, ...]:
    """[R, S, H] d log P / d embedded tokens. Where the head is tied, also the head's part of the squares and rows
    (`_through_head`).

    One backward pass serves all rollouts: each rollout has its own embedded tokens, whose gradient is its own. No
    parameter gets a gradient.
    """
    tied = module.parts.head.weight is _table(module.parts.backbone).weight

    def compute(backbone: nn.Module, head: nn.Module) -> tuple[Tensor, ...]:
        embedded = _table(backbone)(rollouts.given.tokens).detach().requires_grad_()
        hidden = predictors(backbone(inputs_embeds=embedded, use_cache=False).last_hidden_state, rollouts.given)
        return embedded, hidden, *_through_head(head, hidden.detach(), rollouts, tied=tied)

    with _frozen(module):
        outputs: tuple[Tensor, ...] = module(compute)
        embedded, hidden, above, *roles = outputs
        (inputs,) = torch.autograd.grad(hidden, embedded, above)
    return inputs, *roles


def _through_head(head: nn.Module, hidden: Tensor, rollouts: Rollouts, *, tied: bool) -> Iterator[Tensor]:
    """d log P / d hidden [T, H]. If `tied`, also [R] the head's part of the squares, and [R, S, H] the rows of the
    head's gradient for the embedded tokens.
    """
    above, results = list[Tensor](), list[tuple[Tensor, Tensor]]()
    for row, chunks in enumerate(rollouts.split(hidden)):
        role = rollouts.head_gradient(head, row) if tied else None
        for chunk in chunks:
            below = chunk.hidden.detach().requires_grad_()
            logits = head(below)
            gradients = logit_gradients(logits.detach(), chunk, rollouts.temperature)
            above += torch.autograd.grad(logits, below, gradients.to(logits.dtype))
            del logits  # [chunk, V]: free it before `role.add` computes another chunk's logits
            if role is not None:
                role.add(chunk, gradients)
            del gradients  # [chunk, V]: as above, for the next chunk
        results += [] if role is None else [role.result()]
    yield torch.cat(above)
    yield from map(torch.stack, zip(*results, strict=True))


def _input_squared(tokens: Tensor, inputs: Tensor) -> Tensor:
    """|| sum_s onehot(x_s) g_s' ||^2. Padding has no gradient, so it adds nothing."""
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    distinct, places = torch.unique(tokens, return_inverse=True)
    return torch.zeros_like(inputs[: len(distinct)]).index_add_(0, places, inputs).square().sum(dtype=torch.float64)


def check_embedding(model: nn.Module) -> None:
    """Raise ConfigError if a model's embedding does more than look up rows. Its shapes are enough."""
    _table(plain_model(model).get_decoder())


def _table(backbone: nn.Module) -> nn.Embedding:
    """The input embedding, where it returns rows of its weight and does nothing else."""
    embedding = backbone.get_input_embeddings()  # type: ignore[operator]
    if type(embedding) is not nn.Embedding:
        raise unsupported(
            f"the gradient norm of the embedding cannot be computed: {type(embedding).__name__} does more than look up "
            f"rows (it scales them, or has an adapter)",
            remedy="set probe.gradient_norm to 'output_head'",
            key="probe.gradient_norm",
        )
    return embedding


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Parameters require no gradient in this context, so that forward keeps no activations for them.

    Sharded parameters stay as they are: FSDP2 fixes `requires_grad` of a gathered parameter at the first gathering.
    """
    parameters = [p for p in module.parameters() if p.requires_grad and not is_sharded(p)]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
