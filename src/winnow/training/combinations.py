"""Members and keys that are each valid, in combinations that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow import ranks
from winnow.alarms import check as check_alarms
from winnow.config import Config
from winnow.errors import ConfigError
from winnow.families import Source
from winnow.registry import PRESUMING, Entry
from winnow.training.critic_combinations import check_critic
from winnow.training.members import Members
from winnow.training.rounding import check_rounding

# The keys of `probe` that an allocator reads, by the source of its pass rates; and each source in words.
_PROBE_KEYS: Mapping[Source, frozenset[str]] = {
    "none": frozenset(),
    "history": frozenset({"gradient_norm", "decay"}),
    "probe": frozenset({"every", "rollouts_per_prompt", "gradient_norm", "outer_reset"}),
}
_SOURCES: Mapping[Source, str] = {
    "none": "which needs no pass rates of the prompts",
    "history": "which uses the prompts' earlier visits and does not probe",
    "probe": "which probes anew and does not keep earlier visits",
}


def check_combinations(members: Members) -> None:
    """Raise ConfigError for the first combination that is refused."""
    for check in (
        _check_alarms,
        _check_precision,
        _check_bits,
        _check_engine,
        _check_presumed,
        _check_probe,
        _check_keep,
        _check_chunks,
        check_critic,
        _check_limits,
        _check_reset,
    ):
        check(members)
    check_ranks(members.config, ranks.launched_count())


def _check_alarms(members: Members) -> None:
    check_alarms(members.config.alarms)


def check_ranks(config: Config, count: int) -> None:
    """Raise ConfigError for settings that cannot be sharded over `count` ranks. One rank shards nothing."""
    if count == 1 or config.ranks.learner != "sharded":
        return
    critic = config.critic
    for key, value, configured, why, remedy in (
        (
            "model.quantization",
            " = 'nf4'",
            config.model.quantization is not None,
            "blocks of 4 bits cannot be divided by rows",
            "remove it",
        ),
        (
            "optimizer.moments",
            " = '8bit'",
            config.optimizer.moments == "8bit" or (critic is not None and critic.optimizer.moments == "8bit"),
            "blocks of 8-bit moments would cross the ends of the shares",
            "remove it, as a rank keeps only a share of the moments",
        ),
        (
            "optimizer.stochastic_rounding",
            "",
            config.optimizer.stochastic_rounding or (critic is not None and critic.optimizer.stochastic_rounding),
            "the shares are float32, so that nothing is rounded",
            "remove it and optimizer.master_weights",
        ),
    ):
        if configured:
            raise ConfigError(
                f"{key}{value} cannot be combined with ranks.learner = 'sharded' on {count} ranks: {why}",
                remedy=f"{remedy}, or set ranks.learner = 'replicated'",
                key=key,
                code="config.combination",
            )


def _check_precision(members: Members) -> None:
    config = members.config
    check_rounding(config.optimizer, "optimizer", dtype=config.model.dtype, adapter=config.model.lora is not None)


def _check_bits(members: Members) -> None:
    """8-bit moments need float32 parameters, and only weights that are not trained can have 4 bits."""
    config, critic = members.config, members.config.critic
    for key, value, configured in (
        ("optimizer.moments", "8bit", config.optimizer.moments == "8bit"),
        ("critic.optimizer.moments", "8bit", critic is not None and critic.optimizer.moments == "8bit"),
        ("model.quantization", "nf4", config.model.quantization is not None),
    ):
        if configured and config.model.dtype == "float64":
            raise ConfigError(
                f"{key} = {value!r} computes in float32 at most, and model.dtype is 'float64'",
                remedy="remove it, or set model.dtype = 'float32'",
                key=key,
                code="config.combination",
            )
    if config.model.quantization is not None and config.model.lora is None:
        raise ConfigError(
            "model.quantization = 'nf4' without model.lora: weights of 4 bits cannot be trained, only an adapter on "
            "them can",
            remedy="set model.lora, or remove model.quantization",
            key="model.quantization",
            code="config.combination",
        )


def _check_engine(members: Members) -> None:
    if members.engine.traits.fits is not None:
        members.engine.traits.fits(members.config)


def _check_presumed(members: Members) -> None:
    """Refuse an alias without another member that it requires: the loss "no_baseline" requires the advantage "raw"."""
    config = members.config
    for own in PRESUMING:
        entry: Entry[Any] = getattr(members, own).entry
        for key, name in entry.presumes.items():
            chosen = getattr(config, key).label
            if chosen != name:
                raise ConfigError(
                    f"{own} = {getattr(config, own).label!r} presumes {key} = {name!r}, but {key} is {chosen!r}",
                    remedy=f"set {key} = {name!r}, or name the {entry.family.name} {entry.name!r}",
                    key=own,
                    code="config.combination",
                )


def _check_probe(members: Members) -> None:
    """Refuse a key of `probe` that the allocator does not read: it would be ignored silently."""
    config, source = members.config, members.source
    for key, field in type(config.probe).model_fields.items():
        if key not in _PROBE_KEYS[source] and getattr(config.probe, key) != field.default:
            raise ConfigError(
                f"probe.{key} = {getattr(config.probe, key)!r} has no effect under allocate = "
                f"{config.allocate.label!r}, {_SOURCES[source]}",
                remedy=f"remove it, or choose allocate = {'gvm_online' if key == 'decay' else 'gvm'!r}; on the command "
                f"line --unset probe removes the file's table",
                key=f"probe.{key}",
                code="config.no_effect",
            )


def _check_keep(members: Members) -> None:
    rollouts = members.config.rollout.rollouts_per_prompt
    for member in members.config.select if members.config.allocate.use == "uniform" else ():
        keep = member.options.get("keep_per_prompt")
        of, key = min((rollouts, "rollout.rollouts_per_prompt"), (member.chunk or rollouts, "select.chunk"))
        if isinstance(keep, int) and keep > of:
            raise ConfigError(
                f"select.keep_per_prompt = {keep} is above {key} = {of}: nothing would ever be dropped",
                remedy=f"lower it to at most {of}, or raise {key}",
                key="select.keep_per_prompt",
                code="config.combination",
            )


def _check_chunks(members: Members) -> None:
    """Refuse a chunk that changes nothing: it would be ignored silently."""
    config = members.config
    for selector, section in zip(members.selectors, config.select, strict=True):
        if section.chunk and selector.traits.size != "exact":
            raise ConfigError(
                f"select.chunk = {section.chunk} is for a selector that keeps a set number, and {selector.name!r} does "
                f"not",
                remedy="remove it",
                key="select.chunk",
                code="config.no_effect",
            )
    if config.advantage.chunk and not members.group_baseline:
        raise ConfigError(
            f"advantage.chunk = {config.advantage.chunk} has no effect: {members.advantage.name!r} does not compare "
            f"the rollouts of a prompt with each other",
            remedy="remove it",
            key="advantage.chunk",
            code="config.no_effect",
        )


def _check_limits(members: Members) -> None:
    """An answer that exceeds the time limit of its reward is wrong; one that exceeds the worker's limit is a failure,
    which has no reward. So the worker's limit must be the longer one.
    """
    limit = members.config.verify.timeout_seconds
    for reward in members.rewards:
        name = reward.traits.own_limit
        own = None if name is None else reward.options[name]
        if own is not None and own >= limit:
            raise ConfigError(
                f"verify.timeout_seconds = {limit} would stop the reward {reward.name!r} before its limit, "
                f"reward.{name} = {own}, makes an answer wrong",
                remedy=f"raise verify.timeout_seconds above {own}, or lower reward.{name}",
                key="verify.timeout_seconds",
                code="config.combination",
            )


def _check_reset(members: Members) -> None:
    reset = members.config.probe.outer_reset
    if reset in ("reference", "both") and not members.reference:
        raise ConfigError(
            f"probe.outer_reset = {reset!r} restarts the reference policy, and no term compares with one",
            remedy=f"add a KL term, or use {'optimizer' if reset == 'both' else 'none'!r}",
            key="probe.outer_reset",
            code="config.combination",
        )
