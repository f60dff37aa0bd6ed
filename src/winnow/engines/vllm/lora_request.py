"""A LoRA adapter that vLLM applies beside the base weights, instead of weights it is merged into."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class ServedAdapter:
    """The one adapter that a vLLM engine serves. vLLM reads it from a folder, which is removed once it is read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` is what peft writes into adapter_config.json."""
        self.request: Any = None  # to go with every prompt
        self._config = dict(config)

    def load(self, llm: Any, weights: Mapping[str, Tensor], names: Sequence[str], version: int) -> None:
        """Replace it by those of the weights that have these names; vLLM's workers read them and write the file."""
        from vllm.lora.request import LoRARequest

        if self.request is not None:
            llm.llm_engine.remove_lora(self.request.lora_int_id)
        with TemporaryDirectory(prefix="winnow-adapter-") as folder:
            llm.collective_rpc("write_adapter", args=(weights, names, f"{folder}/adapter_model.safetensors"))
            Path(folder, "adapter_config.json").write_text(json.dumps(self._config), encoding="utf-8")
            self.request = LoRARequest(f"version-{version}", _number(version), folder)
            llm.llm_engine.add_lora(self.request)

    def is_of(self, llm: Any, version: int) -> bool:
        """Whether vLLM's workers hold this version, and no other."""
        return set(llm.llm_engine.list_loras()) == {_number(version)}


def _number(version: int) -> int:
    """vLLM counts adapters from 1."""
    return version + 1
