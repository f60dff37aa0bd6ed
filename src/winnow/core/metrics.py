"""The metrics of a step that are computed from its groups and batches: rewards, rollouts, and the budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from winnow.algos.group_metrics import group_metrics, mean_parts, reward_metrics
from winnow.budget.pass_rates import brier_score
from winnow.core.members import Members
from winnow.environments.tool_calls import AUTO, read_calls
from winnow.records import CAUSES, Batch, FloatArray, Group, Metrics, Rollout, joined


def describe(
    groups: Sequence[Group], batches: Sequence[Batch], *, planned: int, pass_rates: FloatArray | None = None
) -> Metrics:
    """The metrics of rewards, rollouts and budget, computed from a step's groups and batches.

    The first `planned` groups are those of the plan; dynamic sampling added the others. `pass_rates` [G] are those that
    the plan was made from, NaN where it has none.
    """
    verified = [group.take(group.valid) for group in groups]
    rewards = [group.rewards for group in verified]  # G x [N]: of all N rollouts with a verdict, kept or not
    correct = [group.correct for group in verified]
    parts = mean_parts(outcome.parts for group in verified for outcome in group.outcomes or ())
    return {
        **reward_metrics(rewards, correct),
        **{f"reward/part/{name}": mean for name, mean in parts.items()},
        **_outcomes(groups),
        "group/count": float(sum(bool(group.rollouts) for group in groups)),
        **group_metrics(rewards, correct),
        **_rollouts(groups),
        **_calibration(verified, pass_rates),
        **_budget(groups, verified, batches),
        **_dynamic_sampling(groups[planned:], planned),
    }


def _outcomes(groups: Sequence[Group]) -> Metrics:
    outcomes = [outcome for group in groups for outcome in group.outcomes or ()]
    kinds = Counter([outcome.kind for outcome in outcomes])
    causes = Counter([outcome.cause for outcome in outcomes if outcome.kind == "failed"])
    metrics = {f"outcome/{kind}": float(kinds[kind]) for kind in ("correct", "wrong", "unparsable", "failed")}
    metrics["outcome/timed_out"] = float(sum([outcome.late for outcome in outcomes]))
    metrics |= {f"outcome/failed/{cause}": float(causes[cause]) for cause in CAUSES if causes[cause]}
    if cut := [rollout for group in groups for rollout in group.rollouts if rollout.finish == "cut"]:
        metrics["outcome/cut"] = float(len(cut))
        metrics["cut/tokens"] = float(sum(rollout.length for rollout in cut))
        metrics["cut/tokens_beyond"] = float(sum(rollout.beyond for rollout in cut))
    return metrics


def _rollouts(groups: Sequence[Group]) -> Metrics:
    rollouts = [r for g in groups for r in g.rollouts]
    if not rollouts:
        return {}
    lengths = np.concatenate([g.lengths for g in groups])
    tokens = int(lengths.sum())
    # Of the tokens that the policy sampled
    logprobs = [r.logprobs if r.trainable is None else r.logprobs[r.trainable] for r in rollouts]
    return {
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_max": float(lengths.max()),
        "rollout/truncated": [r.finish for r in rollouts].count("length") / len(rollouts),
        "policy/entropy": -sum([float(np.add.reduce(of)) for of in logprobs]) / tokens if tokens else np.nan,
    }


def _calibration(verified: Sequence[Group], pass_rates: FloatArray | None) -> Metrics:
    if pass_rates is None or np.all(np.isnan(pass_rates)):
        return {}
    correct = np.array([g.correct.sum() for g in verified], dtype=np.float64)
    trials = np.array([len(g.rollouts) for g in verified], dtype=np.float64)
    score = brier_score(pass_rates, correct, trials)
    return {} if math.isnan(score) else {"plan/brier": score}


def _budget(groups: Sequence[Group], verified: Sequence[Group], batches: Sequence[Batch]) -> Metrics:
    trained = {row.key: row.rollout.length for batch in batches for row in batch.sequences}
    whole = {
        (position, rollout.index): length
        for position, group in enumerate(groups)
        for rollout, length in zip(group.rollouts, group.lengths.tolist(), strict=True)
    }
    cut = [whole[key] - length for key, length in trained.items() if length < whole[key]]
    selected = [group for group in groups if group.keep is not None]
    keep = joined([group.keep for group in selected if group.keep is not None], np.bool_)
    advantages = [credit for group in selected for credit in _kept_advantages(group)]
    generated = completion_tokens(groups)
    metrics = {
        "select/kept": float(keep.sum()),
        "select/trained": float(len(trained)),
        "budget/rollouts": float(sum(len(g.rollouts) for g in groups)),
        "budget/prompts_skipped": float(sum(not g.rollouts for g in groups)),
        "budget/tokens_generated": generated,
        "budget/prompt_tokens": prompt_tokens(groups),
        "budget/tokens_verified": completion_tokens(verified),
        "budget/tokens_kept": float(joined([group.lengths for group in selected], np.int64)[keep].sum()),
        "budget/tokens_trained": float(sum(trained.values())),
        "budget/tokens_wasted": generated - float(sum(trained.values())),
        "budget/tokens_cut": float(sum(cut)),
        "budget/rollouts_cut": float(len(cut)),
    }
    if any(r.trainable is not None for g in groups for r in g.rollouts):
        metrics["budget/environment_tokens"] = float(sum((g.sizes - g.lengths).sum() for g in groups))
    if advantages:
        metrics |= {"advantage/mean": float(np.mean(advantages)), "advantage/std": float(np.std(advantages))}
    return metrics


def prompt_tokens(groups: Iterable[Group]) -> float:
    """Tokens of the sampled prompts, once for each round of a group, as the rollouts of a round share one prefill."""
    return float(sum(len(group.prompt.tokens) * len({r.round for r in group.rollouts}) for group in groups))


def completion_tokens(groups: Iterable[Group]) -> float:
    """Tokens of all rollouts that the policy sampled."""
    return float(joined([group.lengths for group in groups], np.int64).sum())


def _dynamic_sampling(added: Sequence[Group], planned: int) -> Metrics:
    if not added:
        return {}
    return {
        "dynamic_sampling/rounds": float(-(-len(added) // planned)),
        "dynamic_sampling/groups": float(len(added)),
        "dynamic_sampling/tokens": completion_tokens(added),
        "dynamic_sampling/prompt_tokens": prompt_tokens(added),
    }


def _kept_advantages(group: Group) -> list[float]:
    """The mean credit of the tokens that the policy sampled, of each kept rollout with any."""
    if group.keep is None or group.advantages is None:
        return []
    if isinstance(group.advantages, np.ndarray):
        return list(group.advantages[group.keep])
    kept = zip(group.advantages, group.rollouts, group.keep, strict=True)
    return [float(credit[rollout.sampled].mean()) for credit, rollout, keep in kept if keep and rollout.length]


def turn_metrics(members: Members, groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of turns over the rollouts of a step; none without an environment.

    A turn of exactly `max_turn_tokens` tokens counts as cut off.
    """
    section, rollouts = members.config.environment, [r for group in groups for r in group.rollouts]
    if section is None or members.environment is None or not rollouts:
        return {}
    of_each = [_turn_lengths(rollout) for rollout in rollouts]
    turns = sum(map(len, of_each))
    metrics = {
        "environment/turns_mean": turns / len(rollouts),
        "environment/one_turn": sum(len(lengths) == 1 for lengths in of_each) / len(rollouts),
        "environment/turns_cut_off": sum(n >= section.max_turn_tokens for row in of_each for n in row) / turns,
    }
    if members.environment.traits.tools:
        form = members.environment.options.get("call_form", AUTO)
        replies = [reply for r in rollouts for reply in ((r.text,) if r.turns is None else r.turns[::2])]
        metrics["environment/tool_calls"] = sum(bool(read_calls(reply, form)) for reply in replies) / len(rollouts)
    return metrics


def _turn_lengths(rollout: Rollout) -> list[int]:
    """The number of sampled tokens of each turn of the policy."""
    sampled = np.concatenate([[False], rollout.sampled, [False]])
    ends = np.flatnonzero(np.diff(sampled))  # the first token of each turn, and the one after its last
    lengths: list[int] = (ends[1::2] - ends[::2]).tolist()
    return lengths or [0]
