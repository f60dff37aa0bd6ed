"""Every warning about a valid configuration: about settings that waste compute, or results that mean little."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from winnow import ranks
from winnow.config import Config, dump, is_bundled
from winnow.core.members import Members
from winnow.memory.plan import MemoryPlan
from winnow.models.device import keeps_masters
from winnow.options import secret_keys
from winnow.seeds import Rng
from winnow.tasks.templates import PLAIN, Rendered
from winnow.training.budget import Budget
from winnow.training.factors import PASS_RATES, cut_factors, group_of_verdicts, round_factors
from winnow.training.prompts import TAG, FirstPrompt

HIGHEST_RATE = 2e-5  # the highest learning rate at which configs/published trains all weights of a model
UNEVEN = 0.05  # how far a factor of the gradient may be from 1 without a warning
LARGE = 64 * 2**20  # bytes of a policy's weights above which matrix products dominate the time of decoding
LAGS = 1e-5  # up to this rate, bfloat16 weights that follow their masters late lost accuracy (docs/models.md)
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})  # flags of /proc/cpuinfo


def advice(members: Members, b: Budget, planned_ranks: int = 1) -> Iterator[str]:
    """One sentence per key that wastes compute, with a number that fits, for a run of `planned_ranks`."""
    yield from _about_selection(members, b)
    yield from _about_shares(members)
    yield from _about_factors(members)
    yield from _about_updates(members, b)
    yield from _about_sizes(members.config, b)
    yield from _about_learning_rate(members.config)
    yield from _about_masters(members.config)
    yield from _about_evaluation(members.config, b)
    yield from _about_ranks(members.config, planned_ranks)
    yield from _about_secrets(members.config)


def before_training(config: Config, train: Rendered, held_out: Mapping[str | None, Rendered]) -> Iterator[str]:
    """Warnings before the first step: about settings that do not fit the number of ranks, and about prompts."""
    yield from _about_ranks(config, ranks.count())
    yield from _about_learning_rate(config)
    yield from _about_masters(config)
    yield from _about_secrets(config)
    yield from about_prompts(config, train, held_out)


def about_prompts(config: Config, train: Rendered, held_out: Mapping[str | None, Rendered]) -> Iterator[str]:
    """Warnings about the prompts of a run: those that are too long, test problems that are trained on, and splits with
    fewer problems than an evaluation requests.
    """
    purposes = [("training", train), *((task or "evaluation", prompts) for task, prompts in held_out.items())]
    for purpose, rendered in purposes:
        if rendered.dropped:
            yield (
                f"{rendered.dropped} of {rendered.dropped + len(rendered.prompts)} {purpose} prompts are longer than "
                f"prompt.max_prompt_tokens = {config.prompt.max_prompt_tokens} and are dropped, the first of them "
                f"{rendered.first_dropped!r}"
            )
    trained = {prompt.text for prompt in train.prompts}
    for task, prompts in held_out.items():
        known = sum(prompt.text in trained for prompt in prompts.prompts) if task is not None else 0
        if known:
            yield (
                f"evaluate.tasks: {known} of {len(prompts.prompts)} test problems of {task} are also training "
                f"problems, word by word: results on them do not show how the policy does on new problems"
            )
    wanted = config.evaluate.problems
    for task, prompts in held_out.items():
        available, split = prompts.dropped + len(prompts.prompts), config.evaluate.split if task is None else "test"
        if available < wanted:
            yield (
                f"evaluate.problems = {wanted}, but {'the task' if task is None else task} has {available} {split} "
                f"problem{'s' * (available != 1)}: {'all are' if available != 1 else 'it is'} used"
            )


def missing_answer_forms(members: Members, first: FirstPrompt) -> Iterator[str]:
    """A sentence per reward that reads the answer in a form that the prompt does not require, and one about tags that
    no reward can read.
    """
    if first.omitted:
        yield (
            f"the tokenizer declares {', '.join(first.omitted)} as special, and the text of a rollout omits special "
            f'tokens, so no reward can read them: set "special" to false for them in tokenizer.json and '
            f"tokenizer_config.json, and remove them from additional_special_tokens"
        )
    for reward in members.rewards:
        forms = reward.traits.asks
        if forms and not any(all(_is_required(mark, first) for mark in form) for form in forms):
            wanted = ", or ".join(" and ".join(f"'{mark}'" for mark in form) for form in forms)
            fitting = [name for name, text in PLAIN.items() if all(mark in text for mark in forms[0])]
            template = "".join(f", set prompt.template = {name!r}" for name in fitting)
            yield (
                f"reward = {reward.name!r} reads an answer by {wanted}, and the prompt does not require it: a policy "
                f"that was not trained to write so gets no reward and learns nothing; require it in prompt.system, in "
                f"prompt.suffix or in a template of your own{template}, or choose another reward"
            )


def precision_on_cpu(members: Members, plan: MemoryPlan, cpu: Path = Path("/proc/cpuinfo")) -> Iterator[str]:
    """A sentence where the policy computes in bfloat16 on a CPU without instructions for it, or where the native engine
    decodes in float32 on one that has them, which are twice as fast. `cpu` is the file that lists the instructions.
    """
    weights = sum(part.bytes for part in plan.parts if part.name == "weights" and part.device == "cpu")
    flags = cpu.read_text(encoding="utf-8").split() if cpu.exists() else []
    engine, model, is_fast = members.engine, members.config.model, not BFLOAT16.isdisjoint(flags)
    if weights and model.dtype == "bfloat16" and "flags" in flags and not is_fast:
        yield (
            "model.dtype = 'bfloat16': this CPU has no instructions for bfloat16, so its products may be many "
            "times slower than in float32 (see the measured products); use model.dtype = 'float32' here"
        )
    inside = engine.options.get("process", "inside") == "inside"  # in a process of its own it refuses a dtype
    same_dtype = engine.name == "native" and inside and engine.options.get("dtype", "policy") == "policy"
    if is_fast and weights >= LARGE and model.dtype == "float32" and model.quantization is None and same_dtype:
        yield (
            "this CPU has instructions for bfloat16: rollout.engine = {use = 'native', dtype = 'bfloat16'} decodes on "
            "a bfloat16 copy of the weights, about 1.7 times as fast (measured at 40M parameters). Its log-probs then "
            "differ slightly from the policy's, which policy/parity_alarm watches and correction corrects for, and the "
            "copy follows small updates late (docs/engines.md). Evaluations sample with the policy's weights where "
            "memory allows, and eval/weight_bits records it"
        )


def _is_required(mark: str, first: FirstPrompt) -> bool:
    """Whether a mark is in the prompt, or consists of tags that are single tokens in the policy's vocabulary."""
    tags = re.findall(TAG, mark)
    return mark in first.prompt.text or (bool(tags) and first.known.issuperset(tags))


def _about_selection(members: Members, b: Budget) -> Iterator[str]:
    count, fixed = members.config.rollout.rollouts_per_prompt, members.config.plan.use == "fixed"
    if fixed and b.kept >= count > 1 and any("keep_per_prompt" in selector.options for selector in members.selectors):
        lower = f"lower keep_per_prompt to {max(2, count // 4)}, " if count > 2 else ""
        yield (
            f"select keeps all {count} rollouts of a prompt: nothing is dropped; {lower}raise "
            f"rollout.rollouts_per_prompt, or set select = 'all'"
        )
    over_kept = members.advantage.options.get("statistics", "kept") == "kept"
    chunk = min(members.config.advantage.chunk or count, count)
    if b.kept * chunk <= count and members.group_baseline and over_kept:  # kept evenly: at most one per chunk
        unit = "prompt" if chunk == count else "chunk"
        yield (
            f"one rollout is kept per {unit}, and {members.advantage.name!r} compares rollouts of one {unit}: every "
            f"advantage is 0 and nothing is learned; keep at least 2"
        )
    if members.config.rollout.dynamic_sampling_rounds and members.advantage.traits.baseline == "values":
        yield (
            f"rollout.dynamic_sampling_rounds replaces groups without a signal, and under advantage = "
            f"{members.advantage.name!r} every group with a kept rollout has one; remove it, or choose a group baseline"
        )


def _about_shares(members: Members) -> Iterator[str]:
    """Warnings where an allocator or a selector changes a prompt's share of the objective."""
    weighting, config = members.weighting, members.config
    if weighting.traits.total == "prompts" and _drops_correct(members):
        yield (
            f"weighting = {weighting.name!r} counts a prompt's rollouts before select drops some of the correct ones: "
            f"the gradient shrinks by their share; use select = 'all', or weighting = 'prompt'"
        )
    if config.allocate.label != "uniform" and weighting.traits.share != "equal":
        yield (
            f"allocate = {config.allocate.label!r} gives prompts unequal numbers of rollouts, and weighting = "
            f"{weighting.name!r} then gives them unequal shares of the objective; use 'prompt', or for 0/1 credit "
            f"'unbiased' or 'accepted'"
        )
    if members.rounds.traits.reads_verdicts and weighting.traits.share != "equal":
        yield (
            f"rounds = {config.rounds.label!r} ends some prompts early, and weighting = {weighting.name!r} gives the "
            f"others a larger share of the objective; use 'prompt'"
        )
    if members.cut.traits.cuts and weighting.traits.share != "equal":
        yield (
            f"cut = {config.cut.label!r} leaves prompts unequal numbers of rollouts, and weighting = "
            f"{weighting.name!r} then gives them unequal shares of the objective; use 'prompt'"
        )


def _drops_correct(members: Members) -> bool:
    """Whether the selectors drop a correct rollout, from a group that is all correct or half correct.

    A selector that drops only rollouts without an advantage, such as RAFT's filter, changes no share.
    """
    count = members.config.rollout.rollouts_per_prompt
    for correct in (count, math.ceil(count / 2)):
        group = group_of_verdicts(count, correct)
        if not members.select(group, Rng(("check",)))[:correct].all():
            return True
    return False


def _about_factors(members: Members) -> Iterator[str]:
    """Warnings where a rule of rounds or a cut, with the advantage, weighs prompts or rollouts anew, and where a rule
    has the same expected gradient as a single round at every pass rate, because it never ends a prompt early.
    """
    config, advantage = members.config, members.config.advantage.label
    found = round_factors(members) or ()
    if found and config.allocate.label == "uniform" and all(math.isclose(factor, once) for factor, once in found):
        yield (
            f"rounds = {config.rounds.label!r} always samples all {config.rollout.rollouts_per_prompt} rollouts of a "
            f"prompt; raise rollout.rollouts_per_prompt, change the rule's options so that it can "
            f"end a prompt earlier, or set rounds = 'single'"
        )
    elif any(abs(factor - 1) > UNEVEN for factor, _ in found):
        at = ", ".join(f"{factor:.2f} at {rate:g}" for (factor, _), rate in zip(found, PASS_RATES, strict=True))
        once = ", ".join(f"{factor:.2f}" for _, factor in found)
        yield (
            f"rounds = {config.rounds.label!r} with advantage = {advantage!r} multiplies the expected gradient of a "
            f"prompt by a factor that depends on its pass rate: {at} (in a single round {once}; 1 for infinitely many "
            f"rollouts), with 0/1 rewards, select = 'all' and weighting = 'prompt'. Prompts of some difficulties then "
            f"weigh more than others; rounds = 'single' with advantage = 'rloo' has a factor of 1 "
            f"(docs/spending-the-budget.md)"
        )
    cut = cut_factors(members)
    if cut is not None and any(abs(factor - 1) > UNEVEN for factor in cut):
        parts = zip(cut, ("correct short", "correct long", "wrong short", "wrong long"), strict=True)
        each = ", ".join(f"{abs(factor):.2f} of {kind}" for factor, kind in parts if not math.isnan(factor))
        yield (
            f"cut = {config.cut.label!r} with advantage = {advantage!r} multiplies the expected gradient by {each} "
            f"rollouts, with 0/1 rewards, select = 'all' and weighting = 'prompt', if half of the rollouts are correct "
            f"and half are half as long as the others. The policy then learns mostly from the rollouts that are left; "
            f"cut = 'none' with advantage = 'rloo' has a factor of 1 (docs/spending-the-budget.md)"
        )


def _about_updates(members: Members, b: Budget) -> Iterator[str]:
    config, prompts = members.config, b.prompts
    cuts = config.update.updates_per_step
    if cuts > prompts:
        yield (
            f"update.updates_per_step = {cuts} > {prompts} prompts: an update consists of whole prompts, so "
            f"{cuts - prompts} stay empty; use at most {prompts}"
        )
    elif prompts % cuts:
        fitting = [n for n in range(1, prompts + 1) if prompts % n == 0]
        below, above = max(n for n in fitting if n < cuts), min(n for n in fitting if n > cuts)
        yield f"update.updates_per_step = {cuts} divides {prompts} prompts unevenly; use {below} or {above}"
    if b.updates > 1 and members.loss.name == "reinforce":
        yield (
            f"loss = {config.loss.label!r} has no ratio and no clip, but the weights move {b.updates} times per step: "
            f"all updates but the first are biased; use loss = 'clip', or one update per step"
        )


def _about_sizes(config: Config, b: Budget) -> Iterator[str]:
    tokens, at_once = config.update.tokens_per_micro_batch, config.rollout.max_rollouts_at_once
    if tokens < b.longest_row:
        yield (
            f"update.tokens_per_micro_batch = {tokens} is less than the longest row ({b.longest_row} tokens): each "
            f"such row is a micro-batch above the limit; use at least {b.longest_row}"
        )
    first, longest = config.update.max_trained_tokens, config.rollout.max_new_tokens
    if first is not None and first >= longest:
        yield (
            f"update.max_trained_tokens = {first} cuts nothing: no rollout has more than rollout.max_new_tokens = "
            f"{longest}; remove it"
        )
    most = max(b.rollouts, b.probe, config.evaluate.problems * config.evaluate.rollouts_per_prompt)
    chosen = "max_rollouts_at_once" in config.rollout.model_fields_set  # else it is the default
    if config.plan.use == "fixed" and chosen and at_once >= 4 * most:  # other sizes may sample more
        yield (f"rollout.max_rollouts_at_once = {at_once}, but at most {most} are sampled at once; {most} is enough")


def _about_learning_rate(config: Config) -> Iterator[str]:
    """A warning about a rate above those of configs/published; the bundled policies are small enough for it."""
    rate, model = config.optimizer.learning_rate, config.model
    if rate > HIGHEST_RATE and not is_bundled(model.path) and model.lora is None:
        yield (
            f"optimizer.learning_rate = {rate:g} trains all weights of {model.path}: published runs of 0.5B to 7B "
            f"parameters use 1e-6 to {HIGHEST_RATE:g}, and larger steps tend to destroy what a model has learned; "
            f"remove the key (default 1e-6), or train a model.lora, which works with about 1e-5"
        )


def _about_masters(config: Config) -> Iterator[str]:
    """A warning where bfloat16 weights are rounded from masters that begin in the middle of their rounding cells."""
    rate = config.optimizer.learning_rate
    if keeps_masters(config) and not config.optimizer.master_offset and rate <= LAGS:
        yield (
            f"optimizer.learning_rate = {rate:g} with model.dtype = 'bfloat16': the weights of a bfloat16 checkpoint "
            f"follow only a small part of the first updates at such a rate; set optimizer.master_offset = true, with "
            f"which they follow all of them (docs/models.md)"
        )


def _about_evaluation(config: Config, b: Budget) -> Iterator[str]:
    every = config.evaluate.every
    if every and b.evaluation > b.rollouts * every:
        yield (
            f"an evaluation samples {b.evaluation} rollouts, more than the {b.rollouts * every} of the {every} "
            f"training steps before it; set evaluate.every to {math.ceil(b.evaluation / b.rollouts)}, or lower "
            f"evaluate.problems"
        )


def _about_secrets(config: Config) -> Iterator[str]:
    keys = [key for key, _ in secret_keys(dump(config, secrets=True))]
    if keys:
        yield (
            f"{', '.join(keys)}: an option of this name is treated as a secret: no manifest, tracker or log gets its "
            f"value, so an evaluation or a resume from the run folder alone requires it again"
        )


def _about_ranks(config: Config, count: int) -> Iterator[str]:
    """Warnings about idle ranks, as one rank samples all rollouts of a prompt, and about a signal."""
    if count == 1:
        return
    prompts = config.rollout.prompts_per_step
    most = -(-prompts // count)
    if prompts < count:
        idle = count - prompts
        yield (
            f"rollout.prompts_per_step = {prompts} is fewer than the {count} ranks, and one rank samples a prompt: "
            f"{idle} {'ranks wait' if idle > 1 else 'rank waits'} in every step while others sample; use at least "
            f"{count}, or fewer ranks"
        )
    elif prompts % count and config.allocate.label == "uniform":
        share = (most * count - prompts) / (most * count)
        below, above = (most - 1) * count, most * count
        yield (
            f"rollout.prompts_per_step = {prompts} is divided among {count} ranks as {most} and {most - 1}: up to "
            f"{share:.0%} of the sampling time is spent waiting; use {below} or {above}"
        )
    if config.checkpoint.on_signal == "now":
        yield (
            f"checkpoint.on_signal = 'now' acts as 'step' on {count} ranks, which agree only between two steps: a "
            f"signal ends the run at the end of the current step"
        )
