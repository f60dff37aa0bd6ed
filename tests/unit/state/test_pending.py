"""Pending rollouts in a checkpoint: every field of them, to the bit."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from refusals import refused
from winnow.errors import RunFolderError
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.pending import PendingGroups

RIGHT = Outcome(reward=0.1 + 0.2, correct=True, kind="correct", parts={"format": 1 / 3}, answer="42", seconds=0.25)
FAILED = Outcome(reward=float("nan"), correct=None, kind="failed", cause="timeout", detail="5 s", late=True)


def prompt(name: str) -> Prompt:
    return Prompt(id=name, tokens=np.array([1, 2]), text=name, answer="42", task="t")


def rollout(index: int, *logprobs: float, **fields: object) -> Rollout:
    others = {"text": f"\ud800é{index}", "finish": "length", "version": 3, "rank": 1, **fields}
    return Rollout(index=index, tokens=np.arange(len(logprobs)) + 151_000, logprobs=np.array(logprobs), **others)  # type: ignore[arg-type]


PLAYED = {"round": 1, "beyond": 7, "trainable": np.array([False]), "turns": ("x", "y")}
PROMPTS = [prompt("a"), prompt("b"), prompt("c")]
GROUPS = (
    Group(
        prompt=PROMPTS[2],
        rollouts=(rollout(0, -1 / 3, -1e-17), rollout(1), rollout(2, -2.0, **PLAYED)),
        outcomes=(RIGHT, FAILED, FAILED),
    ),
    Group(prompt=PROMPTS[0], rollouts=(), outcomes=()),
    Group(prompt=PROMPTS[1], rollouts=(rollout(0, float("-inf"), finish="stop"),), outcomes=(RIGHT,)),
)


def saved_and_restored(tmp_path, prompts=PROMPTS):
    pending = PendingGroups(5, GROUPS)
    save_file(pending.tensors(), tmp_path / "tensors")
    state = json.loads(json.dumps(pending.state_dict(), allow_nan=False))
    return PendingGroups.restored(state, load_file(tmp_path / "tensors"), prompts)


def test_groups_are_restored_to_the_bit(tmp_path):
    found = saved_and_restored(tmp_path)
    assert found.step == 5
    assert [group.prompt for group in found.groups] == [PROMPTS[2], PROMPTS[0], PROMPTS[1]]
    for got, was in zip(found.groups, GROUPS, strict=True):
        assert [str(outcome) for outcome in got.outcomes] == [str(outcome) for outcome in was.outcomes]
        for one, other in zip(got.rollouts, was.rollouts, strict=True):
            assert (one.tokens.dtype, one.logprobs.dtype) == (np.int64, np.float64)
            assert one.tokens.tobytes() == other.tokens.tobytes()
            assert one.logprobs.tobytes() == other.logprobs.tobytes()
            for field in ("index", "text", "finish", "version", "rank", "turns", "round", "beyond"):
                assert getattr(one, field) == getattr(other, field), field
            assert str(one.trainable) == str(other.trainable)


def test_a_prompt_that_the_task_lost_is_refused(tmp_path):
    with refused(RunFolderError, "b", 5, key="task", code="run_folder.changed"):
        saved_and_restored(tmp_path, [PROMPTS[0], PROMPTS[2]])


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Rollout)])
def test_every_field_of_a_rollout_is_saved(field):
    """A field that is added to the record has to be added here."""
    known = {
        "index",
        "tokens",
        "logprobs",
        "text",
        "finish",
        "version",
        "rank",
        "trainable",
        "turns",
        "round",
        "beyond",
    }
    assert field in known
