"""The policy: the model that is trained, as the distribution that rollouts are sampled from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from winnow.learner.gradient_norms import Matrix, gradient_norms
from winnow.learner.logprobs import token_logprobs
from winnow.learner.micro_batches import micro_batches
from winnow.learner.model_input import AnySequence, Layout, hidden_states, targets
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sharding import GatheredWeights, shard
from winnow.memory import footprint
from winnow.models.backbone import reads_in_pieces
from winnow.records import FloatArray, MicroBatch, PolicyOutput, TrainingSequence


class Policy:
    """A transformers model, with an adapter or without, that turns sequences into log-probs and gradient norms.

    Logits are divided by `temperature`, which is part of the distribution. `pad_token` only fills space: what is
    padding is decided by position, so it may be a token that also ends rollouts. Logits exist for `chunk_tokens` tokens
    at a time, by default as many as `footprint.chunk_tokens` says.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        pad_token: int,
        tokens_per_micro_batch: int,
        chunk_tokens: int | None = None,
        gradient_checkpointing: footprint.Checkpointing = "none",
        max_importance: float = 0.0,
        packed: bool = False,
    ) -> None:
        self.module = PolicyModule(model, gradient_checkpointing=gradient_checkpointing, packed=packed)
        self._temperature = temperature
        self._pad_token = pad_token
        self._tokens_per_micro_batch = tokens_per_micro_batch
        self._chunk_tokens = footprint.chunk_tokens(model) if chunk_tokens is None else chunk_tokens
        self._max_importance = max_importance
        self.sharded = False
        self._computes_in: torch.dtype | None = None  # where a rank's shares are kept in more
        # transformers normalises in float32 whatever the weights are in: a float64 run, which is there to compare to
        # the last bit, reads sequences in one way only. Checkpointed layers keep no keys and values.
        shares = gradient_checkpointing == "none" and reads_in_pieces(model) and self.dtype != torch.float64
        self.layout: Layout = "packed" if packed else "shared" if shares else "padded"

    @property
    def model(self) -> nn.Module:
        """The transformers model, or peft's wrapper of it."""
        return self.module.model

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """Of log-probs: float64 for a float64 model, else float32, whatever the weights are kept in."""
        return torch.promote_types(next(self.model.parameters()).dtype, torch.float32)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def shard(self, masters: Mapping[str, Tensor]) -> None:
        """Leave every rank its share of the parameters, or of the `masters` that they were rounded from."""
        self._computes_in = next(iter(self.parameters.values())).dtype
        shard(self.module, masters)
        self.sharded = True

    def weights(self) -> Mapping[str, Tensor]:
        """What an engine must copy after an update: the trained parameters, by name, not copied yet."""
        named = {name: p.detach() for name, p in self.parameters.items()}
        return GatheredWeights(named, self._computes_in) if self.sharded else named

    def micro_batches(self, sequences: Sequence[TrainingSequence]) -> Iterator[MicroBatch]:
        """This rank's share of the sequences in pieces that fit in memory, made one at a time, where and in the
        precision in which the policy computes.
        """
        return micro_batches(
            sequences,
            tokens=self._tokens_per_micro_batch,
            layout=self.layout,
            device=self.device,
            dtype=self.dtype,
            max_importance=self._max_importance,
            even=self.sharded,
        )

    def forward(
        self, mb: MicroBatch, needs: Collection[str] = (), *, module: PolicyModule | None = None
    ) -> PolicyOutput:
        """Log-probs [T] of the completion tokens given what stands before them; the entropy [T] if in `needs`.

        With `module`, they are those of another module: of a reference.
        """
        completions = torch.from_numpy(targets(mb.sequences)).to(self.device)

        def compute(backbone: nn.Module, head: nn.Module) -> tuple[Tensor, Tensor | None]:
            return token_logprobs(
                hidden_states(backbone, mb.sequences, pad_token=self._pad_token, layout=mb.layout or self.layout),
                head,
                completions,
                temperature=self._temperature,
                chunk=self._chunk_tokens,
                with_entropy="entropy" in needs,
            )

        logprobs, entropy = (module or self.module)(compute)
        return PolicyOutput(logprobs=logprobs, entropy=entropy)

    def gradient_norms(self, sequences: Sequence[AnySequence], *, of: Matrix) -> FloatArray:
        """[n] of || d log P(rollout | prompt) / d matrix ||_2 under the present weights; see gradient_norms.py."""
        return gradient_norms(
            self.module,
            sequences,
            of=of,
            pad_token=self._pad_token,
            temperature=self._temperature,
            tokens_per_micro_batch=self._tokens_per_micro_batch,
            chunk=self._chunk_tokens,
            even=self.sharded,
        )
