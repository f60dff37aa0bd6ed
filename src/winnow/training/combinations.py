"""Checks of a configuration before a model is loaded: combinations that are refused.

Members and keys may each be valid and yet not fit together. precision_checks.py has the combinations of bits and
rounding, and critic_checks.py those of value models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from winnow import ranks
from winnow.alarms.watch import check as check_alarms
from winnow.core.members import Members
from winnow.core.size_plan import bounds_of
from winnow.errors import ConfigError, conflict, no_effect
from winnow.families import Source
from winnow.models.device import planned_device
from winnow.options import Bound
from winnow.registry import PRESUMING, Entry
from winnow.training.critic_checks import check_critic, check_values
from winnow.training.precision_checks import check_bits, check_ranks, check_rounding
from winnow.training.undeclared import ignores_ratio

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
    check_alarms(members.config.alarms)
    check_rounding(members)
    check_bits(members)
    if members.engine.traits.fits is not None:
        members.engine.traits.fits(members.config)
    for check in (
        _check_correction,
        _check_ahead,
        _check_sizes,
        _check_presumed,
        _check_probe,
        _check_allocator,
        _check_kept,
        _check_sampling,
        check_values,
        check_critic,
        _check_limits,
    ):
        check(members)
    check_ranks(members.config, ranks.launched_count())


def _check_correction(members: Members) -> None:
    """Refuse `correction.old = "engine"` where the correction or the loss would not read what it changes."""
    if members.config.correction.old != "engine":
        return
    if members.correction.traits.compares == "old":
        raise conflict(
            f"correction = {members.correction.name!r} compares the policy before the updates with the engine, and "
            f"correction.old = 'engine' takes the engine's log-probs for that policy's: every importance would be 1",
            remedy="remove correction.old, or set correction = 'none' or 'dppo'",
            key="correction.old",
        )
    if ignores_ratio(members.loss):
        raise no_effect(
            f"correction.old = 'engine' has no effect under loss = {members.loss.name!r}, which reads no ratio: "
            f"nothing would correct for the engine",
            remedy="choose a loss with a ratio, such as 'clip', or remove correction.old and name a correction",
            key="correction.old",
        )


def _check_sizes(members: Members) -> None:
    """Refuse `plan.use = "auto"` for steps whose sizes no plan is made for."""
    config = members.config
    if config.plan.use == "fixed":
        return
    if config.rollout.ahead:
        raise ConfigError(
            "plan.use = 'auto' chooses the sizes of a step after the step before it, and with rollout.ahead = 1 its "
            "rollouts are sampled by then",
            remedy="set rollout.ahead = 0, or plan.use = 'fixed'",
            key="rollout.ahead",
            code="config.combination",
        )
    bounds_of(config, ranks=ranks.launched_count())


def _check_ahead(members: Members) -> None:
    """Refuse `rollout.ahead = 1` where the next step cannot be planned or sampled before this step's updates."""
    config, engine = members.config, members.engine
    if not config.rollout.ahead:
        return
    several, named = ranks.launched_count() > 1, "correction" in config.model_fields_set
    for key, refused, why, remedy in (
        (
            "allocate",
            members.source == "probe",
            f"allocate = {members.allocate.name!r} probes with the weights after the step before, and they do "
            f"not exist when the next step is planned",
            "choose allocate = 'gvm_online', which plans from earlier results of training, or rollout.ahead = 0",
        ),
        (
            "probe.outer_reset",
            config.probe.outer_reset != "none",
            "a reset belongs to the start of a window, and rollouts of its first step are sampled before it",
            "remove probe.outer_reset, or set rollout.ahead = 0",
        ),
        (
            "rollout.dynamic_sampling_rounds",
            several and config.rollout.dynamic_sampling_rounds > 0,
            "the ranks agree on the further prompts of dynamic sampling in the middle of sampling, and they exchange "
            "nothing while the policy is trained",
            "set rollout.dynamic_sampling_rounds = 0, or use one rank",
        ),
        (
            "rounds",
            several and members.rounds.name != "single",
            f"the ranks agree on the next round of rounds = {members.rounds.name!r} in the middle of sampling, and "
            f"they exchange nothing while the policy is trained",
            "set rounds = 'single', or use one rank",
        ),
        (
            "cut",
            several and members.cut.traits.cuts,
            f"cut = {members.cut.name!r} needs the lengths of all ranks' rollouts, and ranks exchange nothing while "
            f"the policy is trained",
            "remove cut, or use one rank",
        ),
        (
            "correction",
            not named,
            "the rollouts are a step older than the policy, and no correction is named",
            "choose a correction (docs/off-policy.md), or write correction = 'none'",
        ),
        (
            "rollout.engine",
            engine.traits.ahead is None,
            f"rollout.engine = {engine.name!r} does not declare that it can sample while the policy is trained",
            "use 'native' with process = 'own' on a CPU, or 'vllm' on a GPU of its own",
        ),
        (
            "threads",
            not (config.threads or "OMP_NUM_THREADS" in os.environ) and planned_device(config.device).type == "cpu",
            "the engine needs cores of its own, and threads = 0 lets the trainer use every core",
            "set threads to the trainer's number of cores; rollout.engine.threads are the engine's",
        ),
    ):
        if refused:
            raise ConfigError(f"rollout.ahead = 1: {why}", remedy=remedy, key=key, code="config.combination")
    if engine.traits.ahead is not None:
        engine.traits.ahead(config)


def _check_presumed(members: Members) -> None:
    """Refuse an alias without another member that it requires: the loss "no_baseline" requires the advantage "raw"."""
    config = members.config
    for own in PRESUMING:
        entry: Entry[Any] = getattr(members, own).entry
        for key, name in entry.aliases.get(getattr(config, own).label, {}).items():
            chosen = getattr(config, key).label
            if chosen != name:
                raise conflict(
                    f"{own} = {getattr(config, own).label!r} presumes {key} = {name!r}, but {key} is {chosen!r}",
                    remedy=f"set {key} = {name!r}, or name the {entry.family.name} {entry.name!r}",
                    key=own,
                )


def _check_probe(members: Members) -> None:
    """Refuse a key of `probe` that the allocator does not read, and a reset of a reference that does not exist."""
    config, source = members.config, members.source
    reads = _PROBE_KEYS[source] | ({"decay"} if members.sample.traits.source == "history" else set[str]())
    reads -= set[str]() if members.allocate.traits.gradient_norms else {"gradient_norm"}
    for key, field in type(config.probe).model_fields.items():
        if key not in reads and getattr(config.probe, key) != field.default:
            raise no_effect(
                f"probe.{key} = {getattr(config.probe, key)!r} has no effect under allocate = "
                f"{config.allocate.label!r}, {_SOURCES[source]}",
                remedy=f"remove it, or choose allocate = {'gvm_online' if key == 'decay' else 'gvm'!r}; on the command "
                f"line --unset probe removes the file's table",
                key=f"probe.{key}",
            )
    reset = config.probe.outer_reset
    if reset in ("reference", "both") and not members.reference:
        raise conflict(
            f"probe.outer_reset = {reset!r} restarts the reference policy, and no term compares with one",
            remedy=f"add a KL term, or use {'optimizer' if reset == 'both' else 'none'!r}",
            key="probe.outer_reset",
        )


def _check_allocator(members: Members) -> None:
    """Refuse an advantage, a selector or a weighting for which the allocator was not derived, and a budget that has
    fewer rollouts than every prompt gets: it would have nothing to decide.
    """
    used: Mapping[str, Sequence[Bound[Any]]] = {
        "advantage": (members.advantage,),
        "select": members.selectors,
        "weighting": (members.weighting,),
    }
    for key, assumed in members.allocate.traits.assumes.items():
        for member in used[key]:
            if member.entry.package == "winnow" and member.name not in assumed:
                raise conflict(
                    f"allocate = {members.allocate.name!r} was derived for {key} = "
                    f"{' or '.join(map(repr, assumed))}, and {key} is {member.name!r}",
                    remedy=f"set {key} = {assumed[0]!r}, or choose another allocator",
                    key="allocate",
                )
    option, rollouts = members.allocate.traits.least, members.config.rollout.rollouts_per_prompt
    least = None if option is None else members.allocate.options[option]
    if least is not None and least > rollouts:
        raise conflict(
            f"allocate.{option} = {least} is above rollout.rollouts_per_prompt = {rollouts}, the mean of the budget",
            remedy=f"raise rollout.rollouts_per_prompt above {least}, or lower allocate.{option}",
            key=f"allocate.{option}",
        )


def _check_sampling(members: Members) -> None:
    """Refuse a cut where its ticks are not the policy's tokens, and an unbiased weight (which divides by pass rates,
    for a mean over the task's prompts) where prompts are preferred with unknown probabilities, where verdicts decide
    the number of rollouts, and with a cut: it would be biased.

    Where the probabilities are known, a step needs two prompts: an overdue one would else be certain, and all others
    excluded.
    """
    sampler, rounds, cut, weighting = members.sample, members.rounds, members.cut, members.weighting
    if cut.traits.cuts and members.environment is not None:
        raise conflict(
            f"cut = {cut.name!r} counts ticks of one token, and the rollouts of an environment wait for its turns",
            remedy="set cut = 'none', or remove the environment",
            key="cut",
        )
    if weighting.traits.total != "prompts" or "pass_rates" not in weighting.traits.needs:
        return
    if rounds.traits.reads_verdicts:
        raise conflict(
            f"rounds = {rounds.name!r} ends a prompt by the verdicts of its rollouts, so the weight of weighting = "
            f"{weighting.name!r}, 1 / (n p), would be biased",
            remedy="use weighting = 'prompt' or 'accepted', or rounds = 'single'",
            key="rounds",
        )
    if cut.traits.cuts:
        raise conflict(
            f"cut = {cut.name!r} leaves the rollouts that were short or likely, so the weight of weighting = "
            f"{weighting.name!r}, 1 / (n p), would be biased",
            remedy="use weighting = 'prompt' or 'accepted', or cut = 'none'",
            key="cut",
        )
    if sampler.traits.probability == "equal":
        return
    if sampler.traits.probability == "unknown":
        raise conflict(
            f"sample = {sampler.name!r} prefers some prompts with unknown probabilities, so the mean over prompts of "
            f"weighting = {weighting.name!r} would be a mean over those that it prefers",
            remedy="use sample = 'uniform', 'greso' or 'cures', or weighting = 'prompt'; a sampler of your own returns "
            "Drawn.probability and is registered with probability='known' (docs/spending-the-budget.md)",
            key="sample",
        )
    auto = members.config.plan.use == "auto"
    least = bounds_of(members.config).prompts[0] if auto else members.config.rollout.prompts_per_step
    key = "plan.prompts_per_step" if auto else "rollout.prompts_per_step"
    if least < 2:
        raise conflict(
            f"sample = {sampler.name!r} draws an overdue prompt with certainty, so a step of one prompt excludes all "
            f"others, and weighting = {weighting.name!r} would be biased",
            remedy=f"set {'the least of ' * auto}{key} to 2 or more, or sample = 'uniform'",
            key=key,
        )


def _check_kept(members: Members) -> None:
    """Refuse a number to keep that drops nothing, and a chunk that changes nothing: it would be ignored silently."""
    config, rollouts = members.config, members.config.rollout.rollouts_per_prompt
    for member in config.select if config.allocate.use == "uniform" else ():
        keep = member.options.get("keep_per_prompt")
        of, key = min((rollouts, "rollout.rollouts_per_prompt"), (member.chunk or rollouts, "select.chunk"))
        if isinstance(keep, int) and keep > of:
            raise conflict(
                f"select.keep_per_prompt = {keep} is above {key} = {of}: nothing would ever be dropped",
                remedy=f"lower it to at most {of}, or raise {key}",
                key="select.keep_per_prompt",
            )
    for selector, section in zip(members.selectors, config.select, strict=True):
        if section.chunk and selector.traits.size != "exact":
            raise no_effect(
                f"select.chunk = {section.chunk} is for a selector that keeps a set number, and {selector.name!r} does "
                f"not",
                remedy="remove it",
                key="select.chunk",
            )
    if config.advantage.chunk and not members.group_baseline:
        raise no_effect(
            f"advantage.chunk = {config.advantage.chunk} has no effect: {members.advantage.name!r} does not compare "
            f"the rollouts of a prompt with each other",
            remedy="remove it",
            key="advantage.chunk",
        )


def _check_limits(members: Members) -> None:
    """An answer that exceeds the time limit of its reward is wrong; one that exceeds the worker's limit is a failure,
    which has no reward. So the worker's limit must be the longer one.
    """
    limit, parts = members.config.verify.timeout_seconds, "parts" in members.reward
    for place, reward in enumerate(members.rewards):
        name = reward.traits.own_limit
        own = None if name is None else reward.options[name]
        if own is not None and own >= limit:
            key = f"reward.parts.{place}.{name}" if parts else f"reward.{name}"
            raise conflict(
                f"verify.timeout_seconds = {limit} would stop the reward {reward.name!r} before its limit, "
                f"{key} = {own}, makes an answer wrong",
                remedy=f"raise verify.timeout_seconds above {own}, or lower {key}",
                key="verify.timeout_seconds",
            )
