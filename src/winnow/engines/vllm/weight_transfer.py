"""What runs inside vLLM's own workers: the backend of vLLM's weight transfer by which the policy's weights come in. A
worker in the trainer's process reads the policy's own; any other receives them over a process group.

vLLM imports this module by name in each of its workers (`worker_extension_cls`), wherever they run, and importing it
registers the backend there. Nothing else of winnow should import it: vLLM is not always installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from winnow.engines.process.weight_group import SentWeights
from winnow.engines.vllm.start import TRANSFER_BACKEND
from winnow.memory.usage import used_on_devices


@dataclass
class NoInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vllm is untyped here
    """There is nothing to agree on beforehand."""


@dataclass
class WeightUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A whole model, by the names of its checkpoints."""

    weights: Mapping[str, Tensor]
    names: Sequence[str]  # of those to copy, in the order in which they are to be read
    version: int


class OneByOne(WeightTransferEngine):  # type: ignore[misc]
    """Weight transfer tensor by tensor: vLLM keeps those of a layer until they are all there."""

    init_info_cls = NoInitInfo
    update_info_cls = WeightUpdate
    version: int | None = None  # of the weights that were copied last; None while they are being copied

    def init_transfer_engine(self, init_info: NoInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Until `finish_weight_update` the model must not be sampled from."""
        self.version = None
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Copy a whole model into this worker's share of it."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: WeightUpdate) -> None:
        """See `update_weights`."""
        self._arriving = update_info.version
        weights = for_worker(update_info.weights, self.parallel_config.rank)
        with finished(weights):
            self.model.load_weights((name, weights[name]) for name in update_info.names)

    def finish_weight_update(self) -> None:
        """Bring the weights into the form that the kernels need; then the model has the version that has arrived."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            _pack_heads(self.model)
        else:
            torch.accelerator.synchronize()
        self.version = self._arriving

    def shutdown(self) -> None:
        """Nothing is held."""


def _pack_heads(model: torch.nn.Module) -> None:
    """On a CPU vLLM computes with packed copies of the weights. It renews those of the modules that were loaded; a head
    tied to the embedding never is, and would go on with the weights that vLLM started with.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


class WorkerExtension:
    """What vLLM adds to its workers."""

    def weights_version(self) -> int | None:
        """Of the weights this worker has."""
        version: int | None = self.weight_transfer_engine.version  # type: ignore[attr-defined]
        return version

    def used_on_devices(self) -> dict[str, float]:
        """MiB of each CUDA device that this worker has touched."""
        return used_on_devices()

    def write_adapter(self, weights: Mapping[str, Tensor], names: Sequence[str], path: str) -> None:
        """Read an adapter's weights, and have the first worker of this engine write them down."""
        worker: int = self.parallel_config.rank  # type: ignore[attr-defined]
        own = for_worker(weights, worker)
        with finished(own):
            found = {name: own[name].cpu().contiguous() for name in names}
        if worker == 0 or not isinstance(weights, SentWeights):
            save_file(found, path)


def for_worker(weights: Mapping[str, Tensor], worker: int) -> Mapping[str, Tensor]:
    """The weights as the engine's worker of that number reads them."""
    return weights.by_worker(worker) if isinstance(weights, SentWeights) else weights


@contextmanager
def finished(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Where reading fails, the trainer is not left waiting for a reader of the rest."""
    try:
        yield
    except BaseException:
        if isinstance(weights, SentWeights):
            weights.finish()
        raise


WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, OneByOne)
