"""Low-rank adapters: train a small difference to frozen weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import peft
import torch
from safetensors.torch import load_file
from torch import nn

from winnow import seeds
from winnow.errors import ConfigError, RunFolderError

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def add_lora(
    model: nn.Module, *, rank: int, alpha: float, targets: Sequence[str] | Literal["all-linear"], seed: int
) -> nn.Module:
    """The model with weights W + (alpha / rank) B A on its `targets`, of which only A and B are trained (Hu et al.
    2021, arXiv 2106.09685, eq. 3). B starts at zero: at first nothing changes.

    The same `seed` gives the same A. Raises ConfigError when no module is called like a target.
    """
    modules = targets if isinstance(targets, str) else list(targets)
    adapter = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=modules, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft asks transformers by a name that newer versions warn about
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(seeds.derive(seed, "lora") % 2**63)
        try:
            adapted = peft.get_peft_model(model, adapter)
        except ValueError as error:
            raise ConfigError(f"model.lora.targets = {modules!r} does not fit this model: {error}") from error
    for config in adapted.peft_config.values():  # a set, which adapter_config.json would list in any order
        config.target_modules = sorted(config.target_modules)
    return cast(nn.Module, adapted)


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Set the adapter of a model from `add_lora` to the one saved in a folder, bit by bit.

    Raises RunFolderError when there is none in safetensors (peft would open a pickle instead), or it is not one of
    this model's shape.
    """
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise RunFolderError(f"there is no {ADAPTER_WEIGHTS} in {folder}; resume from another checkpoint")
    saved = load_file(folder / ADAPTER_WEIGHTS)
    try:
        result = peft.set_peft_model_state_dict(model, saved)
        other = [
            *result.unexpected_keys,
            *(name for name in result.missing_keys if ".lora_" in name and ".default." in name),
        ]
    except RuntimeError as error:  # torch's, where shapes differ
        other = [str(error).partition("\n")[2].strip()]
    if other or not saved:
        raise RunFolderError(
            f"the adapter in {folder} does not belong to this model ({other[:2]} ...); "
            f"resume with the model and the adapter settings that the run started with"
        )
