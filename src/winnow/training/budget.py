"""How many rollouts, sequences and updates a configuration results in: arithmetic, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from winnow.algos.selection import kept_in_chunks, kept_size
from winnow.config import Config, trained_tokens
from winnow.training.members import Members


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The counts of one step, and of the evaluations around it."""

    prompts: int
    rollouts: int  # per step
    kept: int  # rollouts kept per prompt, at most
    updates: int  # optimizer updates per step
    rows: int  # sequences in the largest update, at most
    longest_row: int  # tokens of the longest prompt and of the longest trained completion
    rows_at_once: int  # longest rows that fit into one micro-batch
    probe: int  # rollouts per probe, not trained on; 0 without one
    evaluation: int  # rollouts per evaluation
    evaluations: int  # in the run; the maximum where `every_minutes` decides

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the largest update when every row has the longest length."""
        return math.ceil(self.rows / self.rows_at_once)


def budget(members: Members) -> Budget:
    """The counts of a configuration."""
    config = members.config
    rollout, update, evaluate = config.rollout, config.update, config.evaluate
    kept, probes = _kept(members), members.source == "probe"
    longest = config.prompt.max_prompt_tokens + trained_tokens(config)
    return Budget(
        prompts=rollout.prompts_per_step,
        rollouts=rollout.prompts_per_step * rollout.rollouts_per_prompt,
        kept=kept,
        updates=update.epochs * update.updates_per_step,
        rows=math.ceil(rollout.prompts_per_step / update.updates_per_step) * kept,
        longest_row=longest,
        rows_at_once=max(1, update.tokens_per_micro_batch // longest),
        probe=config.probe.every * rollout.prompts_per_step * config.probe.rollouts_per_prompt if probes else 0,
        evaluation=(1 + len(evaluate.tasks)) * evaluate.problems * (evaluate.rollouts_per_prompt + evaluate.greedy),
        evaluations=2 + min(config.steps - 1, _evaluations_on_time(config)),
    )


def per_update(config: Config, b: Budget) -> str:
    """Prompts per optimizer update as text: "16", or "11 or 10"."""
    few, more = divmod(b.prompts, config.update.updates_per_step)
    return f"{few + 1} or {few}" if more else str(few)


def _kept(members: Members) -> int:
    """Rollouts that the selectors keep, at most, of a prompt with `rollouts_per_prompt` rollouts. A selector without
    `keep_per_prompt` counts as keeping all.

    How many rollouts an earlier selector left in each chunk is unknown, so every chunk counts as full. The result is at
    most the number of rollouts that earlier selectors left.
    """
    left = n = members.config.rollout.rollouts_per_prompt
    for selector, section in zip(members.selectors, members.config.select, strict=True):
        keep, chunk = selector.options.get("keep_per_prompt"), section.chunk
        if keep is not None:
            left = kept_size(keep, left) if chunk is None else min(left, kept_in_chunks(keep, n, chunk))
    return left


def _evaluations_on_time(config: Config) -> int:
    """The most evaluations between the first step and the last.

    With `every_minutes` and without `max_hours`, nothing but the number of steps limits them: one before every step.
    """
    every, minutes = config.evaluate.every, config.evaluate.every_minutes
    by_steps = (config.steps - 1) // every if every else 0
    if not minutes:
        return by_steps
    return by_steps + math.ceil(60 * config.max_hours / minutes) - 1 if config.max_hours else config.steps
