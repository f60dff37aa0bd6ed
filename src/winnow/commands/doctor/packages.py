"""Required and optional packages: their installed versions, and the purpose of each optional one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from winnow.installed import INSTEAD, Required, Version, requirements, unsuitable_version, version_of

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

NOT_TRIED = ("peft",)  # only adapters need it, and its import takes seconds


@dataclass(frozen=True)
class Optional:
    """A package, the extra that installs it, and its purpose."""

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
    """Packages by name.

    "needed" has the installed versions of the required packages, None for a missing one. "unfit" has the versions that
    winnow requires of them (">=2.11") where another is installed. "broken" has the error of each installed required
    package that cannot be imported, without trying `NOT_TRIED`. "optional" has version, extra and purpose of the other
    packages, and where another version is installed the required ones ("wants").
    """
    needed = {name: version(name) for name in NEEDED}
    unfit_versions = ((name, unsuitable_version(name, version, required)) for name in NEEDED)
    return {
        "needed": needed,
        "unfit": {name: versions[1] for name, versions in unfit_versions if versions is not None},
        "broken": dict(_broken([name for name, here in needed.items() if here and name not in NOT_TRIED], load)),
        "optional": {one.name: _optional(one, version, required) for one in OPTIONAL},
    }


def _optional(one: Optional, version: Version, required: Required) -> dict[str, str | None]:
    installed = version(one.name) or (version(INSTEAD[one.name]) if one.name in INSTEAD else None)
    versions = unsuitable_version(one.name, version, required)
    return {"version": installed, "extra": one.extra, "for": one.purpose, "wants": versions[1] if versions else None}


def _broken(names: Sequence[str], load: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            load(name)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"
