"""Refused settings of bfloat16 training.

Weights of 8 significant bits lose most small updates, unless float32 copies or stochastic rounding keep these.
"""

from __future__ import annotations

from winnow.config import OptimizerSection
from winnow.errors import ConfigError


def check_rounding(optimizer: OptimizerSection, key: str, *, dtype: str, adapter: bool) -> None:
    """Raise ConfigError where updates would be rounded away, or where a key about rounding has no effect.

    `key` is the optimizer's table. `adapter`: an adapter is trained, whose weights are float32.
    """
    rounds = dtype == "bfloat16" and not adapter
    if optimizer.stochastic_rounding and not rounds:
        why = "a lora, kept in float32," if adapter else f"model.dtype = {dtype!r}"
        raise ConfigError(
            f"{key}.stochastic_rounding has no effect with {why} whose updates are not rounded",
            remedy="remove it",
            key=f"{key}.stochastic_rounding",
            code="config.no_effect",
        )
    if rounds and optimizer.stochastic_rounding and optimizer.master_weights:
        raise ConfigError(
            f"{key}.stochastic_rounding is for bfloat16 weights without a float32 copy",
            remedy=f"set {key}.master_weights = false too, or remove both",
            key=f"{key}.stochastic_rounding",
            code="config.combination",
        )
    if rounds and not (optimizer.stochastic_rounding or optimizer.master_weights):
        raise ConfigError(
            f"{key}.master_weights = false under model.dtype = 'bfloat16' would round most updates away (nearly all of "
            f"50 updates at a learning rate of 1e-6)",
            remedy=f"set {key}.stochastic_rounding = true, or remove {key}.master_weights",
            key=f"{key}.master_weights",
            code="config.combination",
        )
