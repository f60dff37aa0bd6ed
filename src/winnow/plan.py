"""How many rollouts the coming step's prompts get: the allocator is asked, and its answer goes into the history."""

from __future__ import annotations

from winnow.build import Run


def plan(run: Run, step: int) -> None:
    """Write the plan that `train_step` will read: prompts_per_step x rollouts_per_prompt rollouts in all."""
    prompts = run.prompts.take(step)
    stats = run.history.stats(prompts)
    budget = len(prompts) * run.config.rollout.rollouts_per_prompt
    run.history.record_plan(prompts, run.allocate(stats, budget), stats.pass_rate)
