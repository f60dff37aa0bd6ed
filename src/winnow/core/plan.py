"""The plan: the next prompts, and how many rollouts each gets. The loop makes it before a step, or with
`rollout.ahead = 1` the step before does, and a step only reads it.

The sampler draws the prompts first (draw.py), once for all steps of a plan. An allocator declares the source of its
pass rates. With "none" and "history" it plans one step at a time, from the results of training. With "probe" it plans a
window of steps at once: all prompts of the window are sampled N' times with the present weights and verified, and their
gradient norms are computed. Then the budget of the whole window is allocated in one call (GVM, Yao et al. 2025, arXiv
2505.02391, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from winnow import ranks
from winnow.core.batches import first_tokens
from winnow.core.collect import Request, collect
from winnow.core.draw import draw
from winnow.core.members import Members
from winnow.core.metrics import completion_tokens, prompt_tokens
from winnow.core.run import Progress, Run
from winnow.core.tally import Clock
from winnow.records import FloatArray, Group, IntArray, Metrics, Prompt, PromptAndRollout, PromptStats
from winnow.state.history import History
from winnow.user_code import Requested


def plan(run: Run, progress: Progress, step: int) -> None:
    """Make sure that there is a plan for a step: its prompts, and the number of rollouts of each."""
    if progress.ahead.holds(step):
        return  # it was planned before it was sampled
    history, probes = progress.history, run.members.source == "probe"
    if probes and not starts_window(run, step) and _is_planned(run, history, step):
        return  # no plan inside a window: a resume was allowed to change a key on which the windows depend
    steps = window(run, step) if probes else range(step, step + 1)
    draw(run.members, history, run.prompts, steps)
    prompts = [prompt for s in steps for prompt in run.prompts.take(history.drawn(s))]
    if probes:
        run.logbook.write_between(step, probe(run, progress, steps, prompts))
    else:
        allocate(run.members, history, prompts, history.stats(prompts), steps=1)


def _is_planned(run: Run, history: History, step: int) -> bool:
    drawn = history.has_draw(step, run.config.rollout.prompts_per_step)
    return drawn and history.has_plan(run.prompts.take(history.drawn(step)))


def starts_window(run: Run, step: int) -> bool:
    """Whether a window starts at `step`. A window is `probe.every` steps of one epoch, and the last one of an epoch may
    be shorter, so that no prompt is in a window twice.
    """
    return (step % run.prompts.steps_per_epoch) % run.config.probe.every == 0


def window(run: Run, step: int) -> range:
    """The steps that the window starting at `step` plans."""
    left_in_epoch = run.prompts.steps_per_epoch - step % run.prompts.steps_per_epoch
    return range(step, step + min(run.config.probe.every, left_in_epoch))


def probe(run: Run, progress: Progress, steps: range, prompts: Sequence[Prompt]) -> Metrics:
    """Sample and verify the prompts of a window of steps, and plan it; returns metrics. No rollout of a probe is
    trained on.
    """
    if steps.start > 0 and run.config.probe.outer_reset != "none":  # the released GVM scripts restart each window
        with progress.clock.stopped():
            progress.saving.wait()  # the thread that writes a checkpoint reads the tensors that the reset changes
        run.learner.reset(run.config.probe.outer_reset)
    clock = Clock(progress.phases.begin, run.gauge())
    with clock("probe"):
        counts = [run.config.probe.rollouts_per_prompt] * len(prompts)
        seed, counter = (run.seed, "probe", steps.start), progress.phases.rollout_counter(sum(counts))
        request = Request(prompts, counts, run.sampling, seed=seed, on_rollout=counter)
        groups = collect(run.engine, run.verifiers, request)
        run.verifiers.check_step(groups)
        progress.history.record_probe(groups, prompt_gradient_norms(run, groups))
        planned = allocate(run.members, progress.history, prompts, progress.history.probed(prompts), steps=len(steps))
    return {**_describe(groups, planned), **clock.gauge.metrics(), "seconds/probe": clock.seconds["probe"]}


def prompt_gradient_norms(run: Run, groups: Sequence[Group]) -> FloatArray | None:
    """[G] the mean of `Learner.gradient_norms` over each group's correct rollouts, with the present weights.

    Only the first `update.max_trained_tokens` of a rollout count, as in training. None where the allocator reads no
    norms. 0 where no rollout is correct, NaN where none was verified.

    Yao et al. 2025, arXiv 2505.02391, Algorithm 2. The mean is over norms, as in the algorithm; Proposition 1 has the
    root of the mean square instead.
    """
    of, tokens = run.members.gradient_norm, run.config.update.max_trained_tokens
    if of == "none":
        return None
    correct = [
        [first_tokens(r, tokens) for r, right in zip(g.rollouts, g.correct, strict=True) if right] for g in groups
    ]
    sequences = [PromptAndRollout(g.prompt, r) for g, rollouts in zip(groups, correct, strict=True) for r in rollouts]
    counts = np.array([len(rollouts) for rollouts in correct], dtype=np.int64)
    owners = np.repeat(np.arange(len(groups)), counts)
    totals = np.bincount(owners, weights=run.learner.gradient_norms(sequences, of=of), minlength=len(groups))
    verified = np.array([group.valid.any() for group in groups], dtype=np.bool_)
    return np.where(verified, totals / np.maximum(counts, 1), np.nan)


def allocate(
    members: Members, history: History, prompts: Sequence[Prompt], stats: PromptStats, *, steps: int
) -> IntArray:
    """[G] counts of rollouts for the prompts of `steps` steps, also recorded in the history.

    Raises ConfigError if the allocator does not return counts within the budget.
    """
    rollout = members.config.rollout
    budget = steps * rollout.prompts_per_step * rollout.rollouts_per_prompt
    counts = check_counts(members.allocate(stats, budget), len(prompts), budget)
    ranks.check_same("plan of counts", lambda: str(counts.tolist()), ranks.SAME_RESULTS)
    history.record_plan(prompts, counts, stats.pass_rate)
    return counts


def check_counts(answer: object, prompts: int, budget: int) -> IntArray:
    """[G] int64 counts from the result of an allocator.

    Their sum may be below the budget, as an allocator may have a maximum per prompt. It may not be above the budget,
    nor 0 for a budget of 1 or more. Raises ConfigError.
    """

    def fault(counts: IntArray) -> str | None:
        if counts.min(initial=0) < 0:
            return f"a count of {counts.min()}"
        return None if min(1, budget) <= counts.sum() <= budget else f"{counts.sum()} rollouts in all"

    requested = Requested(
        "the allocator",
        f"{prompts} prompts and a budget of {budget}",
        "return one integer per prompt, 0 or more, that add up to the budget (or to less, if the allocator has a "
        "maximum)",
        "allocate",
    )
    return requested.integers(answer, prompts, fault)


def _describe(groups: Sequence[Group], planned: IntArray) -> Metrics:
    return {
        "budget/probe_rollouts": float(sum(len(g.rollouts) for g in groups)),
        "budget/probe_tokens": completion_tokens(groups),
        "budget/probe_prompt_tokens": prompt_tokens(groups),
        "plan/count_min": float(np.min(planned)),
        "plan/count_max": float(np.max(planned)),
        "plan/unsolved": float(sum(not g.correct.any() for g in groups)),
        "plan/timed_out": float(sum(int(g.timed_out.sum()) for g in groups)),
    }
