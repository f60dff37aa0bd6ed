"""Checks of a configuration before a model is loaded: combinations that are refused.

Members and keys may each be valid and yet not fit together. Weights of 8 significant bits, for example, lose most small
updates, so bfloat16 training needs float32 copies or stochastic rounding.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from winnow import ranks
from winnow.alarms import check as check_alarms
from winnow.config import Config, OptimizerSection, OwnModelCritic, SeparateCritic, TrainedCritic, optimizers
from winnow.errors import ConfigError
from winnow.families import LossTraits, Source
from winnow.models.device import planned_device
from winnow.models.folder import relabel_errors
from winnow.models.load import describe, load_tokenizer
from winnow.options import Bound
from winnow.registry import PRESUMING, Entry
from winnow.state.folder import TENSORS
from winnow.training.setup.members import Members
from winnow.training.setup.undeclared import _OF_LOSS, _micro_batch, _output

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
        _check_correction,
        _check_ahead,
        _check_presumed,
        _check_probe,
        _check_assumed,
        _check_least,
        _check_keep,
        _check_rounds,
        _check_cut,
        _check_chunks,
        _check_values,
        _check_critic,
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
    sections = optimizers(config).values()
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
            any(optimizer.moments == "8bit" for optimizer in sections),
            "blocks of 8-bit moments would cross the ends of the shares",
            "remove it, as a rank keeps only a share of the moments",
        ),
        (
            "optimizer.stochastic_rounding",
            "",
            any(optimizer.stochastic_rounding for optimizer in sections),
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
    config, critic = members.config, members.config.critic
    check_rounding(config.optimizer, "optimizer", dtype=config.model.dtype, adapter=config.model.lora is not None)
    if isinstance(critic, TrainedCritic):
        adapter = critic.policy_head == "lent" or critic.lora is not None
        check_rounding(critic.optimizer, "critic.optimizer", dtype=config.model.dtype, adapter=adapter)


def _check_bits(members: Members) -> None:
    """8-bit moments need float32 parameters, and only weights that are not trained can have 4 bits."""
    config = members.config
    for key, value, configured in (
        *((f"{key}.moments", "8bit", of.moments == "8bit") for key, of in optimizers(config).items()),
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


def _check_correction(members: Members) -> None:
    """Refuse `correction.old = "engine"` where the correction or the loss would not read what it changes."""
    if members.config.correction.old != "engine":
        return
    if members.correction.traits.compares == "old":
        raise ConfigError(
            f"correction = {members.correction.name!r} compares the policy before the updates with the engine, and "
            f"correction.old = 'engine' takes the engine's log-probs for that policy's: every importance would be 1",
            remedy="remove correction.old, or set correction = 'none' or 'dppo'",
            key="correction.old",
            code="config.combination",
        )
    if _ignores_ratio(members.loss):
        raise ConfigError(
            f"correction.old = 'engine' has no effect under loss = {members.loss.name!r}, which reads no ratio: "
            f"nothing would correct for the engine",
            remedy="choose a loss with a ratio, such as 'clip', or remove correction.old and name a correction",
            key="correction.old",
            code="config.no_effect",
        )


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


def _ignores_ratio(loss: Bound[LossTraits]) -> bool:
    """Whether the loss and its gradient are the same for other old log-probs; False where a trial call raises."""

    def trial(shift: float) -> list[float]:
        out, mb = _output(_OF_LOSS), _micro_batch(_OF_LOSS)
        values, _ = loss.call(out, dataclasses.replace(mb, old_logprobs=out.logprobs.detach() + shift))
        (slope,) = torch.autograd.grad(values.sum(), out.logprobs)
        return [*values.tolist(), *slope.tolist()]

    try:
        return trial(0.0) == trial(-0.1)
    except Exception:  # a user's function may raise anything
        return False


def _check_presumed(members: Members) -> None:
    """Refuse an alias without another member that it requires: the loss "no_baseline" requires the advantage "raw"."""
    config = members.config
    for own in PRESUMING:
        entry: Entry[Any] = getattr(members, own).entry
        for key, name in entry.aliases.get(getattr(config, own).label, {}).items():
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
    reads = _PROBE_KEYS[source] | ({"decay"} if members.sample.traits.source == "history" else set[str]())
    reads -= set[str]() if members.allocate.traits.gradient_norms else {"gradient_norm"}
    for key, field in type(config.probe).model_fields.items():
        if key not in reads and getattr(config.probe, key) != field.default:
            raise ConfigError(
                f"probe.{key} = {getattr(config.probe, key)!r} has no effect under allocate = "
                f"{config.allocate.label!r}, {_SOURCES[source]}",
                remedy=f"remove it, or choose allocate = {'gvm_online' if key == 'decay' else 'gvm'!r}; on the command "
                f"line --unset probe removes the file's table",
                key=f"probe.{key}",
                code="config.no_effect",
            )


def _check_assumed(members: Members) -> None:
    """Refuse an advantage, a selector or a weighting for which the allocator was not derived."""
    used: Mapping[str, Sequence[Bound[Any]]] = {
        "advantage": (members.advantage,),
        "select": members.selectors,
        "weighting": (members.weighting,),
    }
    for key, assumed in members.allocate.traits.assumes.items():
        for member in used[key]:
            if member.entry.package == "winnow" and member.name not in assumed:
                raise ConfigError(
                    f"allocate = {members.allocate.name!r} was derived for {key} = "
                    f"{' or '.join(map(repr, assumed))}, and {key} is {member.name!r}",
                    remedy=f"set {key} = {assumed[0]!r}, or choose another allocator",
                    key="allocate",
                    code="config.combination",
                )


def _check_least(members: Members) -> None:
    """Refuse a budget that has fewer rollouts than every prompt gets: the allocator would have nothing to decide."""
    option, rollouts = members.allocate.traits.least, members.config.rollout.rollouts_per_prompt
    if option is not None and members.allocate.options[option] > rollouts:
        least = members.allocate.options[option]
        raise ConfigError(
            f"allocate.{option} = {least} is above rollout.rollouts_per_prompt = {rollouts}, the mean of the budget",
            remedy=f"raise rollout.rollouts_per_prompt above {least}, or lower allocate.{option}",
            key=f"allocate.{option}",
            code="config.combination",
        )


def _check_rounds(members: Members) -> None:
    """Refuse an unbiased weight where the number of rollouts depends on their verdicts: it would be biased."""
    rule, weighting = members.rounds, members.weighting
    if rule.traits.reads_verdicts and weighting.traits.total == "prompts" and "pass_rates" in weighting.traits.needs:
        raise ConfigError(
            f"rounds = {rule.name!r} ends a prompt by the verdicts of its rollouts, so the weight of weighting = "
            f"{weighting.name!r}, 1 / (n p), would be biased",
            remedy="use weighting = 'prompt' or 'accepted', or rounds = 'single'",
            key="rounds",
            code="config.combination",
        )


def _check_cut(members: Members) -> None:
    """Refuse a cut where its ticks are not the policy's tokens, and an unbiased weight, which a cut makes biased."""
    rule, weighting = members.cut, members.weighting
    if not rule.traits.cuts:
        return
    if members.environment is not None:
        raise ConfigError(
            f"cut = {rule.name!r} counts ticks of one token, and the rollouts of an environment wait for its turns",
            remedy="set cut = 'none', or remove the environment",
            key="cut",
            code="config.combination",
        )
    if weighting.traits.total == "prompts" and "pass_rates" in weighting.traits.needs:
        raise ConfigError(
            f"cut = {rule.name!r} leaves the rollouts that were short or likely, so the weight of weighting = "
            f"{weighting.name!r}, 1 / (n p), would be biased",
            remedy="use weighting = 'prompt' or 'accepted', or cut = 'none'",
            key="cut",
            code="config.combination",
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


def _check_values(members: Members) -> None:
    """An advantage that needs values has a source of them, and the options of an advantage have an effect."""
    config, critic, needs = members.config, members.config.critic, members.advantage.traits.needs
    if config.advantage.kl_reward and "token_rewards" not in needs:
        raise ConfigError(
            f"advantage.kl_reward = {config.advantage.kl_reward} has no effect: {members.advantage.name!r} reads one "
            f"reward per rollout",
            remedy="add the term kl instead, or choose advantage = 'gae'",
            key="advantage.kl_reward",
            code="config.no_effect",
        )
    options = members.advantage.options
    if options.get("lam") not in (None, "length") and members.config.advantage.options.get("alpha") is not None:
        raise ConfigError(
            f"advantage.alpha = {options['alpha']} has an effect under lam = 'length' alone, and advantage.lam = "
            f"{options['lam']}",
            remedy="remove it, or set advantage.lam = 'length'",
            key="advantage.alpha",
            code="config.no_effect",
        )
    if "values" in needs and critic is None and members.critic is None:
        raise ConfigError(
            f"advantage = {members.advantage.name!r} needs values, and there is no value model",
            remedy="add a table [critic], give a function from Python (winnow.train(critic=...)), or choose an "
            "advantage with another baseline",
            key="advantage",
            code="config.combination",
        )


def _check_critic(members: Members) -> None:
    """The keys of a value model that is trained, with each other and with those of the run."""
    config, critic, needs = members.config, members.config.critic, members.advantage.traits.needs
    if critic is None:
        return
    if members.critic is not None:
        raise ConfigError(
            "there are two sources of values: the table [critic] and the function critic=",
            remedy="remove one of them",
            key="critic",
            code="config.combination",
        )
    if "values" not in needs:
        raise ConfigError(
            f"[critic] trains a value model that nothing reads: advantage = {members.advantage.name!r} needs no values",
            remedy="choose advantage = 'gae', or remove the table",
            key="critic",
            code="config.no_effect",
        )
    lora = config.model.lora
    on_policy = critic if isinstance(critic, SeparateCritic) and critic.policy_head == "lent" else None
    if on_policy and lora is None:
        raise ConfigError(
            f"critic.form = {critic.form!r} puts an adapter on the policy's frozen base, and without model.lora that "
            f"base is trained",
            remedy="set model.lora, or critic.form = 'model', which may have a critic.lora",
            key="critic.form",
            code="config.combination",
        )
    if on_policy and lora and on_policy.lora and on_policy.lora.targets != lora.targets:
        raise ConfigError(
            f"critic.lora.targets = {on_policy.lora.targets!r} under critic.form = {critic.form!r}: both adapters must "
            f"be on the same layers",
            remedy="set it to the value of model.lora.targets",
            key="critic.lora.targets",
            code="config.combination",
        )
    gamma = members.advantage.options.get("gamma", critic.gamma)
    if gamma != critic.gamma:  # values that are trained on one discount are no baseline for returns of another
        raise ConfigError(
            f"advantage.gamma = {gamma} and critic.gamma = {critic.gamma}: the values would predict other returns than "
            f"the advantage uses",
            remedy="set both to the same value",
            key="critic.gamma",
            code="config.combination",
        )
    if config.update.max_trained_tokens is not None:
        raise ConfigError(
            "update.max_trained_tokens cannot be combined with [critic]: a token's advantage depends on all values "
            "after it, to the end of the rollout",
            remedy="remove one of them",
            key="update.max_trained_tokens",
            code="config.combination",
        )


def check_value_model(config: Config, tokenizer: Any) -> None:
    """Raise ConfigError or DataError where `critic.path` does not fit the policy. Reads no weights."""
    critic = config.critic
    if isinstance(critic, OwnModelCritic) and critic.path is not None:
        with relabel_errors("critic.path"):
            critic_tokenizer, described = load_tokenizer(critic.path), describe(critic.path)
        if critic_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ConfigError(
                f"critic.path = {critic.path!r} has another vocabulary than the policy: a value model reads the "
                f"policy's tokens",
                remedy="name a model of the same family, or remove the key",
                key="critic.path",
                code="config.combination",
            )
        longest = config.prompt.max_prompt_tokens + config.rollout.max_new_tokens
        # Padded embeddings count: the policy can sample an id that its tokenizer has no token for
        most = describe(config.model.path).vocabulary
        if described.vocabulary < most:
            raise ConfigError(
                f"critic.path = {critic.path!r} has embeddings for {described.vocabulary} tokens, and the policy "
                f"samples from {most}",
                remedy="name a model whose vocab_size is no smaller, or remove the key",
                key="critic.path",
                code="config.combination",
            )
        if described.context < longest:
            raise ConfigError(
                f"critic.path = {critic.path!r} reads {described.context} tokens, and prompt.max_prompt_tokens + "
                f"rollout.max_new_tokens = {longest}",
                remedy="name another model, or lower one of them",
                key="critic.path",
                code="config.combination",
            )


def check_start(config: Config) -> None:
    """Raise ConfigError where `critic.start` is not a checkpoint."""
    critic = config.critic
    if not isinstance(critic, SeparateCritic) or critic.start is None:
        return
    if not (Path(critic.start).expanduser() / TENSORS).is_file():
        raise ConfigError(
            f"critic.start = {critic.start!r} is not a checkpoint: there is no {TENSORS} in it",
            remedy="name a folder like RUN/checkpoints/step-000010 of a run with a value model",
            key="critic.start",
            code="config.value",
        )


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
