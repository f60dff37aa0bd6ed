"""All alarms: symptoms, likely causes and the keys to change. docs/alarms.md and the texts of alarms come from here.

Where the numbers alone do not identify the cause, the likely causes are the field's experience with policy-gradient
methods on language models: entropy collapse (Cui et al. 2025, arXiv 2505.22617), prompts that are always or never
solved and truncation (Yu et al. 2025, DAPO, arXiv 2503.14476), length without gain (Liu et al. 2025, Dr. GRPO, arXiv
2503.20783), ratios and their clip (Schulman et al. 2017, arXiv 1707.06347), an engine that differs from the policy (Yao
et al. 2025).
"""

from __future__ import annotations

from winnow.alarms import learning, policy, rollouts
from winnow.alarms.alarm import ACCURACY, REWARD, Kind

_PROMPTS = ("group/count", "group/effective", "budget/prompts_skipped")
_REWARD = (REWARD, "reward/mean", "reward/std", *_PROMPTS)
_ACCURACY = (ACCURACY, "reward/accuracy")
_HELD_OUT = ("eval/accuracy_sampled", "eval/accuracy_sampled_sem")
_READABLE = ("outcome/unparsable", "budget/rollouts")

# Consequences of a policy that has lost its ability for any reason; its prompt, golds and limits are not the cause.
_OF_A_LOST_POLICY = (
    "all_flat", "nothing_trained", "constant_reward", "unparsable", "all_truncated", "length_explosion",
    "length_collapse", "entropy_collapse", "entropy_explosion", "kl_drift", "ratio_drift", "clip_fraction",
    "gradient_spike", "no_learning",
)  # fmt: skip

ALARMS: tuple[Kind, ...] = (
    Kind(
        name="all_flat",
        meaning="nearly all groups are flat: their rewards are all equal, so that a group baseline gives no gradient",
        cause="the prompts are too easy or too hard for this policy",
        keys=("task", "rollout.temperature", "rollout.rollouts_per_prompt", "rollout.dynamic_sampling_rounds"),
        limits=("steps", "flat_share"),
        reads=(
            "group/flat", "group/count", "group/all_correct", "group/all_wrong", "advantage/mean", "advantage/std",
            "reward/min", "reward/max", "critic/explained_variance", "budget/rollouts",
        ),
        rule=rollouts.all_flat,
    ),
    Kind(
        name="nothing_trained",
        meaning="steps in a row took no update, as no rollout that was kept had an advantage",
        cause="the prompts are too easy or too hard for this policy",
        keys=("task", "reward", "prompt.template", "rollout.max_new_tokens", "rollout.dynamic_sampling_rounds"),
        limits=("untrained_steps",),
        reads=(
            "budget/updates", "select/trained", "critic/updates", "policy/learning_rate", "group/flat", "group/count",
            "group/all_correct", "group/all_wrong", "outcome/unparsable", "outcome/failed", "rollout/truncated",
            "budget/rollouts",
        ),
        rule=rollouts.nothing_trained,
    ),
    Kind(
        name="constant_reward",
        meaning="every rollout earns the same reward",
        cause="the verifier reads the answer from another place than the prompt requests, golds are misread, the task "
        "is far too hard, or the reward ignores the answer",
        keys=("reward", "prompt.template", "rollout.stop", "rollout.max_new_tokens", "task"),
        limits=("steps",),
        reads=("reward/min", "reward/max", "reward/accuracy", *_READABLE),
        rule=rollouts.constant_reward,
        explains=("all_flat",),
    ),
    Kind(
        name="unparsable",
        meaning="nearly no rollout has an answer that the verifier could read",
        cause="the prompt does not request the format that the reward reads, or answers are cut off before their end",
        keys=("prompt.template", "reward", "rollout.stop", "rollout.max_new_tokens"),
        limits=("steps", "unparsable_share"),
        reads=_READABLE,
        rule=rollouts.unparsable,
    ),
    Kind(
        name="verifier_failures",
        meaning="verdicts fail: timeout, memory, crash; these rollouts are neither kept nor in any baseline",
        cause="the time or memory limit of a verdict is too low for some answers, the machine is overloaded, or the "
        "reward raises an exception on unusual text; the log of rollouts has the cause of each",
        keys=("verify.timeout_seconds", "verify.memory_mb", "verify.workers", "reward"),
        limits=("steps", "failed_share", "failed_verdicts"),
        reads=("outcome/failed", "outcome/failed/{cause}", "budget/rollouts"),
        rule=rollouts.verifier_failures,
    ),
    Kind(
        name="all_truncated",
        meaning="most rollouts are cut off at max_new_tokens, so that many never answer",
        cause="the limit is too low for this task, the policy has not learned to stop, or a stop text is missing",
        keys=("rollout.max_new_tokens", "rollout.stop", "prompt.template"),
        limits=("steps", "truncated_share"),
        reads=("rollout/truncated",),
        rule=rollouts.all_truncated,
    ),
    Kind(
        name="length_explosion",
        meaning="completions grow fast while the reward does not rise",
        cause="the weighting or the reward favours length, the policy repeats itself, or updates are too large",
        keys=("weighting", "reward", "optimizer.learning_rate", "rollout.max_new_tokens"),
        limits=("length_factor", "standard_errors"),
        reads=("rollout/length_mean", "rollout/truncated", *_REWARD),
        rule=rollouts.length_explosion,
    ),
    Kind(
        name="length_collapse",
        meaning="completions shrink fast while the reward does not rise",
        cause="the reward or the weighting favours short answers, or the policy guesses instead of reasoning",
        keys=("reward", "weighting", "optimizer.learning_rate"),
        limits=("length_factor", "standard_errors"),
        reads=("rollout/length_mean", "rollout/truncated", *_REWARD),
        rule=rollouts.length_collapse,
    ),
    Kind(
        name="entropy_collapse",
        meaning="the policy's entropy is near 0, or a small part of what it was at first, while many of its answers "
        "are wrong",
        cause="updates are too large or too many on the same rollouts, nothing rewards exploration, or the temperature "
        "is too low",
        keys=("optimizer.learning_rate", "update.epochs", "rollout.temperature", "terms", "loss"),
        limits=("steps", "entropy_floor"),
        reads=("policy/entropy", *_ACCURACY, *_PROMPTS),
        rule=policy.entropy_collapse,
    ),
    Kind(
        name="entropy_explosion",
        meaning="the policy's entropy is far above that of the first steps",
        cause="updates are too large, an entropy term is too strong, or the rewards are noise",
        keys=("optimizer.learning_rate", "terms", "rollout.temperature"),
        limits=("steps", "entropy_rise"),
        reads=("policy/entropy",),
        rule=policy.entropy_explosion,
    ),
    Kind(
        name="kl_drift",
        meaning="the policy is far from its reference",
        cause="the KL coefficient is too small for this learning rate, or the policy exploits the reward",
        keys=("terms", "advantage.kl_reward", "optimizer.learning_rate", "probe.outer_reset"),
        limits=("steps", "kl"),
        reads=policy.DIVERGENCES,
        rule=policy.kl_drift,
    ),
    Kind(
        name="ratio_drift",
        meaning="the policy moves far within a step: p_now / p_old is not 1 on average",
        cause="too many or too large updates on the same rollouts",
        keys=("optimizer.learning_rate", "update.epochs", "update.updates_per_step", "optimizer.max_grad_norm"),
        limits=("steps", "ratio"),
        reads=("policy/ratio_mean",),
        rule=policy.ratio_drift,
    ),
    Kind(
        name="clip_fraction",
        meaning="the clip removes the gradient of many tokens, so that many sampled tokens have no effect",
        cause="too many or too large updates on the same rollouts, or a clip that is too narrow for this loss",
        keys=("optimizer.learning_rate", "update.epochs", "update.updates_per_step", "loss"),
        limits=("steps", "clip_fraction"),
        reads=("policy/clip_fraction",),
        rule=policy.clip_fraction,
    ),
    Kind(
        name="gradient_spike",
        meaning="a gradient is many times larger than those before it",
        cause="a few rollouts with extreme advantages or ratios, or a learning rate that is too high; clipping limits "
        "the norm and does not change the direction",
        keys=("optimizer.max_grad_norm", "optimizer.learning_rate", "update.max_importance", "advantage"),
        limits=("gradient_factor",),
        reads=("policy/grad_norm", "advantage/mean", "advantage/std"),
        rule=policy.gradient_spike,
    ),
    Kind(
        name="not_finite",
        meaning="updates were skipped because their gradient was not finite",
        cause="a loss, a term or an advantage of your own computes NaN or infinity, or the policy is near overflow",
        keys=("optimizer.learning_rate", "loss", "advantage", "terms", "update.max_skipped"),
        limits=(),
        reads=("policy/not_finite_updates", "budget/updates", "select/trained", "policy/learning_rate"),
        rule=policy.not_finite,
    ),
    Kind(
        name="parity",
        meaning="the engine did not sample what is trained: its log-probs of the same tokens differ by more than its "
        "declared limits; every ratio and gradient is biased while this holds",
        cause="the engine did not load the newest weights, samples at another temperature, or computes in low "
        "precision",
        keys=("rollout.engine", "rollout.max_ratio_outside", "model.dtype", "update.max_importance"),
        limits=(),
        reads=(
            "policy/parity_alarm", "policy/logprob_gap_mean", "policy/logprob_gap_p999", "policy/logprob_gap_max",
            "policy/ratio_outside",
            "ranks/out_of_parity",
        ),
        rule=policy.parity,
    ),
    Kind(
        name="no_learning",
        meaning="after many steps the reward is the same as at first, and noise is too small to hide a gain",
        cause="the learning rate is too low, too few rollouts are trained on, or the reward does not depend on what "
        "the policy can change",
        keys=("optimizer.learning_rate", "select", "advantage", "update.updates_per_step", "reward", "task"),
        limits=("no_learning_steps", "no_learning_gain"),
        reads=(*_REWARD, *_ACCURACY, *_HELD_OUT),
        rule=learning.no_learning,
    ),
    Kind(
        name="sudden_drop",
        meaning="the reward falls within a few steps, held-out accuracy falls below its best, or hardly an answer is "
        "right or readable any more",
        cause="an update was too large, or the policy writes text that the verifier misreads; resume from an earlier "
        "checkpoint",
        keys=("optimizer.learning_rate", "optimizer.max_grad_norm", "update.epochs", "terms"),
        limits=("drop", "standard_errors"),
        reads=(*_REWARD, *_ACCURACY, *_READABLE, *_HELD_OUT),
        rule=learning.sudden_drop,
        explains=_OF_A_LOST_POLICY,
    ),
    Kind(
        name="reward_without_accuracy",
        meaning="the reward rises while fewer answers are right: the reward is exploited",
        cause="a part of the reward is easier to earn than a right answer, its weight is too large, or the verifier "
        "rewards text that is no answer; read the rollouts with the highest rewards",
        keys=("reward", "terms"),
        limits=("steps", "untrained_steps", "drop", "standard_errors"),
        reads=(*_REWARD, *_ACCURACY, "reward/part/{part}"),
        rule=learning.reward_without_accuracy,
        explains=(*_OF_A_LOST_POLICY, "sudden_drop"),
    ),
    Kind(
        name="oscillation",
        meaning="reward or held-out accuracy goes up and down instead of settling",
        cause="the learning rate is too high, or too few prompts decide an update",
        keys=("optimizer.learning_rate", "rollout.prompts_per_step", "update.updates_per_step", "optimizer.schedule"),
        limits=("swings", "drop", "standard_errors"),
        reads=(*_REWARD, *_HELD_OUT),
        rule=learning.oscillation,
    ),
    Kind(
        name="overfitting",
        meaning="training accuracy rises above held-out accuracy: the policy does not generalise",
        cause="the problems are too few and seen too often, or golds and answers leak through the prompt",
        keys=("task", "steps", "optimizer.learning_rate", "terms"),
        limits=("gap", "standard_errors"),
        reads=(*_ACCURACY, *_PROMPTS, *_HELD_OUT),
        rule=learning.overfitting,
    ),
    Kind(
        name="held_out_above_training",
        meaning="held-out accuracy is above training accuracy: the two do not measure the same",
        cause="held-out answers leak into the prompts or into the training data, the grader or the temperature of the "
        "evaluation differs, or the training problems are harder",
        keys=("task", "evaluate.split", "evaluate.temperature", "rollout.temperature", "reward"),
        limits=("gap", "standard_errors"),
        reads=(*_ACCURACY, *_PROMPTS, *_HELD_OUT),
        rule=learning.held_out_above_training,
    ),
    Kind(
        name="values_explain_nothing",
        meaning="values explain less of the returns than a constant would: advantages are noisier than without them",
        cause="the value model learns too fast (critic/loss grows) or too slowly (it hardly falls), or rewards are far "
        "larger than its clip",
        keys=("critic.optimizer.learning_rate", "critic.pretraining_steps", "critic.clip_range"),
        limits=("values_steps",),
        reads=("critic/explained_variance", "critic/updates", "critic/loss"),
        rule=policy.values_explain_nothing,
    ),
    Kind(
        name="values_untrained",
        meaning="a separate value model took no update",
        cause="its learning rate is too high, or rewards are of extreme size",
        keys=("critic.optimizer.learning_rate", "critic.optimizer.max_grad_norm"),
        limits=(),
        reads=("critic/updates", "budget/tokens_valued"),
        rule=policy.values_untrained,
    ),
)  # fmt: skip
NAMES = tuple(kind.name for kind in ALARMS)
