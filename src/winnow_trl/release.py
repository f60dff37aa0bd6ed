"""Whether the installed TRL has what `PODSTrainer` builds on. It is decided by feature and not by version."""

from __future__ import annotations

from typing import Any

from winnow.installed import Release

TRL = Release("trl", tested="1.16.0")
METHODS = {  # of GRPOTrainer, with the parameters by which they are called here
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
}
ATTRIBUTES = (  # of an instance
    "accelerator", "eos_token_ids", "multi_objective_aggregation", "num_generations", "reward_func_names",
    "reward_weights", "scale_rewards", "state", "_logs", "_metrics",
)  # fmt: skip
LOGS = ("prompt", "completion", "rewards", "advantages", "extra")  # of `_logs`


def check_class(trainer: type[Any]) -> None:
    """Raise ConfigError where TRL's GRPOTrainer lacks a method, or a method has other parameters."""
    for name, parameters in METHODS.items():
        TRL.check_method(trainer, name, parameters)


def check_instance(trainer: Any) -> None:
    """Raise ConfigError where a GRPOTrainer lacks an attribute, or a list of its log of completions."""
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise TRL.unsuitable(f"a GRPOTrainer has no attribute {name!r}")
    for name in LOGS:
        if name not in trainer._logs:
            raise TRL.unsuitable(f"the log of completions of a GRPOTrainer has no {name!r}")
