"""What runs inside vLLM's own workers: the backend of vLLM's weight transfer by which the policy's weights come in.

vLLM imports this module by name in each of its workers (`worker_extension_cls`), wherever they run, and importing it
registers the backend there. Nothing else of winnow should import it: vLLM is not always installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from winnow.engines.vllm.start import TRANSFER_BACKEND


@dataclass
class NoInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vllm is untyped here
    """There is nothing to agree on beforehand."""


@dataclass
class WeightUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A whole model, by the names of its checkpoints."""

    weights: Mapping[str, Tensor]
    version: int


class PassedTensors(WeightTransferEngine):  # type: ignore[misc]
    """Weight transfer by passing tensors: by reference within a process, by value into another."""

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
        self.model.load_weights(update_info.weights.items())

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


WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, PassedTensors)
