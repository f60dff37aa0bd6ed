"""A policy trained on whether its programs pass their tests, through workers and sandbox."""

from __future__ import annotations

import numpy as np

import winnow
from forked import fork_supervisors
from logged_groups import read_rollouts
from refusals import refused
from winnow.state.logbook import read_metrics


def test_programs_train(smallest, tmp_path, monkeypatch):
    """Every other rollout is a right program: half of each group passes, the tests decide, and updates are taken."""
    fork_supervisors(monkeypatch)
    (tmp_path / "writer.py").write_text(
        "def writer(prompt, index):\n    return prompt.meta['solution'] if index % 2 else 'print(input())'\n"
    )
    config = smallest(
        steps=1,
        task={"use": "programs", "size": 4},
        prompt={"template": "question_only"},
        rollout={
            "engine": {"use": "scripted", "script": f"{tmp_path}/writer.py:writer"},
            "max_new_tokens": 64,
            "prompts_per_step": 1,
        },
        reward={"use": "code_tests", "program": "text", "seconds": 5, "total_seconds": 120.0},
        evaluate={"problems": 1},
        verify={"workers": 1, "timeout_seconds": 200.0},
    )
    del config["task"]["levels"]
    result = winnow.train(**config, watch=lambda event: None)
    for entry in read_rollouts(result.folder):
        assert entry.group.rewards.tolist() == [0.0, 1.0, 0.0, 1.0]
        assert np.count_nonzero(entry.group.advantages) == 2
    rows = read_metrics(result.folder)
    assert [row["budget/updates"] for row in rows[:1]] == [1]
    assert [row["outcome/failed"] for row in rows[:1]] == [0]


def test_the_worker_s_limit_must_leave_room_for_the_reward_s_own(smallest):
    """A program over its own limit is wrong; one that the worker had to be killed for would count as failed."""
    with refused(winnow.ConfigError, "verify.timeout_seconds", 3.0, "reward.total_seconds", 4.5):
        winnow.train(**smallest(reward={"use": "code_tests"}, verify={"workers": 1, "timeout_seconds": 3.0}))
