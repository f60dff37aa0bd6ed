"""The notices of a run between two steps: where it resumes, a step without an update, an engine out of parity, values
that explain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from winnow.errors import UpdateError
from winnow.records import StepReport
from winnow.state.checkpoint import Checkpoint
from winnow.state.logbook import METRICS
from winnow.state.run_folder import RunFolder
from winnow.training.build import Run
from winnow.training.step_metrics import RATIOS
from winnow.training.step_values import is_pretraining

LEAST_EXPLAINED = 0.0  # of the returns' variance: what a constant explains
STEPS_BELOW = 20  # in a row, until it is told


def beginning(folder: RunFolder, resume: bool, saved: Checkpoint | None) -> tuple[str, ...]:
    """Notices about where a run resumes, or starts again."""
    if saved is not None:
        return saved.notices
    if resume:
        return ("there is no checkpoint yet: the run starts again from its first step",)
    if (folder.path / METRICS).exists():
        return ("an earlier launch in this folder ended before its first step was done: what it had logged is removed",)
    return ()


def check_skipped(run: Run, step: int) -> None:
    """Raise UpdateError once more updates in a row than `update.max_skipped` could not be taken."""
    limit, skipped = run.config.update.max_skipped, run.learner.not_finite
    if limit and run.critic is not None and run.critic.not_finite >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the value model's last {run.critic.not_finite} updates were not finite, "
            f"and none of these was taken (update.max_skipped = {limit}); lower critic.optimizer.learning_rate or look "
            f"for rewards of extreme size, and go on from an earlier checkpoint"
        )
    if limit and skipped >= limit:
        raise UpdateError(
            f"step {step}: the gradients of the last {skipped} updates were not finite, and none of these was taken "
            f"(update.max_skipped = {limit}); the weights are those before them. Where a loss, a term or an advantage "
            f"of your own computes NaN or infinity, mend it; else the policy is near overflow: lower "
            f"optimizer.learning_rate or look for rewards of extreme size, and go on from an earlier checkpoint"
        )


@dataclass
class StepNotices:
    """Notices about a run's steps. An engine out of parity is reported once, until it is in parity again, and so are
    values that explain less than a constant.
    """

    run: Run
    in_parity: bool = True
    steps_below: int = 0  # in a row, in which the values explained less than a constant

    def of(self, report: StepReport) -> Iterator[str]:
        """The notices about this step."""
        pretraining = is_pretraining(self.run, report.step)
        if not pretraining and (text := silence(report)) is not None:
            yield text
        alarm = report.metrics.get("policy/parity_alarm")  # absent where nothing was trained
        if alarm and self.in_parity:
            yield out_of_parity(self.run, report)
        if alarm is not None:
            self.in_parity = not alarm
        if (text := value_model_silence(report)) is not None:
            yield text
        if pretraining and not is_pretraining(self.run, report.step + 1):
            yield pretrained(report)
        if not pretraining:
            yield from self._of_values(report)

    def _of_values(self, report: StepReport) -> Iterator[str]:
        """A step whose returns are all alike says nothing of the values (NaN)."""
        explained = report.metrics.get("critic/explained_variance", math.nan)
        if explained >= LEAST_EXPLAINED:
            self.steps_below = 0
        elif explained < LEAST_EXPLAINED:
            self.steps_below += 1
            if self.steps_below == STEPS_BELOW:
                yield explains_nothing(self.run, report)


def silence(report: StepReport) -> str | None:
    """Why no update was taken in a step; None where one was."""
    m = report.metrics
    if m["budget/updates"] > 0:
        return None
    if m["select/trained"] > 0:
        return f"step {report.step}: no update was taken: the gradient was not finite; is the learning rate too high?"
    if m["group/count"] == 0:
        return f"step {report.step}: no update was taken: the plan gave none of its prompts a rollout"
    flat, right, wrong = (int(m[f"group/{name}"]) for name in ("flat", "all_correct", "all_wrong"))
    return (
        f"step {report.step}: nothing to learn from, no update was taken: {flat} of {int(m['group/count'])} groups "
        f"are flat ({right} all correct, {wrong} all wrong; {int(m['outcome/unparsable'])} rollouts without a "
        f"readable answer, {m.get('rollout/truncated', 0.0):.0%} cut off at max_new_tokens, "
        f"{int(m['outcome/failed'])} verifier failures)"
    )


def out_of_parity(run: Run, report: StepReport) -> str:
    """That the engine did not sample what was trained, and how far it was from it."""
    m, declared, config = report.metrics, run.engine.logprob_tolerance, run.config.rollout
    of_rank = f" of rank {m['ranks/out_of_parity']:.0f}" if "ranks/out_of_parity" in m else ""
    return (
        f"step {report.step}: the engine {config.engine.label!r}{of_rank} did not sample what is trained: of the same "
        f"tokens its log-probs and the policy's differ by {m['policy/logprob_gap_mean']:.2g} on average (it "
        f"declares {declared.mean:.2g}), by {m['policy/logprob_gap_p999']:.2g} or more in one of a thousand "
        f"(it declares {declared.tail:.2g}) and by {m['policy/logprob_gap_max']:.2g} at most, and "
        f"{m['policy/ratio_outside']:.1%} of the ratios lie outside [{RATIOS[0]}, {RATIOS[1]}] (limit "
        f"{config.max_ratio_outside:.1%}). It says that it sampled with the weights of version {report.step}. "
        f"Look for weights that it did not take over, another temperature, or reduced precision; until "
        f"policy/parity_alarm is 0 again, every ratio and gradient is biased"
    )


def value_model_silence(report: StepReport) -> str | None:
    """Why a value model of its own took no update in a step; None where it took one, or there is none."""
    m = report.metrics
    if m.get("critic/updates") != 0:
        return None
    if m.get("budget/tokens_valued", 0.0) > 0:
        why = "the gradient was not finite; is critic.optimizer.learning_rate too high?"
    else:
        why = "there was no rollout for it to read; are all verdicts failed, or none kept (critic.train_on)?"
    return f"step {report.step}: the value model took no update: {why}"


def pretrained(report: StepReport) -> str:
    """That the policy is no longer held, and what its value model knows by now."""
    said = f"step {report.step}: critic.pretraining_steps are over: the policy learns from step {report.step + 1} on"
    explained = report.metrics.get("critic/explained_variance", math.nan)
    if math.isnan(explained):
        return said
    return (
        f"{said}; before its last update the value model explained {explained:.3g} of the returns' variance (1: all, "
        f"0: no more than a constant)"
    )


def explains_nothing(run: Run, report: StepReport) -> str:
    """That values have long been worse than a constant, and the keys that are likely causes."""
    explained, critic = report.metrics["critic/explained_variance"], run.config.critic
    said = (
        f"step {report.step}: for {STEPS_BELOW} steps the values have explained less of the returns than a constant "
        f"would (critic/explained_variance is {explained:.3g}), so that advantages are noisier than without them. "
    )
    if critic is None:
        return said + "Look at what the function critic returns: the reward that is expected before each token"
    clip = f"critic.clip_range ({critic.clip_range:g}), which is too small for rewards that are much larger"
    if critic.form == "shared":
        return said + (
            f"Look at critic.coefficient ({critic.coefficient:g}) and optimizer.learning_rate "
            f"({run.config.optimizer.learning_rate:g}), by which they learn, and at {clip}"
        )
    return said + (
        f"Look at critic.optimizer.learning_rate ({critic.optimizer.learning_rate:g}), too high where critic/loss "
        f"grows, too low where it hardly falls; at critic.pretraining_steps ({critic.pretraining_steps}), in which "
        f"they learn before the policy does; and at {clip}"
    )
