"""Judged groups of a step that is not taken yet, in a checkpoint: numbers per token as tensors, the rest as JSON.

Nothing is rounded: token ids are int64 and log-probs float64, so a resume trains on the same bits. Prompts are named by
their ids, because the task has them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.errors import RunFolderError
from winnow.records import Group, Outcome, Prompt, Rollout

PENDING = "pending/"  # prefix of the tensors' names
# Fields of a rollout that JSON has as they are
_PLAIN = ("index", "text", "finish", "version", "rank", "round", "beyond")


@dataclass(frozen=True)
class PendingGroups:
    """The judged groups of the step `step`, with every field up to `outcomes`."""

    step: int
    groups: tuple[Group, ...]

    def tensors(self) -> dict[str, Tensor]:
        """Token ids, log-probs and marks of trainable tokens, rollout after rollout: each [T] over all rollouts."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        columns = {
            "tokens": np.concatenate([np.zeros(0, dtype=np.int64), *(rollout.tokens for rollout in rollouts)]),
            "logprobs": np.concatenate([np.zeros(0), *(rollout.logprobs for rollout in rollouts)]),
            "trainable": np.concatenate([np.zeros(0, dtype=np.bool_), *(rollout.sampled for rollout in rollouts)]),
        }
        return {f"{PENDING}{name}": torch.from_numpy(column) for name, column in columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything but `tensors`, as JSON."""
        groups = [
            {
                "prompt": group.prompt.id,
                "rollouts": [_rollout_state(rollout) for rollout in group.rollouts],
                "outcomes": [
                    {**dataclasses.asdict(outcome), "reward": None if math.isnan(outcome.reward) else outcome.reward}
                    for outcome in group.outcomes or ()
                ],
            }
            for group in self.groups
        ]
        return {"step": self.step, "groups": groups}

    @classmethod
    def restored(
        cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], prompts: Sequence[Prompt]
    ) -> PendingGroups:
        """The groups from `state_dict` and `tensors`. Raises RunFolderError if the task lacks one of the prompts."""
        by_id = {prompt.id: prompt for prompt in prompts}
        lengths = [saved["tokens"] for group in state["groups"] for saved in group["rollouts"]]
        columns = (
            iter(np.split(tensors[f"{PENDING}{name}"].numpy().copy(), np.cumsum(lengths)))
            for name in ("tokens", "logprobs", "trainable")
        )
        rows = zip(*columns, strict=True)
        groups = []
        for saved in state["groups"]:
            if saved["prompt"] not in by_id:
                raise RunFolderError(
                    f"the checkpoint has rollouts of prompt {saved['prompt']!r} for step {state['step']}, and the task "
                    f"has no such prompt now",
                    remedy="restore the task's data, or start a new run in another output folder",
                    key="task",
                    code="run_folder.changed",
                )
            rollouts = tuple(_rollout(of, *next(rows)) for of in saved["rollouts"])
            outcomes = tuple(
                Outcome(**{**of, "reward": math.nan if of["reward"] is None else of["reward"]})
                for of in saved["outcomes"]
            )
            groups.append(Group(prompt=by_id[saved["prompt"]], rollouts=rollouts, outcomes=outcomes))
        return cls(state["step"], tuple(groups))


def _rollout_state(rollout: Rollout) -> dict[str, Any]:
    plain = {name: getattr(rollout, name) for name in _PLAIN}
    turns = None if rollout.turns is None else list(rollout.turns)
    return {**plain, "tokens": len(rollout.tokens), "turns": turns, "every": rollout.trainable is None}


def _rollout(saved: Mapping[str, Any], tokens: Any, logprobs: Any, trainable: Any) -> Rollout:
    return Rollout(
        tokens=tokens,
        logprobs=logprobs,
        trainable=None if saved["every"] else trainable,
        turns=None if saved["turns"] is None else tuple(saved["turns"]),
        **{name: saved[name] for name in _PLAIN},
    )
