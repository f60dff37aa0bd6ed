"""Dynamic sampling beside every sampler: a step's further prompts are none of its own, and count as visits."""

from __future__ import annotations

import shutil

import pytest

import winnow
from logged_groups import read_rollouts
from winnow.engines.scripted import scripted
from winnow.registry import members
from winnow.state.logbook import read_metrics

OPTIONS = {"adarft": {"field": "level"}}


def config_of(smallest, name, **more):
    """16 prompts, of which half are never right, so that a step of two is refilled most of the time."""

    def reward(prompt, rollout):
        return float(rollout.index % 2 and int(prompt.answer) % 2)

    rollout = {
        "engine": lambda context: scripted(context, script=["a"]),
        "prompts_per_step": 2,
        "rollouts_per_prompt": 2,
        "dynamic_sampling_rounds": 2,
    }
    sample = {"use": name, **OPTIONS.get(name, {})}
    return smallest(**{"steps": 9, "sample": sample, "reward": reward, "rollout": rollout, "select": "all", **more})


@pytest.mark.parametrize("name", sorted(members("sampler")))
def test_a_step_has_no_prompt_twice(smallest, name):
    result = winnow.train(**config_of(smallest, name))
    steps: dict[int, list[str]] = {}
    for entry in read_rollouts(result.folder):
        steps.setdefault(entry.step, []).append(entry.group.prompt.id)
    rows = [row for row in read_metrics(result.folder) if "budget/rollouts" in row]
    assert sorted(steps) == list(range(9))
    assert all(len(set(ids)) == len(ids) for ids in steps.values())
    added = [row.get("dynamic_sampling/groups", 0.0) for row in rows]
    assert [len(steps[step]) for step in range(9)] == [2 + groups for groups in added]
    assert max(added) == 4.0
    assert min(added) < 4.0  # a step that carries a signal is not refilled further


def test_a_resume_refills_with_the_same_prompts(smallest, tmp_path):
    config = config_of(smallest, "mopps", checkpoint={"every": 4, "keep_last": 9})
    whole = winnow.train(**{**config, "output": str(tmp_path / "whole")})
    shutil.copytree(whole.folder, tmp_path / "half")
    for step in (8, 9):
        shutil.rmtree(tmp_path / "half" / "checkpoints" / f"step-{step:06d}")
    resumed = winnow.train(**{**config, "output": str(tmp_path / "half")}, resume=True)

    def prompts(result):
        return [(entry.step, entry.group.prompt.id) for entry in read_rollouts(result.folder)]

    assert prompts(whole) == prompts(resumed)
