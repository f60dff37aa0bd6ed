"""The policy: the model that is trained, asked for log-probabilities and updated by gradients.

How rows become model input is private to it (layout.py); only the hidden states that predict a completion token ever
reach the output layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from winnow.errors import ConfigError
from winnow.learner.gradient_norms import NORMS, Fed, Matrix, prompt_gradient_norms
from winnow.learner.logprobs import token_logprobs
from winnow.learner.micro_batches import micro_batches
from winnow.learner.model_input import hidden_states, side_by_side, targets
from winnow.learner.reference import Reference
from winnow.memory.footprint import CHUNK_TOKENS
from winnow.models.backbone import Halves, causal_model, decoder_and_head, reads_in_pieces
from winnow.records import Batch, FloatArray, Group, MicroBatch, PolicyOutput, TrainingSequence


class Policy:
    """A transformers model (plain or with adapters) as the distribution that rollouts are sampled from.

    It stays in eval mode for good: with dropout the ratio of new to old probabilities would not start at 1. Logits are
    divided by `temperature`, which is part of that distribution. `pad_token` only fills space: what is padding is
    decided by position, so it may be a token that also ends rollouts.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        pad_token: int,
        tokens_per_micro_batch: int,
        chunk_tokens: int = CHUNK_TOKENS,
        gradient_checkpointing: bool = False,
        max_importance: float = 0.0,
        reference: Reference | None = None,
    ) -> None:
        self.model = model.eval()
        self._halves = decoder_and_head(model)
        self._temperature = temperature
        self._pad_token = pad_token
        self._tokens_per_micro_batch = tokens_per_micro_batch
        self._chunk_tokens = chunk_tokens
        self._max_importance = max_importance
        self.reference = reference
        # transformers normalises in float32 whatever the weights are in: a float64 run, which is there to compare to
        # the last bit, reads rows in one way only. Checkpointed layers keep no keys and values.
        self._may_share = not gradient_checkpointing and reads_in_pieces(model) and self.dtype != torch.float64
        self._checkpointed = _checkpoint_layers(model) if gradient_checkpointing else []
        # An embedding with a padding index gives that token no gradient, wherever it stands: a mask by value.
        causal_model(model).get_input_embeddings().padding_idx = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of log-probs: float64 for a float64 model, else float32, whatever the weights are kept in."""
        return torch.promote_types(next(self.model.parameters()).dtype, torch.float32)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def weights(self) -> dict[str, Tensor]:
        """What an engine must copy after an update: the trained parameters, by name, not copied yet."""
        return {name: p.detach() for name, p in self.parameters.items()}

    def micro_batches(self, batch: Batch) -> list[MicroBatch]:
        """A batch in pieces that fit in memory, where and in the precision in which the policy computes."""
        return self._cut(batch.sequences)

    def forward(self, mb: MicroBatch, needs: Collection[str] = ()) -> PolicyOutput:
        """Log-probs [T] of the completion tokens given what stands before them; the entropy [T] if in `needs`."""
        with self._checkpointing():
            return self._read(mb.sequences, self._halves, with_entropy="entropy" in needs)

    def backward(self, scalar: Tensor) -> None:
        """Add the scalar's gradient to that of the batch's earlier micro-batches."""
        scalar.backward()  # type: ignore[no-untyped-call]

    def compute_logprobs(self, batches: Sequence[Batch], needs: Collection[str]) -> list[Batch]:
        """The batches with `old_logprobs` and `ref_logprobs` filled, as far as in `needs`. Call it before the first
        update.

        Each distinct rollout is passed once; the batches of later epochs share the answer.
        """
        rows = list({row.key: row for batch in batches for row in batch.sequences}.values())
        annotated = list(batches)
        if "old_logprobs" in needs:
            annotated = _fill(annotated, "old_logprobs", self._logprobs(rows, self._halves))
        if "ref_logprobs" in needs and self.reference is not None:
            with self.reference.active() as halves:
                annotated = _fill(annotated, "ref_logprobs", self._logprobs(rows, halves))
        return annotated

    def reset_reference(self) -> None:
        """Measure distances from the policy as it is now."""
        if self.reference is not None:
            self.reference.reset()

    def prompt_gradient_norms(self, groups: Sequence[Group], *, of: Matrix) -> FloatArray:
        """[G] G_i of GVM: the mean gradient norm over each prompt's correct rollouts; see gradient_norms.py."""
        return prompt_gradient_norms(self, groups, of=of)

    def gradient_norms(self, rows: Sequence[TrainingSequence], *, of: Matrix) -> FloatArray:
        """[rows] of || d log P(rollout | prompt) / d matrix ||_2 under the present weights; see gradient_norms.py.

        No parameter's own gradient changes. Raises ConfigError where the embedding is more than a table.
        """
        tokens = min(self._tokens_per_micro_batch, self._chunk_tokens)  # a micro-batch's whole [T, V] exists at once
        found: dict[tuple[int, int], float] = {}
        for mb in micro_batches(rows, tokens=tokens, device=self.device, dtype=self.dtype):
            parts = (part.to(self.device) for part in side_by_side(mb.sequences, self._pad_token))
            fed, predicting, completion = parts
            lengths = [len(row.rollout.tokens) for row in mb.sequences]
            inputs = Fed(tokens=fed, predicting=predicting, targets=completion, mask=mb.mask, lengths=lengths)
            with self._checkpointing():
                norms = NORMS[of](*self._halves, inputs, temperature=self._temperature)
            found.update(zip((row.key for row in mb.sequences), norms, strict=True))
        return np.array([found[row.key] for row in rows], dtype=np.float64)

    @torch.no_grad()
    def _logprobs(self, rows: Sequence[TrainingSequence], halves: Halves) -> dict[tuple[int, int], FloatArray]:
        """[L] per row, by its key, as a model has them now."""
        found = {}
        for mb in self._cut(rows):
            lengths = [len(row.rollout.tokens) for row in mb.sequences]
            pieces = torch.split(self._read(mb.sequences, halves).logprobs.cpu().double(), lengths)
            found.update({row.key: piece.numpy() for row, piece in zip(mb.sequences, pieces, strict=True)})
        return found

    def _read(self, rows: Sequence[TrainingSequence], halves: Halves, *, with_entropy: bool = False) -> PolicyOutput:
        """What a model says of the rows' completion tokens, row after row."""
        decoder, head = halves
        logprobs, entropy = token_logprobs(
            hidden_states(decoder, rows, pad_token=self._pad_token, may_share=self._may_share),
            head,
            torch.from_numpy(targets(rows)).to(self.device),
            temperature=self._temperature,
            chunk=self._chunk_tokens,
            with_entropy=with_entropy,
        )
        return PolicyOutput(logprobs=logprobs, entropy=entropy)

    def _cut(self, rows: Sequence[TrainingSequence]) -> list[MicroBatch]:
        return micro_batches(
            rows,
            tokens=self._tokens_per_micro_batch,
            device=self.device,
            dtype=self.dtype,
            max_importance=self._max_importance,
        )

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Layers recompute themselves in backward only while they believe to be training. An engine decodes on the
        same module and its cache would be switched off by that, so they believe it during this forward alone.
        """
        layers = self._checkpointed if torch.is_grad_enabled() else []
        for layer in layers:
            layer.training = True  # the layer alone: what is inside it stays in eval mode
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def _fill(batches: Sequence[Batch], name: str, found: Mapping[tuple[int, int], FloatArray]) -> list[Batch]:
    return [
        dataclasses.replace(batch, sequences=tuple(row.fill(**{name: found[row.key]}) for row in batch.sequences))
        for batch in batches
    ]


def _checkpoint_layers(model: nn.Module) -> list[nn.Module]:
    """Switch gradient checkpointing on, and return the layers that have it. Raises ConfigError where it cannot be."""
    causal = causal_model(model)
    if not causal.supports_gradient_checkpointing:
        raise ConfigError(f"model.gradient_checkpointing: {type(causal).__name__} does not support it; switch it off")
    # Newer versions of transformers call it activation checkpointing and warn about the older name.
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    layers = [module for module in model.modules() if hasattr(module, "_gradient_checkpointing_func")]
    for layer in layers:
        dropouts = [name for name, p in vars(layer).items() if "drop" in name and isinstance(p, float) and p > 0]
        if dropouts:
            raise ConfigError(
                f"model.gradient_checkpointing: {type(layer).__name__} would apply its {dropouts[0]}; "
                f"set it to 0 in the model's config.json, or switch checkpointing off"
            )
    return layers
