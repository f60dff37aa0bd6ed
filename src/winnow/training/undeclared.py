"""What a user's loss, term, advantage or correction reads, found by a trial call before a model is loaded: inputs that
it does not declare, and whether a loss reads the ratio.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch

from winnow.core.members import Members
from winnow.errors import wrong_result
from winnow.families import LossTraits
from winnow.options import Bound
from winnow.records import Group, MicroBatch, Outcome, PolicyOutput, Prompt, Rollout, TrainingSequence

# {need: the field that is None where no member declares the need}
_OF_LOSS = {"old_logprobs": "mb.old_logprobs", "ref_logprobs": "mb.ref_logprobs", "entropy": "out.entropy"}
_OF_ADVANTAGE = {"values": "group.values"}
_RATIO = (
    "; or use winnow.algos.loss.probability_ratio(out, mb): in a step of one update it is 1, and no old log-probs are "
    "computed for it"
)
_LOG_RATIO = "use winnow.algos.correction.log_ratio(out, mb), which also has the ratio in a step of one update"
_PROMPT = Prompt(id="check", tokens=np.array([1, 2]), text="?", answer="1", task="check")


def check_needs(members: Members) -> None:
    """Raise ConfigError where a user's loss, term, advantage or correction raises because of a field that it has not
    declared.

    A member that raises even with every field filled is accepted: it may need data that only a run has.
    """
    filled = members.needs | ({"old_logprobs"} if members.config.correction.old == "engine" else set[str]())
    for member in (members.loss, *members.terms):
        _check_member(member, _OF_LOSS, filled, lambda needs: (_output(needs), _micro_batch(needs)))
    if "old_logprobs" not in filled:
        old = {"old_logprobs": _OF_LOSS["old_logprobs"]}
        _check_member(members.correction, old, filled, lambda needs: (_output(needs), _micro_batch(needs)))
    has_values = members.critic is not None or members.config.critic is not None
    values = {"values"} if has_values else set[str]()
    _check_member(members.advantage, _OF_ADVANTAGE, values, lambda needs: (_groups(needs),))


def ignores_ratio(loss: Bound[LossTraits]) -> bool:
    """Whether the loss and its gradient are the same for other old log-probs; False where a trial call raises."""

    def trial(shift: float) -> list[float]:
        out, mb = _output(_OF_LOSS), _micro_batch(_OF_LOSS)
        values, _ = loss.call(out, dataclasses.replace(mb, old_logprobs=out.logprobs.detach() + shift))
        (slope,) = torch.autograd.grad(values.sum(), out.logprobs)
        return [*values.tolist(), *slope.tolist()]

    try:
        return trial(0.0) == trial(-0.1)
    except Exception:  # a user's function may raise anything
        return False


def _check_member(
    member: Bound[Any],
    fields: Mapping[str, str],
    filled: Collection[str],
    arguments: Callable[[Collection[str]], tuple[Any, ...]],
) -> None:
    def returns(needs: Collection[str]) -> bool:
        try:
            member.call(*arguments(needs))
        except Exception:  # a user's function may raise anything
            return False
        return True

    if member.entry.origin == "winnow" or returns(filled) or not returns(fields):
        return
    missing = [need for need in fields if need not in filled and not returns([name for name in fields if name != need])]
    family, declared = member.entry.family, ", ".join(f'"{need}"' for need in missing)
    if missing:
        remedy = f'declare it: @winnow.register("{family.name}", needs=({declared},))'
        remedy += _RATIO if "old_logprobs" in missing else ""
        raise wrong_result(
            f"{family.key} = {member.name!r} reads {' and '.join(fields[need] for need in missing)}, which is None in "
            f"this run, as no member declares it",
            remedy=remedy if hasattr(member.traits, "needs") else _LOG_RATIO,
            key=family.key,
        )


def _trial_rollout(index: int, length: int) -> Rollout:
    tokens, logprobs = np.arange(1, length + 1), np.full(length, -0.5)
    return Rollout(index=index, tokens=tokens, logprobs=logprobs, text="1", finish="stop", version=0)


def _output(needs: Collection[str]) -> PolicyOutput:
    logprobs = torch.tensor([-0.5, -1.0, -0.25], requires_grad=True)
    return PolicyOutput(logprobs=logprobs, entropy=-logprobs if "entropy" in needs else None)


def _micro_batch(needs: Collection[str]) -> MicroBatch:
    """Two rollouts, of 2 tokens and of 1."""
    logprobs = torch.tensor([-0.5, -1.0, -0.25])
    pairs = [(_trial_rollout(0, 2), 0.5), (_trial_rollout(1, 1), -0.5)]
    return MicroBatch(
        sequences=tuple(
            TrainingSequence(prompt=_PROMPT, rollout=rollout, group=0, advantage=advantage, weight=0.5)
            for rollout, advantage in pairs
        ),
        sequence_index=torch.tensor([0, 0, 1]),
        advantages=torch.tensor([0.5, 0.5, -0.5]),
        weights=torch.full((3,), 0.5),
        behaviour_logprobs=logprobs,
        old_logprobs=logprobs if "old_logprobs" in needs else None,
        ref_logprobs=logprobs if "ref_logprobs" in needs else None,
    )


def _groups(needs: Collection[str]) -> list[Group]:
    """One group of two kept rollouts, of which the first is correct."""
    outcomes = (Outcome(reward=1.0, correct=True, kind="correct"), Outcome(reward=0.0, correct=False, kind="wrong"))
    group = Group(
        prompt=_PROMPT, rollouts=(_trial_rollout(0, 2), _trial_rollout(1, 1)), outcomes=outcomes, keep=np.ones(2, bool)
    )
    return [group.fill(values=(np.full(2, 0.5), np.full(1, 0.5))) if "values" in needs else group]
