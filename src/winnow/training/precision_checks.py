"""Checks of a configuration before a model is loaded: bits and rounding of weights and moments."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import Config, OptimizerSection, TrainedCritic, optimizers
from winnow.core.members import Members
from winnow.errors import conflict, no_effect


def check_rounding(members: Members) -> None:
    """Raise ConfigError where updates of the policy or of a value model would be rounded away."""
    config, critic = members.config, members.config.critic
    _check_rounding_of(config.optimizer, "optimizer", dtype=config.model.dtype, adapter=config.model.lora is not None)
    if isinstance(critic, TrainedCritic):
        adapter = critic.policy_head == "lent" or critic.lora is not None
        _check_rounding_of(critic.optimizer, "critic.optimizer", dtype=config.model.dtype, adapter=adapter)


def _check_rounding_of(optimizer: OptimizerSection, key: str, *, dtype: str, adapter: bool) -> None:
    """Raise ConfigError where updates would be rounded away, or where a key about rounding has no effect.

    `key` is the optimizer's table. `adapter`: an adapter is trained, whose weights are float32.
    """
    rounds = dtype == "bfloat16" and not adapter
    if optimizer.stochastic_rounding and not rounds:
        why = "a lora, kept in float32," if adapter else f"model.dtype = {dtype!r}"
        raise no_effect(
            f"{key}.stochastic_rounding has no effect with {why} whose updates are not rounded",
            remedy="remove it",
            key=f"{key}.stochastic_rounding",
        )
    if optimizer.master_offset and not (rounds and optimizer.master_weights):
        raise no_effect(
            f"{key}.master_offset has no effect where no float32 copies of bfloat16 weights are trained",
            remedy=f"remove it; it needs model.dtype = 'bfloat16', {key}.master_weights = true, and no lora",
            key=f"{key}.master_offset",
        )
    if rounds and optimizer.stochastic_rounding and optimizer.master_weights:
        raise conflict(
            f"{key}.stochastic_rounding is for bfloat16 weights without a float32 copy",
            remedy=f"set {key}.master_weights = false too, or remove both",
            key=f"{key}.stochastic_rounding",
        )
    if rounds and not (optimizer.stochastic_rounding or optimizer.master_weights):
        raise conflict(
            f"{key}.master_weights = false under model.dtype = 'bfloat16' would round most updates away (nearly all of "
            f"50 updates at a learning rate of 1e-6)",
            remedy=f"set {key}.stochastic_rounding = true, or remove {key}.master_weights",
            key=f"{key}.master_weights",
        )


def check_bits(members: Members) -> None:
    """Raise ConfigError for 8-bit moments without float32 parameters, and for weights of 4 bits that are trained."""
    config = members.config
    for key, value, configured in (
        *((f"{key}.moments", "8bit", of.moments == "8bit") for key, of in optimizers(config).items()),
        ("model.quantization", "nf4", config.model.quantization is not None),
    ):
        if configured and config.model.dtype == "float64":
            raise conflict(
                f"{key} = {value!r} computes in float32 at most, and model.dtype is 'float64'",
                remedy="remove it, or set model.dtype = 'float32'",
                key=key,
            )
    if config.model.quantization is not None and config.model.lora is None:
        raise conflict(
            "model.quantization = 'nf4' without model.lora: weights of 4 bits cannot be trained, only an adapter on "
            "them can",
            remedy="set model.lora, or remove model.quantization",
            key="model.quantization",
        )


def check_ranks(config: Config, count: int) -> None:
    """Raise ConfigError for settings that cannot be sharded over `count` ranks. One rank shards nothing."""
    if count == 1 or config.ranks.learner != "sharded":
        return
    for key, value, why, remedy in _undividable(config):
        raise conflict(
            f"{key} = {value} cannot be combined with ranks.learner = 'sharded' on {count} ranks: {why}",
            remedy=f"{remedy}, or set ranks.learner = 'replicated'",
            key=key,
        )


def _undividable(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """(key, value, reason, remedy) of each setting whose numbers cannot be divided among ranks."""
    if config.model.quantization is not None:
        yield "model.quantization", "'nf4'", "blocks of 4 bits cannot be divided by rows", "remove it"
    for table, optimizer in optimizers(config).items():
        if optimizer.moments == "8bit":
            why, remedy = "blocks of 8-bit moments would cross the ends of the shares", "remove it"
            yield f"{table}.moments", "'8bit'", why, f"{remedy}, as a rank keeps only a share of the moments"
        if optimizer.stochastic_rounding:
            why, remedy = "the shares are float32, so that nothing is rounded", f"remove it and {table}.master_weights"
            yield f"{table}.stochastic_rounding", "true", why, remedy
