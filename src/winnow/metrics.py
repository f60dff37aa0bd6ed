"""Every number that a run writes, with its meaning. Writing a metric that is not listed here raises KeyError.

Names with `{...}` are patterns: `outcome/failed/{cause}` matches `outcome/failed/timeout`. Means over rollouts are
over all N verified rollouts of every group unless the text contains "kept".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

_EVALUATION: dict[str, str] = {
    "accuracy_sampled": "mean share of correct samples over the held-out problems",
    "accuracy_sampled_sem": "its standard error over problems",
    "accuracy_greedy": "share of held-out problems answered correctly at temperature 0",
    "formatted": "share of sampled rollouts in the right format, mean over problems: the reward's part `format` is at "
    "least 1 or, without such a part, an answer could be read",
    "correct_and_formatted": "share of sampled rollouts that are correct and in the right format; mean over problems",
    "pass_at_{k}": "unbiased estimate of the chance that at least one of k samples is correct",
    "maj_at_{k}": "expected score of the most frequent answer of k samples, a tie counting by its right share; absent "
    "where the reward does not return the answers",
    "reward_mean": "mean reward of the sampled evaluation",
    "part/{part}": "mean of one named part of the reward in the sampled evaluation, before its weight",
    "length_mean": "mean number of tokens that the policy sampled, over the rollouts of the sampled evaluation",
    "truncated": "share of sampled evaluation rollouts that hit max_new_tokens",
    "failed": "evaluation rollouts whose verifier failed; they are omitted from the means",
    "timed_out": "evaluation rollouts, greedy ones included, whose outcome depends on a wall-clock limit, as for "
    "outcome/timed_out",
    "seconds": "duration of the evaluation in seconds",
}

METRICS: dict[str, str] = {
    "reward/mean": "mean reward of all verified rollouts, kept or not",
    "reward/std": "standard deviation of those rewards (ddof 0)",
    "reward/min": "smallest reward",
    "reward/max": "largest reward",
    "reward/accuracy": "share of verified rollouts that are correct",
    "reward/mean_of_prompts": "mean over prompts of the mean reward of a prompt's verified rollouts: each prompt has "
    "the same weight, whatever its number of rollouts",
    "reward/mean_of_prompts_sem": "standard error of that mean over the prompts of the step; absent with one prompt",
    "reward/accuracy_of_prompts": "mean over prompts of the share of a prompt's verified rollouts that are correct",
    "reward/part/{part}": "mean of one named part of the reward, before its weight",
    "outcome/correct": "rollouts whose answer is correct",
    "outcome/wrong": "rollouts whose answer is wrong",
    "outcome/unparsable": "rollouts without an answer that the verifier could read",
    "outcome/failed": "rollouts whose verifier failed; they are neither kept nor part of a baseline",
    "outcome/failed/{cause}": "failed rollouts by cause: timeout, memory, crash, sandbox, raised, malformed",
    "outcome/cut": "rollouts that the rule `cut` ended while they were sampled; they have no verdict, and are neither "
    "kept nor part of a baseline, a pass rate or a share of failures; absent where there is none",
    "outcome/timed_out": "rollouts whose outcome depends on a wall-clock limit: failed(timeout), and programs that "
    "`code_tests` stopped by the clock; where it is not 0 the machine's load may have changed the step",
    "group/count": "groups sampled",
    "group/effective": "number of groups of equal size whose mean reward would be equally noisy: (sum n)^2 / sum n^2 "
    "over the n verified rollouts of each group (Kish 1965, Survey Sampling)",
    "group/flat": "groups whose verified rewards are all equal: with a group baseline their advantages are 0",
    "group/all_correct": "flat groups in which every rollout is correct: too easy",
    "group/all_wrong": "flat groups in which no rollout is correct: too hard",
    "rollout/length_mean": "mean number of tokens that the policy sampled, the stop token included",
    "rollout/length_max": "largest number of tokens that the policy sampled in a rollout",
    "rollout/truncated": "share of rollouts that hit max_new_tokens",
    "select/kept": "rollouts kept for training",
    "select/trained": "kept rollouts that the policy is trained on: all with a term, else those whose advantage is not "
    "zero",
    "advantage/mean": "mean advantage of kept rollouts",
    "advantage/std": "standard deviation of the advantages of kept rollouts (ddof 0)",
    "reward/kl": "mean log(p / p_reference) of the tokens whose reward advantage.kl_reward changed",
    "critic/loss": "mean value loss over the tokens of the value model's updates, before its coefficient",
    "critic/explained_variance": "1 - Var(return - value) / Var(return) over the tokens that the value model read, "
    "with its values before the update and Monte-Carlo returns: 1 for exact values, 0 for values no better than a "
    "constant",
    "critic/value_mean": "mean value of those tokens",
    "critic/return_mean": "mean of the target returns of those values",
    "critic/return_std": "standard deviation of these returns (ddof 0)",
    "critic/clip_fraction": "share of tokens at which the clip of the value loss removed the gradient",
    "critic/grad_norm": "gradient norm of a separate value model before clipping, mean over its updates",
    "critic/learning_rate": "its learning rate at the step's last update",
    "critic/updates": "its optimizer updates",
    "critic/skipped_updates": "its updates that were skipped because there was no sequence or a gradient not finite",
    "policy/loss": "the optimised scalar, summed over a batch, mean over the step's optimizer updates",
    "policy/entropy": "mean of -log p of the sampled tokens: an unbiased estimate of the policy's entropy in nats",
    "policy/ratio_mean": "mean of p_now / p_old over trained tokens",
    "policy/ratio_max": "largest p_now / p_old over trained tokens",
    "policy/clip_fraction": "share of trained tokens at which the clip acted (for `clip` and related losses: removed "
    "the gradient)",
    "loss/{name}": "mean of a term, or of a loss's own diagnostic, over trained tokens, before its coefficient",
    "policy/grad_norm": "gradient norm before clipping, mean over the step's updates",
    "policy/gradient_along": "inner product of an update's gradient, after clipping, with AdamW's mean of the earlier "
    "ones, mean over the step's updates from the second of the run on; absent, as the next one and plan/rollouts, "
    'plan/kept and plan/prompts, unless plan.use = "auto"',
    "policy/gradient_square": "squared norm of those gradients, mean over the same updates",
    "policy/learning_rate": "learning rate of the step's last update",
    "policy/move_followed": "how far the weights in use have followed the optimizer since the start: the length of "
    "their move along the exact one, as a share of it; from one element in 64, and for bfloat16 weights alone",
    "policy/move_noise": "squared length of the rest of their move, over the squared length of the exact move",
    "critic/move_followed": "policy/move_followed of a separate value model",
    "critic/move_noise": "policy/move_noise of a separate value model",
    "policy/logprob_gap_mean": "mean |engine log-prob - policy log-prob| of the trained tokens at the step's weights",
    "policy/logprob_gap_p999": "99.9th percentile of those gaps (of fewer than 3,000 tokens: the third largest)",
    "policy/logprob_gap_max": "largest of those gaps; it grows with the number of tokens, so no alarm uses it",
    "policy/ratio_outside": "share of those tokens whose p_policy / p_engine is outside [0.8, 1.25]",
    "policy/parity_alarm": "1 when engine and policy disagree: policy/logprob_gap_mean or _p999 above the engine's "
    "declared tolerance, or policy/ratio_outside above rollout.max_ratio_outside by more than 5 standard errors; else "
    "0",
    "policy/mismatch_kl": "mean of rho - 1 - log rho over those tokens, rho = p_policy / p_engine: an estimate of "
    "KL(engine || policy), at the same version of the weights",
    "policy/effective_sample_size": "(sum w)^2 / (n sum w^2) over the n trained rollouts, w = product of rho over a "
    "rollout's trained tokens: 1 where the engine samples what is trained, 1 / n where one rollout has all weight",
    "policy/engine_lag": "mean over the trained rollouts of the sum of log rho, each token with the sign of its "
    "advantage, in nats: it grows where the engine does not follow the policy's updates",
    "policy/engine_lag_sem": "its standard error over rollouts",
    "policy/staleness_gap_mean": "with rollout.ahead = 1: mean |engine log-prob - policy log-prob| of the trained "
    "tokens, before the first update, under weights that are one step apart; the mismatch is then measured on 32 named "
    "rollouts beside each evaluation",
    "policy/staleness_gap_p999": "99.9th percentile of those gaps",
    "policy/staleness_ratio_outside": "share of those tokens whose p_policy / p_engine is outside [0.8, 1.25]",
    "policy/staleness_kl": "mean of rho - 1 - log rho over those tokens, as for policy/mismatch_kl",
    "policy/staleness_sample_size": "the effective sample size of the trained rollouts under their staleness, as for "
    "policy/effective_sample_size",
    "correction/importance_mean": "mean factor with which the correction multiplied a trained token's loss; absent, as "
    "all correction/..., without a correction",
    "correction/tokens_masked": "share of the trained tokens whose importance it set to 0, over all updates",
    "correction/tokens_truncated": "share of the trained tokens whose importance it lowered to its bound",
    "correction/rollouts_masked": "share of the rollouts with a masked token",
    "correction/rollouts_truncated": "share of the rollouts with a truncated token",
    "policy/skipped_updates": "optimizer updates skipped because there was no sequence or the gradient was not finite",
    "policy/not_finite_updates": "skipped updates whose gradient was not finite",
    "alarm/{name}": "1 where this alarm holds at the step; absent where it does not",
    "environment/turns_mean": "mean number of the policy's turns in a rollout; absent, as all environment/..., without "
    "an environment",
    "environment/one_turn": "share of the rollouts that ended in their first turn",
    "environment/turns_cut_off": "share of the policy's turns with environment.max_turn_tokens tokens",
    "environment/tool_calls": "mean number of turns with a tool call in a rollout, malformed calls included; absent "
    "where the environment declares no tools",
    "budget/rollouts": "rollouts generated",
    "budget/prompts_skipped": "prompts without a rollout in the plan",
    "budget/tokens_generated": "completion tokens that the policy sampled",
    "budget/prompt_tokens": "tokens of the sampled prompts: each prompt counts once per round, however many rollouts "
    "it has; in addition to budget/tokens_generated",
    "budget/environment_tokens": "tokens of an environment in the rollouts, and of the template around them; they are "
    "not trained on, and in no other number of tokens; absent without an environment",
    "budget/tokens_verified": "completion tokens of rollouts with a verdict",
    "budget/tokens_kept": "completion tokens of rollouts that the selectors kept",
    "budget/tokens_trained": "distinct completion tokens in the policy's updates",
    "budget/tokens_wasted": "tokens generated and not trained on",
    "budget/tokens_masked": "tokens in the policy's updates that a correction masked, each as often as it was passed: "
    "they cost a pass and have no policy gradient; absent without a correction",
    "budget/tokens_cut": "wasted tokens after the first update.max_trained_tokens that a trained rollout sampled",
    "budget/rollouts_cut": "trained rollouts that were cut there",
    "budget/tokens_valued": "distinct completion tokens that a value model read",
    "cut/tokens": "completion tokens of the rollouts of outcome/cut, up to the cut: a part of budget/tokens_generated",
    "cut/tokens_beyond": "tokens that the engine sampled beyond the cuts, and that were dropped; in addition to "
    "budget/tokens_generated",
    "budget/probe_rollouts": "rollouts of the probe, which are not trained on; in addition to budget/rollouts",
    "budget/probe_tokens": "completion tokens of the probe; in addition to budget/tokens_generated",
    "budget/probe_prompt_tokens": "tokens of the probe's prompts, each once per group; in addition to "
    "budget/prompt_tokens",
    "budget/mismatch_tokens": "completion tokens of the named rollouts on which the mismatch is measured with "
    "rollout.ahead = 1; none is trained on, and they are in no other number of tokens",
    "budget/mismatch_prompt_tokens": "tokens of their prompts; in addition to budget/prompt_tokens",
    "budget/evaluation_tokens": "completion tokens of an evaluation of all tasks, greedy ones included; in addition to "
    "budget/tokens_generated",
    "budget/evaluation_prompt_tokens": "tokens of its prompts, once for sampled and once for greedy rollouts; in "
    "addition to budget/prompt_tokens",
    "sampler/skipped": "prompts that the sampler considered and did not draw; in the row of the first step of a draw",
    "sampler/overdue": "prompts that were drawn because they had waited longer than the sampler's `patience`",
    "sampler/probability_least": "lowest probability with which a step of the draw has one of its prompts; absent, as "
    "the next one, for a sampler whose draws have no known probability",
    "sampler/probability_most": "highest such probability",
    "plan/rollouts": "rollouts of each prompt that the run chose for the step",
    "plan/kept": "rollouts of each prompt that it chose to train on",
    "plan/prompts": "prompts that it chose for the step",
    "plan/count_min": "fewest rollouts of a prompt in the probed plan",
    "plan/count_max": "most rollouts of a prompt in the probed plan",
    "plan/unsolved": "prompts of the probed plan that no probe rollout solved",
    "plan/brier": "Brier score of the pass rates that the plan was made from: mean of (p - correct)^2 over the step's "
    "verified rollouts; with exact pass rates it is the mean of p (1 - p). Absent without pass rates",
    "plan/timed_out": "probe rollouts whose outcome depends on a wall-clock limit, as for outcome/timed_out",
    "rounds/ended_early": "prompts of the plan that the rule of rounds ended before their planned number of rollouts",
    "rounds/rollouts_saved": "planned rollouts that were therefore not sampled",
    "rounds/pilot_tokens": "completion tokens of the first round of the plan's prompts: a part of "
    "budget/tokens_generated; absent, as all rounds/..., with the rule `single`",
    "rounds/further_tokens": "completion tokens of their later rounds, also a part of it",
    "dynamic_sampling/groups": "groups added because too few carried a signal",
    "dynamic_sampling/rounds": "rounds in which they were drawn",
    "dynamic_sampling/tokens": "completion tokens of those groups, counted in budget/tokens_generated too",
    "dynamic_sampling/prompt_tokens": "tokens of their prompts, counted in budget/prompt_tokens too",
    "budget/updates": "optimizer updates taken",
    "ranks/count": "processes that compute the run together; all ranks/... are absent where there is one. With "
    "several, seconds/... and memory/probe/... are those of rank 0, and other memory/... the maximum over ranks",
    "ranks/seconds_waiting": "seconds in collectives between ranks, waiting for the slowest included; mean over ranks. "
    "Collectives of FSDP2 within passes are not included, nor NCCL's work after its calls return",
    "ranks/waiting_share": "ranks/seconds_waiting over seconds/step, both means over ranks",
    "ranks/slowest": "the rank that waited least",
    "ranks/bytes_{what}": "bytes that a rank sent to the others in a step, mean over ranks: rollouts, values, "
    "logprobs, norms, gradients, weights, metrics, decisions",
    "ranks/idle_micro_batches": "forward and backward passes of weight 0, summed over ranks, made where another rank "
    "had more",
    "ranks/out_of_parity": "the first rank whose engine alone is out of parity; absent where none is",
    "seconds/gather": "with several ranks: waiting until all have sampled and judged, and exchanging the rollouts",
    "seconds/probe": "sampling, scoring and gradient norms for the plan; in addition to seconds/step",
    "seconds/generate": "sampling, with the scoring that overlaps it",
    "seconds/verify": "waiting for verdicts after the end of sampling",
    "seconds/select": "history (with the gradient norms that gvm_online needs), selection, advantages and schedule",
    "seconds/values": "values before the update, and log-probs of the reference for advantage.kl_reward",
    "seconds/critic": "updates of a separate value model",
    "seconds/logprobs": "old and reference log-probs",
    "seconds/save": "waiting, before the first update, for the checkpoint that is written in the background",
    "seconds/update": "forward, backward and optimizer",
    "seconds/sync": "sending the new weights to the engine",
    "seconds/wait": "with rollout.ahead = 1: waiting, after the updates, until the next step's rollouts are judged",
    "seconds/step": "duration of the step: these phases without seconds/probe, and the time between them",
    "ahead/seconds_sampling": "with rollout.ahead = 1: seconds in which the engine sampled and the verifiers judged "
    "the next step's rollouts; it waited for the rest of seconds/step",
    "time/training_hours": "hours of training up to the end of the step, without evaluations; where a key of the "
    "configuration needs the clock",
    "memory/{phase}/cpu/resident": "resident MiB of this process at the end of a phase, verify workers not counted",
    "memory/{phase}/cpu/peak_resident": "maximum resident MiB of this process from its start to the end of a phase",
    "memory/{phase}/{device}/allocated": "MiB of a CUDA device (cuda0 ...) in this process's tensors at the end of a "
    "phase",
    "memory/{phase}/{device}/reserved": "MiB of the device that torch had reserved then, including those for reuse",
    "memory/{phase}/{device}/peak": "maximum MiB allocated at any time in the phase",
    "memory/engine/{when}/cpu/resident": "resident MiB of an engine's process, its workers not counted; for engines "
    "that report it: those in a separate process, and vllm. `loaded`: with new weights; `sampled`: after sampling; "
    "`asleep`: where it sleeps between steps. With several ranks it is the maximum over ranks",
    "memory/engine/{when}/cpu/peak_resident": "maximum resident MiB of that process from its start until then",
    "memory/engine/{when}/{device}/used": "MiB of a CUDA device that all processes together use, with the device's "
    "number in the engine's process",
    **{f"eval/{name}": text for name, text in _EVALUATION.items()},
    **{f"eval/{{task}}/{name}": f"for a task of evaluate.tasks: {text}" for name, text in _EVALUATION.items()},
    "eval/training_hours": "time/training_hours before the evaluation",
    "eval/weight_bits": "bits of a trained weight in the evaluation's sampling: 32 (float32) or 16 (bfloat16, "
    "float16); only where the rollouts of training are sampled on a copy of the weights in another precision",
}

VALUE_LOSS, VALUE_CLIP = VALUE_LOSSES = ("value_loss", "value_clip_fraction")  # diagnostics of a value loss: critic/...
RATIOS = ("ratio", "clip_fraction")  # a loss's diagnostics of these names have separate metrics, under policy/

_PATTERNS = {name: re.compile(re.sub(r"\{\w+\}", r"[\\w.+-]+", name)) for name in METRICS if "{" in name}


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names for the place of {...} in a pattern, made from any texts: "mine.py:pull" -> "mine.py_pull".

    A name that occurs twice, or is `taken`, gets a number.
    """
    used, unique = set(taken), list[str]()
    for name in names:
        legal = re.sub(r"[^\w.+-]", "_", name) or "_"
        numbered = (f"{legal}_{number}" for number in itertools.count(2))
        unique.append(legal if legal not in used else next(other for other in numbered if other not in used))
        used.add(unique[-1])
    return unique


def is_step(row: Mapping[str, object]) -> bool:
    """Whether a row of metrics is that of a finished step; other rows contain only an evaluation, or a probe."""
    return "budget/rollouts" in row


def per_prompt_metric(name: str, rows: Iterable[Mapping[str, object]]) -> str:
    """The variant of a metric in which all prompts have the same weight, so that it does not depend on the allocation:
    "reward/mean_of_prompts" for "reward/mean". The name itself unless every row with the one has the other.
    """
    variant = f"{name}_of_prompts"
    both = [variant in row for row in rows if name in row or variant in row]
    return variant if both and all(both) else name


def meaning(key: str) -> str | None:
    """The meaning of a metric; None where there is no such metric."""
    if key in METRICS:
        return METRICS[key]
    return next((METRICS[name] for name, pattern in _PATTERNS.items() if pattern.fullmatch(key)), None)


def check(keys: Iterable[str]) -> None:
    """Raise KeyError for a metric without a meaning."""
    for key in keys:
        if meaning(key) is None:
            raise KeyError(f"metric {key!r} is not explained; add it with its meaning to METRICS in winnow/metrics.py")
