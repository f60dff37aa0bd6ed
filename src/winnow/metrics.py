"""Every number a run writes, with its meaning. A key that is not listed here fails the write.

Names ending in `{...}` are patterns: `outcome/failed/{cause}` admits `outcome/failed/timeout`. Means over rollouts are
over all N verified rollouts of every group unless the text says "kept".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

_EVALUATION: dict[str, str] = {
    "accuracy_sampled": "mean correctness over the held-out problems at the training temperature",
    "accuracy_sampled_sem": "its standard error over problems",
    "accuracy_greedy": "share of held-out problems answered correctly at temperature 0",
    "formatted": "share of sampled rollouts in the right format: the reward's part `format` is full or, where it has "
    "none, an answer could be read; mean over problems",
    "correct_and_formatted": "share of sampled rollouts that are correct and in the right format; mean over problems",
    "pass_at_{k}": "unbiased estimate of the chance that at least one of k samples is correct",
    "maj_at_{k}": "expected score of the answer that most of k samples give, a tie counting by its right share; absent "
    "where the reward does not tell wrong answers",
    "reward_mean": "mean reward of the sampled evaluation",
    "part/{part}": "mean of one named part of the reward in the sampled evaluation, before its weight",
    "length_mean": "mean completion length of the sampled evaluation",
    "truncated": "share of sampled evaluation rollouts that hit max_new_tokens",
    "failed": "evaluation rollouts whose verifier failed; they are left out of the means",
    "timed_out": "evaluation rollouts, greedy ones included, in whose outcome a limit of the wall clock had a "
    "say, as in outcome/timed_out",
    "seconds": "seconds the evaluation took",
}

METRICS: dict[str, str] = {
    "reward/mean": "mean reward of all verified rollouts, kept or not",
    "reward/std": "standard deviation of those rewards (ddof 0)",
    "reward/min": "smallest reward",
    "reward/max": "largest reward",
    "reward/accuracy": "share of verified rollouts that are correct",
    "reward/mean_of_prompts": "mean over prompts of the mean reward of a prompt's verified rollouts: each prompt "
    "counts alike, however many rollouts it was allotted",
    "reward/accuracy_of_prompts": "mean over prompts of the share of a prompt's verified rollouts that are correct",
    "reward/part/{part}": "mean of one named part of the reward, before its weight",
    "outcome/correct": "rollouts whose answer is correct",
    "outcome/wrong": "rollouts whose answer is wrong",
    "outcome/unparsable": "rollouts without an answer the verifier could read",
    "outcome/failed": "rollouts whose verifier failed; they are neither kept nor in any baseline",
    "outcome/failed/{cause}": "failed rollouts by cause: timeout, memory, crash, sandbox, raised, malformed",
    "outcome/timed_out": "rollouts in whose outcome a limit of the wall clock had a say: failed(timeout), and programs "
    "that `code_tests` ended by the clock; where it is not 0 the machine's load may have changed the step",
    "group/count": "groups sampled",
    "group/effective": "groups of equal size whose rewards would have as noisy a mean: (sum n)^2 / sum n^2 over the n "
    "verified rollouts of each group (Kish 1965, Survey Sampling)",
    "group/flat": "groups whose verified rewards are all equal: no group baseline can learn from them",
    "group/all_correct": "flat groups in which every rollout is correct: too easy",
    "group/all_wrong": "flat groups in which no rollout is correct: too hard",
    "rollout/length_mean": "mean completion length in tokens, the stop token included",
    "rollout/length_max": "longest completion in tokens",
    "rollout/truncated": "share of rollouts that hit max_new_tokens",
    "select/kept": "rollouts kept for training",
    "select/trained": "kept rollouts that reach the policy: all with a term, else those whose advantage is not zero",
    "advantage/mean": "mean advantage of kept rollouts",
    "advantage/std": "standard deviation of the advantages of kept rollouts (ddof 0)",
    "reward/kl": "mean log(p / p_reference) of the tokens from whose reward advantage.kl_reward took it",
    "critic/loss": "mean value loss over the tokens of the value model's updates, before its coefficient",
    "critic/explained_variance": "1 - Var(return - value) / Var(return) over the tokens that the value model read, by "
    "its values before the update and Monte-Carlo returns: 1 where it knows them, 0 where it tells no more than a "
    "constant",
    "critic/value_mean": "mean value of those tokens",
    "critic/return_mean": "mean of what those values are taught",
    "critic/return_std": "standard deviation of that (ddof 0)",
    "critic/clip_fraction": "share of tokens at which the clip of the value loss took the gradient away",
    "critic/grad_norm": "gradient norm of a value model of its own before clipping, mean over its updates",
    "critic/learning_rate": "its learning rate at the step's last update",
    "critic/updates": "optimizer updates that it took",
    "critic/skipped_updates": "its updates that were skipped because no sequence was left or a gradient not finite",
    "policy/loss": "the optimised scalar, summed over a batch, averaged over the step's optimizer updates",
    "policy/entropy": "mean of -log p of the sampled tokens: an unbiased estimate of the policy's entropy in nats",
    "policy/ratio_mean": "mean of p_now / p_old over trained tokens",
    "policy/ratio_max": "largest p_now / p_old over trained tokens",
    "policy/clip_fraction": "share of trained tokens at which the clip acted (`clip` and kin: took the gradient away)",
    "loss/{name}": "mean of a term, or of a loss's own diagnostic, over trained tokens, before its coefficient",
    "policy/grad_norm": "gradient norm before clipping, mean over the step's updates",
    "policy/learning_rate": "learning rate of the step's last update",
    "policy/logprob_gap_mean": "mean |engine log-prob - policy log-prob| of the trained tokens at the step's weights",
    "policy/logprob_gap_p999": "99.9th percentile of those gaps (of fewer than 3,000 tokens: the third largest)",
    "policy/logprob_gap_max": "largest of those gaps; it grows with the number of tokens, so no alarm uses it",
    "policy/ratio_outside": "share of those tokens whose p_policy / p_engine lies outside [0.8, 1.25]",
    "policy/parity_alarm": "1 when the engine did not sample what is trained: policy/logprob_gap_mean or _p999 above "
    "what it declares, or policy/ratio_outside above rollout.max_ratio_outside; else 0",
    "policy/skipped_updates": "optimizer updates skipped because no sequence was left or the gradient was not finite",
    "policy/not_finite_updates": "of these, the updates whose gradient was not finite",
    "alarm/{name}": "1 where this alarm holds at the step; absent where it does not",
    "budget/rollouts": "rollouts generated",
    "budget/prompts_skipped": "prompts that the plan gave no rollout",
    "budget/tokens_generated": "completion tokens sampled",
    "budget/prompt_tokens": "tokens of the prompts that were sampled, each once per group, however many rollouts it "
    "has; on top of budget/tokens_generated",
    "budget/tokens_verified": "completion tokens of rollouts that got a verdict",
    "budget/tokens_kept": "completion tokens of rollouts that the selectors kept",
    "budget/tokens_trained": "distinct completion tokens that reached the policy's update",
    "budget/tokens_wasted": "tokens generated and not trained on",
    "budget/tokens_cut": "of these, tokens behind the first update.max_trained_tokens of a rollout that was trained",
    "budget/rollouts_cut": "trained rollouts that were cut there",
    "budget/tokens_valued": "distinct completion tokens that a value model read",
    "budget/probe_rollouts": "rollouts sampled to plan, not to train; on top of budget/rollouts",
    "budget/probe_tokens": "completion tokens of the probe; on top of budget/tokens_generated",
    "budget/probe_prompt_tokens": "tokens of the probe's prompts, each once per group; on top of budget/prompt_tokens",
    "budget/evaluation_tokens": "completion tokens of an evaluation of all tasks, greedy ones included; on top of "
    "budget/tokens_generated",
    "budget/evaluation_prompt_tokens": "tokens of its prompts, once for sampled and once for greedy rollouts; on top "
    "of budget/prompt_tokens",
    "plan/count_min": "fewest rollouts the probed plan gives a prompt",
    "plan/count_max": "most rollouts the probed plan gives a prompt",
    "plan/unsolved": "prompts of the probed plan that no probe rollout solved",
    "plan/timed_out": "probe rollouts in whose outcome a limit of the wall clock had a say, as in outcome/timed_out",
    "dynamic_sampling/groups": "groups added because too few carried a signal",
    "dynamic_sampling/rounds": "rounds in which they were drawn",
    "dynamic_sampling/tokens": "completion tokens of those groups, counted in budget/tokens_generated too",
    "budget/updates": "optimizer updates taken",
    "ranks/count": "processes that compute the run together; all ranks/... are absent where there is one. Among "
    "several, seconds/... are those of rank 0, and memory/... the most of any",
    "ranks/seconds_waiting": "at exchanges between ranks, waiting for the slowest included; mean over ranks. What "
    "FSDP2 exchanges within passes is not in it, nor what NCCL does after it was asked",
    "ranks/waiting_share": "ranks/seconds_waiting over seconds/step, both means over ranks",
    "ranks/slowest": "the rank that waited least",
    "ranks/bytes_{what}": "bytes that a rank gave the others in a step, mean over ranks: rollouts, values, logprobs, "
    "norms, gradients, weights, metrics, decisions",
    "ranks/idle_micro_batches": "forward and backward passes of weight 0, of all ranks, made where another rank had "
    "more",
    "ranks/out_of_parity": "the first rank whose engine alone is out of parity; absent where none is",
    "seconds/gather": "among several ranks: waiting until all have sampled and judged, and exchanging the rollouts",
    "seconds/probe": "sampling, scoring and gradient norms for the plan; on top of seconds/step",
    "seconds/generate": "sampling, with the scoring that overlaps it",
    "seconds/verify": "waiting for verdicts after sampling ended",
    "seconds/select": "history (with the gradient norms that gvm_online asks for), selection, advantages and schedule",
    "seconds/values": "values before the update, and log-probs of the reference for advantage.kl_reward",
    "seconds/critic": "updates of a value model of its own",
    "seconds/logprobs": "old and reference log-probs",
    "seconds/save": "waiting, before the first update, for the checkpoint that is written beside the step",
    "seconds/update": "forward, backward and optimizer",
    "seconds/sync": "handing the new weights to the engine",
    "seconds/step": "all of these",
    "time/training_hours": "hours of training up to the end of the step, evaluations left out; where a key of the "
    "configuration asks for the clock",
    "memory/{phase}/cpu/resident": "MiB that this process held at the end of a phase, verify workers not counted",
    "memory/{phase}/cpu/peak_resident": "most MiB that this process had held by the end of a phase, since it began",
    "memory/{phase}/{device}/allocated": "MiB of a CUDA device (cuda0 ...) in this process's tensors at the end of a "
    "phase",
    "memory/{phase}/{device}/reserved": "MiB that torch then held of the device, those kept for reuse included",
    "memory/{phase}/{device}/peak": "most MiB allocated at any time in the phase",
    "memory/engine/{when}/cpu/resident": "MiB that the process of an engine held, its workers not counted; of engines "
    "that report it: those in a process of their own, and vllm. `loaded`: with new weights; `sampled`: after sampling; "
    "`asleep`: where it sleeps between steps. With several ranks it is the most of any",
    "memory/engine/{when}/cpu/peak_resident": "most MiB that this process had held by then, since it began",
    "memory/engine/{when}/{device}/used": "MiB of a CUDA device that all processes together held, numbered as the "
    "engine's process numbers it",
    **{f"eval/{name}": text for name, text in _EVALUATION.items()},
    **{f"eval/{{task}}/{name}": f"of a task of evaluate.tasks: {text}" for name, text in _EVALUATION.items()},
    "eval/training_hours": "time/training_hours before the evaluation",
    "eval/weight_bits": "bits of a trained weight that the evaluation sampled with: 32 (float32) or 16 (bfloat16, "
    "float16); only where the rollouts of training are sampled on a copy of the weights in another precision",
}

VALUE_LOSS, VALUE_CLIP = VALUE_LOSSES = ("value_loss", "value_clip_fraction")  # what a value loss has seen: critic/...
RATIOS = ("ratio", "clip_fraction")  # a loss's diagnostics of these names have metrics of their own, under policy/

_PATTERNS = {name: re.compile(re.sub(r"\{\w+\}", r"[\\w.+-]+", name)) for name in METRICS if "{" in name}


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The text in the place of {...} in a pattern, made from any text: "mine.py:pull" -> "mine.py_pull".

    A name that comes twice, or is `taken`, gets a number.
    """
    used, found = set(taken), list[str]()
    for name in names:
        legal = re.sub(r"[^\w.+-]", "_", name) or "_"
        numbered = (f"{legal}_{number}" for number in itertools.count(2))
        found.append(legal if legal not in used else next(other for other in numbered if other not in used))
        used.add(found[-1])
    return found


def is_step(row: Mapping[str, object]) -> bool:
    """Whether a row of metrics is that of a finished step; the others hold only an evaluation, or a probe."""
    return "budget/rollouts" in row


def of_prompts(name: str, rows: Iterable[Mapping[str, object]]) -> str:
    """The metric in which each prompt counts alike, so that no allocation moves it: of "reward/mean" it is
    "reward/mean_of_prompts". The name itself where the rows do not have it.
    """
    alike = f"{name}_of_prompts"
    return alike if any(alike in row for row in rows) else name


def meaning(key: str) -> str | None:
    """What a metric means, or None when nothing is called that."""
    if key in METRICS:
        return METRICS[key]
    return next((METRICS[name] for name, pattern in _PATTERNS.items() if pattern.fullmatch(key)), None)


def check(keys: Iterable[str]) -> None:
    """Raise KeyError for a metric nobody has explained."""
    for key in keys:
        if meaning(key) is None:
            raise KeyError(f"metric {key!r} is not explained; add it with its meaning to METRICS in winnow/metrics.py")
