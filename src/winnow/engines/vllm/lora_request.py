"""A LoRA adapter that vLLM applies beside the base weights, instead of merging it into them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class ServedAdapter:
    """The only adapter of a vLLM engine. vLLM reads it from a temporary folder, which is then removed."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` is the content of peft's adapter_config.json."""
        self.request: Any = None  # passed with every prompt
        self._config = dict(config)

    def load(self, llm: Any, weights: Mapping[str, Tensor], names: Sequence[str], version: int) -> None:
        """Replace the adapter by the weights of these names, which vLLM's workers read and write to the file."""
        from vllm.lora.request import LoRARequest

        if self.request is not None:
            llm.llm_engine.remove_lora(self.request.lora_int_id)
        with TemporaryDirectory(prefix="winnow-adapter-") as folder:
            llm.collective_rpc("write_adapter", args=(weights, names, f"{folder}/adapter_model.safetensors"))
            Path(folder, "adapter_config.json").write_text(json.dumps(self._config), encoding="utf-8")
            self.request = LoRARequest(f"version-{version}", _number(version), folder)
            llm.llm_engine.add_lora(self.request)

    def is_of(self, llm: Any, version: int) -> bool:
        """Whether vLLM's workers have this version and no other."""
        return set(llm.llm_engine.list_loras()) == {_number(version)}


def _number(version: int) -> int:
    """The id of a version's adapter; vLLM's ids start at 1, and versions at 0."""
    return version + 1
