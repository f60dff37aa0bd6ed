"""Packages that winnow needs, and those that it can do without: which are here, and what each is for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from winnow.installed import INSTEAD, Required, Version, requirements, unfit, version_of

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

NOT_TRIED = ("peft",)  # adapters alone need it, and importing it takes seconds


@dataclass(frozen=True)
class Optional:
    """A package with the extra that brings it."""

    name: str
    extra: str
    purpose: str


OPTIONAL = (
    Optional("matplotlib", "plot", "draw runs (winnow plot)"),
    Optional("pandas", "pandas", "read runs as data frames (winnow.open_run)"),
    Optional("math-verify", "math", "compare answers by computer algebra (rewards with grader = 'math')"),
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


def of_packages(
    version: Version = version_of,
    load: Callable[[str], object] = importlib.import_module,
    required: Required = requirements,
) -> dict[str, Any]:
    """Versions by name, null for what is not here; of an optional package also its extra and what it is for, and where
    it is here in another version than winnow needs, those ("wants"). "unfit": the same of what is needed (">=2.11").
    "broken": what is needed and here, and cannot be imported, with the error.
    """
    needed = {name: version(name) for name in NEEDED}
    wanted = ((name, unfit(name, version, required)) for name in NEEDED)
    return {
        "needed": needed,
        "unfit": {name: found[1] for name, found in wanted if found is not None},
        "broken": dict(_broken([name for name, found in needed.items() if found and name not in NOT_TRIED], load)),
        "optional": {one.name: _optional(one, version, required) for one in OPTIONAL},
    }


def _optional(one: Optional, version: Version, required: Required) -> dict[str, str | None]:
    found = version(one.name) or (version(INSTEAD[one.name]) if one.name in INSTEAD else None)
    another = unfit(one.name, version, required)
    return {"version": found, "extra": one.extra, "for": one.purpose, "wants": another[1] if another else None}


def _broken(names: Sequence[str], load: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            load(name)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"
