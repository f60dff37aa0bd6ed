"""The backend of vLLM's weight transfer that loads the policy's weights, inside vLLM's workers. A worker in the
trainer's process reads the policy's tensors; any other worker receives them over a process group.

vLLM imports this module by name in each of its workers (`worker_extension_cls`), and the import registers the backend
in that process. Other modules of winnow must not import it, because vLLM is optional.
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

from winnow.engines.process.broadcast import SentWeights
from winnow.engines.vllm.start import TRANSFER_BACKEND
from winnow.memory.usage import used_on_devices


@dataclass
class NoInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vllm is untyped here
    """Empty: the transfer needs no initialization."""


@dataclass
class WeightUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A whole model, by the names of its checkpoints."""

    weights: Mapping[str, Tensor]
    names: Sequence[str]  # of the weights to copy, in reading order
    version: int


class OneByOne(WeightTransferEngine):  # type: ignore[misc]
    """Weight transfer tensor by tensor: vLLM keeps the tensors of a layer until all have arrived."""

    init_info_cls = NoInitInfo
    update_info_cls = WeightUpdate
    version: int | None = None  # of the weights that were copied last; None while they are being copied

    def init_transfer_engine(self, init_info: NoInitInfo) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        """Start an update; the model must not sample until `finish_weight_update`."""
        self.version = None
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Copy a whole model into this worker's share of it."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: WeightUpdate) -> None:
        """See `update_weights`."""
        self._arriving = update_info.version
        weights = for_worker(update_info.weights, self.parallel_config.rank)
        with finish_on_error(weights):
            self.model.load_weights((name, weights[name]) for name in update_info.names)

    def finish_weight_update(self) -> None:
        """Convert the weights to the form that the kernels need, and record their version."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            # vLLM computes with packed copies of the weights, and renews those of loaded modules. A head tied to the
            # embedding is never loaded, and would keep vLLM's random weights.
            for module in self.model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
        else:
            torch.accelerator.synchronize()
        self.version = self._arriving

    def shutdown(self) -> None:
        """Do nothing."""


class WorkerExtension:
    """Methods that vLLM adds to its workers."""

    def weights_version(self) -> int | None:
        """The version of this worker's weights; None during an update."""
        version: int | None = self.weight_transfer_engine.version  # type: ignore[attr-defined]
        return version

    def used_on_devices(self) -> dict[str, float]:
        """MiB that all processes use on each CUDA device of this worker."""
        return used_on_devices()

    def seed_noise(self, seed: int) -> None:
        """Seed the generator that requests without a seed share. All workers of an engine draw the same noise."""
        torch.manual_seed(seed)

    def write_adapter(self, weights: Mapping[str, Tensor], names: Sequence[str], path: str) -> None:
        """Read an adapter's weights; the engine's first worker writes them to `path`."""
        worker: int = self.parallel_config.rank  # type: ignore[attr-defined]
        source = for_worker(weights, worker)
        with finish_on_error(source):
            read = {name: source[name].cpu().contiguous() for name in names}
        # In the trainer's process there is one worker, whose rank is that of the run
        if worker == 0 or not isinstance(weights, SentWeights):
            save_file(read, path)


def for_worker(weights: Mapping[str, Tensor], worker: int) -> Mapping[str, Tensor]:
    """The weights, as read by the engine's worker of this number."""
    return weights.by_worker(worker) if isinstance(weights, SentWeights) else weights


@contextmanager
def finish_on_error(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Receive the remaining weights if reading fails, so that the trainer does not wait for this reader."""
    try:
        yield
    except BaseException:
        if isinstance(weights, SentWeights):
            weights.finish()
        raise


WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, OneByOne)
