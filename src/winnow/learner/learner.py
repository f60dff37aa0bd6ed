"""The learner: policy, optimizer and reference behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from winnow import ranks
from winnow.config import Config
from winnow.learner.gradient_norms import Matrix
from winnow.learner.gradient_sums import sum_over_ranks
from winnow.learner.model_input import AnySequence
from winnow.learner.old_logprobs import compute_logprobs
from winnow.learner.optimizer import Optimizer, UpdateResult
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PolicyModule
from winnow.learner.reference import FrozenAdapter, FrozenCopy, Reference
from winnow.learner.shares_to_writer import SharesToWriter
from winnow.models.device import beside, on_host
from winnow.models.load import Loaded, load, padding
from winnow.models.save import write_model_folder
from winnow.records import Batch, FloatArray, MicroBatch, PolicyOutput

PARAMETER = "parameter/"  # what the names of parameters begin with, among those of `Learner.shares`
REFERENCE = "reference/"  # what the names of the reference's tensors begin with, among those of `Learner.state`


class Learner:
    """What a training step asks of the model that it trains.

    An update is `micro_batches`, `forward` and `backward` for each of them, and `step`; or `skip`, where the batch is
    empty.
    """

    def __init__(self, policy: Policy, optimizer: Optimizer, reference: Reference | None = None) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._reference = reference
        self._to_save = policy.model  # what a checkpoint's model folder is written from

    def shard(self, masters: Mapping[str, Tensor], make_optimizer: Callable[[Policy], Optimizer]) -> None:
        """Leave every rank its share of policy, optimizer and reference (sharding.py), before the first update.

        `masters` are those that the policy's weights were rounded from, or none. The writer keeps the policy as it is
        now, on the host, to write checkpoints from; before each the trained parameters are copied into it.
        """
        if ranks.is_writer():
            self._to_save = on_host(self._policy.model)
        self._policy.shard(masters)
        if self._reference is not None:
            self._reference.shard()
        self._optimizer = make_optimizer(self._policy)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return self._policy.parameters

    @property
    def taken(self) -> int:
        """Updates of this process, begun ones included: as long as it stands, so do parameters and moments."""
        return self._optimizer.taken

    @property
    def not_finite(self) -> int:
        """The last updates in a row that a gradient which is not finite made it skip."""
        return self._optimizer.not_finite

    def compute_logprobs(self, batches: Sequence[Batch], needs: Collection[str]) -> list[Batch]:
        """The batches with old and reference log-probs, as far as in `needs`; see old_logprobs.py."""
        return compute_logprobs(self._policy, batches, needs, reference=self._reference)

    def micro_batches(self, batch: Batch) -> Iterator[MicroBatch]:
        """This rank's share of a batch in pieces that fit in memory, made one at a time, where and in the precision in
        which the policy computes.
        """
        return self._policy.micro_batches(batch.sequences)

    def forward(self, mb: MicroBatch, needs: Collection[str] = ()) -> PolicyOutput:
        """Log-probs [T] of the completion tokens given what stands before them; the entropy [T] if in `needs`."""
        return self._policy.forward(mb, needs)

    def backward(self, scalar: Tensor) -> None:
        """Add the scalar's gradient to that of the batch's earlier micro-batches."""
        scalar.backward()  # type: ignore[no-untyped-call]

    def step(self) -> UpdateResult:
        """One update from the gradients of all ranks, which are cleared. A gradient that is not finite changes nothing
        else.
        """
        if not self._policy.sharded:  # else every backward has summed them
            sum_over_ranks(self._optimizer.sums())
        return self._optimizer.step()

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""
        return self._optimizer.skip()

    def weights(self) -> Mapping[str, Tensor]:
        """What an engine must copy after an update: the trained parameters, by name, not copied yet. Of a sharded
        policy each is gathered when it is read: see `GatheredWeights`.
        """
        return self._policy.weights()

    def gradient_norms(self, sequences: Sequence[AnySequence], *, of: Matrix) -> FloatArray:
        """[n] of || d log P(rollout | prompt) / d matrix ||_2 under the present weights; see gradient_norms.py."""
        return self._policy.gradient_norms(sequences, of=of)

    def reset(self, what: Literal["none", "optimizer", "reference", "both"]) -> None:
        """Forget the optimizer's moments, measure distances from the policy as it is now, or both."""
        if what in ("optimizer", "both"):
            self._optimizer.reset()
        if what in ("reference", "both") and self._reference is not None:
            self._reference.reset()

    def state(self) -> dict[str, Tensor]:
        """Moments and reference by name, for safetensors. The tensors are the live ones, or this rank's shares of them:
        write them before the next `step` or `reset`.
        """
        reference = {} if self._reference is None else self._reference.state()
        return {**self._optimizer.state(), **{f"{REFERENCE}{name}": value for name, value in reference.items()}}

    def counts(self) -> dict[str, Any]:
        """What else a resume needs, for JSON."""
        return self._optimizer.counts()

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue where `state` and `counts` were taken. Raises RunFolderError when they are of other parameters."""
        reference = {name: value for name, value in tensors.items() if name.startswith(REFERENCE)}
        moments = {name: value for name, value in tensors.items() if name not in reference}
        self._optimizer.load_state(moments, counts)
        if self._reference is not None:
            self._reference.load_state({name.removeprefix(REFERENCE): value for name, value in reference.items()})

    def shares(self) -> SharesToWriter:
        """What a checkpoint of the policy as it is now reads, `state` and the parameters; see shares_to_writer.py."""
        parameters = {f"{PARAMETER}{name}": parameter for name, parameter in self.parameters.items()}
        return SharesToWriter({**parameters, **self.state()})

    def write_model(self, path: Path, files: Mapping[str, bytes], shares: SharesToWriter) -> dict[str, str]:
        """Write the policy as a folder that any Hugging Face program loads, and return the digests of its large files;
        see models/save.py.
        """
        if self._policy.sharded:
            self._gather_into(self._to_save, shares)
        return write_model_folder(self._to_save, files, path)

    @torch.no_grad()
    def _gather_into(self, model: nn.Module, shares: SharesToWriter) -> None:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(shares.read(f"{PARAMETER}{name}"))

    def beside(self) -> AbstractContextManager[object]:
        """A context in which another thread may read the tensors as they are now; see models/device.py."""
        return beside(self._policy.device)


def shard_learner(learner: Learner, config: Config, loaded: Loaded) -> None:
    """Give every rank its share; what `make_learner` was given has made the learner."""
    learner.shard(loaded.masters, lambda policy: _optimizer(config, policy, {}, saves_masters=bool(loaded.masters)))


def make_learner(config: Config, loaded: Loaded, *, needs: Collection[str], resumed: bool) -> Learner:
    """The learner of a loaded model; `resumed` says that its parameters are no longer those the run started with."""
    policy = Policy(
        loaded.model,
        temperature=config.rollout.temperature,
        pad_token=padding(loaded.tokenizer, config.model.pad_token),
        tokens_per_micro_batch=config.update.tokens_per_micro_batch,
        gradient_checkpointing=config.model.gradient_checkpointing,
        max_importance=config.update.max_importance,
        packed=config.update.layout == "packed",
    )
    reference = _reference(config, policy.module, resumed) if "ref_logprobs" in needs else None
    return Learner(policy, _optimizer(config, policy, loaded.masters), reference)


def _reference(config: Config, policy: PolicyModule, resumed: bool) -> Reference:
    """What a KL term measures from: the policy that the run started with."""
    if config.model.lora is not None:
        return FrozenAdapter(policy)
    start = load(config.model.path, dtype=config.model.dtype, device=str(policy.device)).model if resumed else None
    return FrozenCopy(policy, start)


def _optimizer(
    config: Config, policy: Policy, masters: Mapping[str, Tensor], *, saves_masters: bool = False
) -> Optimizer:
    """Steps of the configuration become updates, which is what a schedule counts."""
    per_step = config.update.epochs * config.update.updates_per_step
    options = config.optimizer.model_dump(exclude={"master_weights", "stochastic_rounding", "warmup_steps"})
    return Optimizer(
        policy.parameters,
        **options,
        warmup_updates=config.optimizer.warmup_steps * per_step,
        total_updates=config.steps * per_step,
        masters=masters,
        saves_masters=saves_masters,
        seed=(config.seed, "rounding"),
    )
