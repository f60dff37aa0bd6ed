"""The learner: policy, optimizer and reference model behind one interface.

Old and reference log-probs are computed in a pass over a step's batches before the step's first update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor, nn

from winnow import ranks
from winnow.config import Config, TrainedCritic
from winnow.learner.model_input import AnySequence
from winnow.learner.optimizer import VALUE_MODEL, Optimizer, Trained, check_saved, make_optimizer, set_parameters, split
from winnow.learner.policy import FrozenAdapter, FrozenCopy, Policy, Reference
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sequence_model import per_token
from winnow.learner.sharding import SharesToWriter
from winnow.models.device import keeps_masters, side_stream
from winnow.models.load import Loaded, load
from winnow.models.meta import shapes_of
from winnow.models.save import write_model_folder
from winnow.models.saved_weights import SavedWeights
from winnow.records import Batch, FloatArray, Matrix, MicroBatch, PerSequence, PolicyOutput, TrainingSequence

PARAMETER = "parameter/"  # prefix of parameter names in `Learner.shares`
REFERENCE = "reference/"  # prefix of the reference's tensor names in `Learner.state`


def compute_logprobs(
    policy: Policy, batches: Sequence[Batch], needs: Collection[str], *, reference: Reference | None = None
) -> list[Batch]:
    """The batches with `old_logprobs` and `ref_logprobs` filled, as far as in `needs`. Call it before the first update.

    A batch is passed in the micro-batches of its update: in 16 bits a token's log-prob depends on the tokens computed
    with it. The ratio of new to old starts at exactly 1 only where both passes compute alike. Each batch of an epoch is
    passed once. Equal batches of several epochs share a pass, as with one update per step.
    """
    ranks.check_same(
        "choice of rollouts",
        # Weights have 7 digits: machines may round the last ones differently
        lambda: str([[(sequence.key, f"{sequence.weight:.6e}") for sequence in batch.sequences] for batch in batches]),
        ranks.SAME_RESULTS,
    )
    filled = list(batches)
    if "old_logprobs" in needs:
        filled = _fill(policy, filled, "old_logprobs")
    if "ref_logprobs" in needs and reference is not None:
        with reference.active() as module:
            filled = _fill(policy, filled, "ref_logprobs", module)
    return filled


def logprobs(
    policy: Policy, batches: Sequence[Sequence[TrainingSequence]], module: PolicyModule | None = None
) -> list[PerSequence]:
    """Log-probs of each batch's sequences, under the policy or another module."""
    return per_token(
        policy, batches, lambda mb: policy.forward(mb, module=module).logprobs, module=module, what="logprobs"
    )


def _fill(policy: Policy, batches: Sequence[Batch], name: str, module: PolicyModule | None = None) -> list[Batch]:
    """Batches with log-probs under the policy or another module. Each distinct batch is passed once."""
    keys = [tuple(sequence.key for sequence in batch.sequences) for batch in batches]
    distinct = {key: batch.sequences for key, batch in zip(keys, batches, strict=True)}
    logprobs_of = dict(zip(distinct, logprobs(policy, list(distinct.values()), module), strict=True))
    return [
        dataclasses.replace(batch, sequences=tuple(s.fill(**{name: logprobs_of[key][s.key]}) for s in batch.sequences))
        for key, batch in zip(keys, batches, strict=True)
    ]


class Learner(Trained[Policy]):
    """The trained policy with the operations that a training step needs."""

    def __init__(self, policy: Policy, optimizer: Optimizer, reference: Reference | None = None) -> None:
        super().__init__(policy, optimizer)
        self.reference = reference
        self._shapes: nn.Module | None = None  # of a sharded policy's model, on the meta device

    def shard(
        self, config: Config, saved: SavedWeights | None, *, masters: bool, critic: TrainedCritic | None = None
    ) -> None:
        self._shapes = shapes_of(self.model.model)
        if self.reference is not None:
            self.reference.shard()
        super().shard(config, saved, masters=masters, critic=critic)

    def compute_logprobs(self, batches: Sequence[Batch], needs: Collection[str]) -> list[Batch]:
        """The batches with the old and reference log-probs that `needs` contains: see `compute_logprobs`."""
        return compute_logprobs(self.model, batches, needs, reference=self.reference)

    def logprobs(self, sequences: Sequence[TrainingSequence]) -> PerSequence:
        """Log-probs [L] of each sequence by its key, under the present weights."""
        (of_policy,) = logprobs(self.model, [sequences])
        return of_policy

    def reference_logprobs(self, sequences: Sequence[TrainingSequence]) -> PerSequence:
        """Log-probs [L] of each sequence by its key, under the reference model."""
        assert self.reference is not None, "make_learner was called with reference=True"
        with self.reference.active() as module:
            (reference,) = logprobs(self.model, [sequences], module)
        return reference

    def forward(self, mb: MicroBatch, needs: Collection[str] = ()) -> PolicyOutput:
        """Log-probs [T] of the completion tokens; entropy [T] and values [T] if in `needs`."""
        return self.model.forward(mb, needs)

    def weights(self) -> Mapping[str, Tensor]:
        """See `Policy`; a sharded one gathers each parameter when it is read (`GatheredWeights`)."""
        return self.model.weights()

    def gradient_norms(self, sequences: Sequence[AnySequence], *, of: Matrix) -> FloatArray:
        return self.model.gradient_norms(sequences, of=of)

    def reset(self, what: Literal["none", "optimizer", "reference", "both"]) -> None:
        """Discard the optimizer's moments, make the present policy the reference, or both."""
        if what in ("optimizer", "both"):
            self._optimizer.reset()
        if what in ("reference", "both") and self.reference is not None:
            self.reference.reset()

    def state(self) -> dict[str, Tensor]:
        """Moments, reference model and value head by name, for safetensors.

        The tensors are not copied, and may be this rank's shares: write them before the next `step` or `reset`.
        """
        reference = {} if self.reference is None else self.reference.state()
        head = {f"{VALUE_MODEL}{name}": p.detach() for name, p in self.model.value_head.items()}
        return {**self._optimizer.state(), **{f"{REFERENCE}{name}": value for name, value in reference.items()}, **head}

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue from `state` and `counts`. Raises RunFolderError if they belong to other parameters."""
        head, rest = split(tensors, VALUE_MODEL)
        reference, moments = split(rest, REFERENCE)
        check_saved(head, self.model.value_head)
        set_parameters(self.model.value_head, head)
        self._optimizer.load_state(moments, counts)
        if self.reference is not None:
            self.reference.load_state(reference)

    def shares(self, more: Mapping[str, Tensor] = MappingProxyType({})) -> SharesToWriter:
        """Tensors that a checkpoint of the present policy reads: parameters, `state`, and `more`."""
        read = dict(self.model.model.named_parameters()) if self.model.sharded else {}
        parameters = {f"{PARAMETER}{name}": parameter for name, parameter in read.items()}
        return SharesToWriter({**parameters, **self.state(), **more})

    def write_model(self, path: Path, files: Mapping[str, bytes], read: Callable[[str], Tensor]) -> dict[str, str]:
        """Write the policy as a Hugging Face model folder, and return the digests of its large files; see
        models/save.py. `read` is that of `shares`.
        """
        if self._shapes is None:
            return write_model_folder(self.model.model, files, path)
        return write_model_folder(self._shapes, files, path, lambda name: read(f"{PARAMETER}{name}"))

    def on_side_stream(self) -> AbstractContextManager[object]:
        """A context in which another thread may read the tensors as they are now; see models/device.py."""
        return side_stream(self.model.device)


def shard_learner(learner: Learner, config: Config, loaded: Loaded) -> None:
    """Divide a learner among the ranks; `config` and `loaded` are those that `make_learner` was called with. Each rank
    reads its share of the weights (`Loaded.saved`).
    """
    learner.shard(config, loaded.saved, masters=keeps_masters(config))


def make_learner(
    config: Config, loaded: Loaded, *, needs: Collection[str], resumed: bool, reference: bool = False
) -> Learner:
    """The learner of a loaded model. `resumed` is true where its parameters are no longer those the run started with.

    It has a reference model where "ref_logprobs" is in `needs` or `reference` is true.
    """
    policy = Policy(
        loaded.model,
        temperature=config.rollout.temperature,
        pad_token=loaded.tokenizer.eos_token_id,
        tokens_per_micro_batch=config.update.tokens_per_micro_batch,
        gradient_checkpointing=config.model.gradient_checkpointing,
        packed=config.update.layout == "packed",
        value_head=None if config.critic is None else config.critic.policy_head,
    )
    frozen = _reference(config, policy.module, loaded, resumed) if reference or "ref_logprobs" in needs else None
    return Learner(policy, make_optimizer(config, policy.parameters, loaded.masters), frozen)


def _reference(config: Config, policy: PolicyModule, loaded: Loaded, resumed: bool) -> Reference:
    """The reference model of a KL term: the policy that the run started with."""
    if config.model.lora is not None:
        return FrozenAdapter(policy)
    later = loaded.saved is not None
    if not (resumed or later):
        return FrozenCopy(policy)
    device = policy.device if loaded.saved is None else loaded.saved.device
    start = load(config.model.path, dtype=config.model.dtype, device=str(device), later=later)
    return FrozenCopy(policy, start.model, start.saved)
