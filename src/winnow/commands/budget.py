"""What a configuration will cost, by arithmetic alone, and which key buys nothing. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.algos.selection import chain, kept_size
from winnow.config import Config, Member
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.registry import Entry, bind, resolve
from winnow.report.text import compact, percent
from winnow.seeds import Rng


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The counts of one step, and of the evaluations around it."""

    prompts: int
    rollouts: int  # of the step
    kept: int  # of each prompt, at most
    updates: int  # optimizer updates of the step
    rows: int  # of the largest update, at most
    longest_row: int  # tokens, prompt included
    rows_at_once: int  # the longest ones that one micro-batch takes
    probe: int  # rollouts of one probe, not trained on; 0 where the allocator asks for none
    evaluation: int  # rollouts of one evaluation
    evaluations: int  # over the run

    @property
    def micro_batches(self) -> int:
        """Of the largest update, when every row is as long as can be."""
        return math.ceil(self.rows / self.rows_at_once)


def budget(config: Config, base: Path) -> Budget:
    """The arithmetic of a configuration whose members have been resolved."""
    rollout, update, evaluate = config.rollout, config.update, config.evaluate
    kept = _kept(config, base)
    probes = resolve("allocator", config.allocate.use, base=base).traits.get("source") == "probe"
    longest = config.prompt.max_prompt_tokens + rollout.max_new_tokens
    return Budget(
        prompts=rollout.prompts_per_step,
        rollouts=rollout.prompts_per_step * rollout.rollouts_per_prompt,
        kept=kept,
        updates=update.epochs * update.updates_per_step,
        rows=math.ceil(rollout.prompts_per_step / update.updates_per_step) * kept,
        longest_row=longest,
        rows_at_once=max(1, update.tokens_per_micro_batch // longest),
        probe=config.probe.every * rollout.prompts_per_step * config.probe.rollouts_per_prompt if probes else 0,
        evaluation=evaluate.problems * (evaluate.rollouts_per_prompt + evaluate.greedy),
        evaluations=2 + ((config.steps - 1) // evaluate.every if evaluate.every else 0),
    )


def describe(config: Config, b: Budget) -> Iterator[str]:
    """The budget in words, in the order in which a step spends it.

    Limits are limits only where every prompt gets the same number of rollouts; else they are averages.
    """
    uniform = config.allocate.label == "uniform"
    yield from _about_probe(config, b)
    yield _about_rollouts(config, b, uniform)
    bound = "at most" if uniform else "on average"
    yield f"kept         {b.kept} per prompt = {b.prompts * b.kept} rows per step, {bound}"
    yield _per_step(config, b, f"at most {b.rows} rows" if uniform else f"{b.rows} rows on average")
    yield (
        f"micro-batch  {config.update.tokens_per_micro_batch} tokens: {b.rows_at_once} rows of {b.longest_row} "
        f"(the longest), so {'at most' if uniform else 'about'} {b.micro_batches} per update"
    )
    yield f"evaluation   {b.evaluation} rollouts x {b.evaluations} times; training samples {b.rollouts * config.steps}"


def _about_probe(config: Config, b: Budget) -> Iterator[str]:
    if b.probe:
        probe, rollout = config.probe, config.rollout
        windows = math.ceil(config.steps / probe.every)  # the last one is probed whole, whatever the run still needs
        share = windows * b.probe / (config.steps * b.rollouts)
        yield (
            f"probe        {b.prompts * probe.every} prompts x {probe.rollouts_per_prompt} = {b.probe} rollouts per "
            f"window of {probe.every} steps, {percent(share)} on top of the run's own; "
            f"up to {compact(b.probe * rollout.max_new_tokens)} tokens"
        )


def _about_rollouts(config: Config, b: Budget, uniform: bool) -> str:
    rollout = config.rollout
    each = "" if uniform else f" on average, as {config.allocate.label} decides"
    refills = rollout.dynamic_sampling_rounds
    more = f", and at most as many again in each of {refills} refills" if refills else ""
    return (
        f"rollouts     {b.prompts} prompts x {rollout.rollouts_per_prompt}{each} = {b.rollouts} per step{more}, "
        f"up to {compact(b.rollouts * (1 + refills) * rollout.max_new_tokens)} tokens"
    )


def _per_step(config: Config, b: Budget, rows: str) -> str:
    update = config.update
    return (
        f"updates      {update.epochs} epoch{'s' * (update.epochs > 1)} x {update.updates_per_step} = {b.updates} per "
        f"step, each {_per_update(config, b)} prompts and {rows}; {b.updates * config.steps} in the run"
    )


def advice(config: Config, b: Budget, base: Path) -> Iterator[str]:
    """One sentence per key that wastes compute, with the number that would fit."""
    yield from _about_selection(config, b, base)
    yield from _about_shares(config, b, base)
    yield from _about_updates(config, b, base)
    yield from _about_sizes(config, b)
    yield from _about_precision(config)
    yield from _about_evaluation(config, b)


def _about_selection(config: Config, b: Budget, base: Path) -> Iterator[str]:
    count = config.rollout.rollouts_per_prompt
    if b.kept >= count > 1 and any(_fixed_size(member, base) for member in config.select):
        yield (
            f"select keeps all {count} rollouts of a prompt: nothing is dropped; lower keep_per_prompt to "
            f"{max(2, count // 4)}, raise rollout.rollouts_per_prompt, or say select = 'all'"
        )
    advantage = resolve("advantage", config.advantage.use, base=base)
    if b.kept == 1 and advantage.traits.get("baseline") == "group" and _over_kept(config.advantage, advantage):
        yield (
            f"one rollout is kept per prompt, and {advantage.name!r} compares rollouts of one prompt: every advantage "
            f"is 0 and nothing is learned; keep at least 2"
        )


def _about_shares(config: Config, b: Budget, base: Path) -> Iterator[str]:
    """Neither an allocator nor a selector may change a prompt's share of the objective."""
    weighting = resolve("weighting", config.weighting.use, base=base)
    if weighting.traits.get("total") == "prompts" and _drops_correct(config, base):
        yield (
            f"weighting = {weighting.name!r} counts a prompt's rollouts before select drops some of the correct ones, "
            f"and the gradient shrinks by their share; use select = 'all', or weighting = 'prompt'"
        )
    if config.allocate.label != "uniform" and weighting.traits.get("share") != "equal":
        yield (
            f"allocate = {config.allocate.label!r} gives prompts unequal numbers of rollouts, and weighting = "
            f"{weighting.name!r} then gives them unequal shares of the objective; use 'prompt', or for 0/1 credit "
            f"'unbiased' or 'accepted'"
        )


def _drops_correct(config: Config, base: Path) -> bool:
    """Whether the selectors drop a correct rollout of a group that is all correct, or half of it.

    One that drops only what has no credit, as RAFT's filter does, changes no share.
    """
    count = config.rollout.rollouts_per_prompt
    select = chain([bind(resolve("selector", m.use, base=base), m.options, key="select") for m in config.select])
    for correct in (count, math.ceil(count / 2)):
        group = _group(correct, count)
        if not select(group, Rng(("check",)))[:correct].all():
            return True
    return False


def _group(correct: int, count: int) -> Group:
    """Rollouts that say nothing, of which the first are correct."""
    prompt = Prompt(id="check", tokens=np.zeros(0, np.int64), text="", answer=None, task="")
    rollouts = [
        Rollout(index=i, tokens=np.zeros(1, np.int64), logprobs=np.zeros(1), text="", finish="stop", version=0)
        for i in range(count)
    ]
    outcomes = [
        Outcome(reward=float(i < correct), correct=i < correct, kind="correct" if i < correct else "wrong")
        for i in range(count)
    ]
    return Group(prompt=prompt, rollouts=tuple(rollouts), outcomes=tuple(outcomes))


def _fixed_size(member: Member, base: Path) -> bool:
    return "keep_per_prompt" in resolve("selector", member.use, base=base).options


def _over_kept(member: Member, entry: Entry) -> bool:
    option = entry.options.get("statistics")
    return option is None or member.options.get("statistics", option.default) == "kept"


def _about_updates(config: Config, b: Budget, base: Path) -> Iterator[str]:
    cuts, prompts = config.update.updates_per_step, b.prompts
    if cuts > prompts:
        yield (
            f"update.updates_per_step = {cuts} > {prompts} prompts: whole prompts are dealt to updates, so "
            f"{cuts - prompts} stay empty; use at most {prompts}"
        )
    elif prompts % cuts:
        fitting = [n for n in range(1, prompts + 1) if prompts % n == 0]
        below, above = max(n for n in fitting if n < cuts), min(n for n in fitting if n > cuts)
        yield (
            f"update.updates_per_step = {cuts} deals {prompts} prompts unevenly, {_per_update(config, b)} per update; "
            f"use {below} or {above}"
        )
    if b.updates > 1 and resolve("loss", config.loss.use, base=base).name == "reinforce":
        yield (
            f"loss = {config.loss.label!r} has no ratio and no clip, but the weights move {b.updates} times per step: "
            f"all updates but the first are biased; use loss = 'clip', or one update per step"
        )


def _about_sizes(config: Config, b: Budget) -> Iterator[str]:
    tokens, at_once = config.update.tokens_per_micro_batch, config.rollout.max_rollouts_at_once
    if tokens < b.longest_row:
        yield (
            f"update.tokens_per_micro_batch = {tokens} is less than one longest row ({b.longest_row} tokens): such "
            f"rows run alone and above the limit; use at least {b.longest_row}"
        )
    most = max(b.rollouts, b.probe, config.evaluate.problems * config.evaluate.rollouts_per_prompt)
    if at_once >= 4 * most:
        yield (
            f"rollout.max_rollouts_at_once = {at_once}, but at most {most} are ever sampled at once; {most} is enough"
        )


def _about_precision(config: Config) -> Iterator[str]:
    if config.model.dtype == "bfloat16" and config.model.lora is None:
        yield (
            "model.dtype = 'bfloat16' trains weights of 8 significant bits: most small AdamW updates are rounded away "
            "(two at a learning rate of 1e-5 changed 0.6% of the parameters); use 'float32', or train a model.lora"
        )


def _about_evaluation(config: Config, b: Budget) -> Iterator[str]:
    every = config.evaluate.every
    if every and b.evaluation > b.rollouts * every:
        yield (
            f"an evaluation samples {b.evaluation} rollouts, more than the {b.rollouts * every} of the {every} "
            f"training steps before it; set evaluate.every to {math.ceil(b.evaluation / b.rollouts)}, or lower "
            f"evaluate.problems"
        )


def _per_update(config: Config, b: Budget) -> str:
    few, more = divmod(b.prompts, config.update.updates_per_step)
    return f"{few + 1} or {few}" if more else str(few)


def _kept(config: Config, base: Path) -> int:
    """What the chain of selectors leaves of one prompt; one that does not say counts as keeping all."""
    left = config.rollout.rollouts_per_prompt
    for member in config.select:
        option = resolve("selector", member.use, base=base).options.get("keep_per_prompt")
        if option is not None:
            left = kept_size(member.options.get("keep_per_prompt", option.default), left)
    return left
