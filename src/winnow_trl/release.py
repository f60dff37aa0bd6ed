"""Whether the installed TRL has what `PODSTrainer` builds on. It is decided by feature and not by version."""

from __future__ import annotations

import inspect
from typing import Any

from winnow.errors import ConfigError
from winnow.installed import is_installed, version_of

TESTED = "1.16.0"

METHODS = {  # of GRPOTrainer, with the parameters by which they are called here
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
}
ATTRIBUTES = (  # of an instance
    "accelerator", "eos_token_ids", "multi_objective_aggregation", "num_generations", "reward_func_names",
    "reward_weights", "scale_rewards", "state", "_logs", "_metrics",
)  # fmt: skip
LOGS = ("prompt", "completion", "rewards", "advantages", "extra")  # of `_logs`


def check_installed() -> None:
    """Raise ConfigError where TRL is not installed."""
    if not is_installed("trl"):
        raise ConfigError(
            "winnow_trl needs the package 'trl', which is not installed here",
            remedy="pip install 'winnow-rl[trl]'",
            code="config.not_installed",
        )


def check_class(trainer: type[Any]) -> None:
    """Raise ConfigError where TRL's GRPOTrainer lacks a method, or a method has other parameters."""
    for name, parameters in METHODS.items():
        method = getattr(trainer, name, None)
        if method is None:
            raise _unsuitable(f"GRPOTrainer has no method {name!r}")
        found = tuple(inspect.signature(method).parameters)
        if found != parameters:
            raise _unsuitable(f"GRPOTrainer.{name} has the parameters {', '.join(found)}")


def check_instance(trainer: Any) -> None:
    """Raise ConfigError where a GRPOTrainer lacks an attribute, or a list of its log of completions."""
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise _unsuitable(f"a GRPOTrainer has no attribute {name!r}")
    for name in LOGS:
        if name not in trainer._logs:
            raise _unsuitable(f"the log of completions of a GRPOTrainer has no {name!r}")


def _unsuitable(problem: str) -> ConfigError:
    return ConfigError(
        f"this release of TRL does not fit ({version_of('trl')}): {problem}",
        remedy=f"install the release with which winnow_trl is tested: trl=={TESTED}",
        code="config.not_installed",
    )
