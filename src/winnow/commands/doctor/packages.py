"""Packages that winnow needs, and those that it can do without: which are here, and what each is for."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NEEDED = (
    "numpy",
    "orjson",
    "peft",
    "pyarrow",
    "pydantic",
    "rich",
    "safetensors",
    "scipy",
    "torch",
    "transformers",
    "typer",
)


@dataclass(frozen=True)
class Optional:
    """A package with the extra that brings it."""

    name: str
    extra: str
    purpose: str


OPTIONAL = (
    Optional("matplotlib", "plot", "draw runs (winnow plot)"),
    Optional("pandas", "pandas", "read runs as data frames (winnow.open_run)"),
    Optional("math-verify", "math", "judge answers with the reward math_verify"),
    Optional("datasets", "hub", "read data sets of the hub"),
    Optional("huggingface-hub", "hub", "fetch models and data of the hub"),
    Optional("reasoning-gym", "gym", "train on the tasks of reasoning_gym"),
    Optional("bitsandbytes", "bnb", "use 8-bit moments and bases of 4 bits"),
    Optional("vllm", "vllm", "sample with vLLM"),
    Optional("ray", "ray", "run sweeps and ranks on a cluster"),
    Optional("wandb", "wandb", "track runs with Weights & Biases"),
    Optional("tensorboard", "tensorboard", "track runs with TensorBoard"),
    Optional("mlflow", "mlflow", "track runs with MLflow"),
    Optional("trackio", "trackio", "track runs with trackio"),
)


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def of_packages(version: Callable[[str], str | None] = version_of) -> dict[str, Any]:
    """Versions by name, null for what is not here; of an optional package also its extra and what it is for."""
    return {
        "needed": {name: version(name) for name in NEEDED},
        "optional": {
            one.name: {"version": version(one.name), "extra": one.extra, "for": one.purpose} for one in OPTIONAL
        },
    }
