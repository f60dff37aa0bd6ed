"""What a run with a value model of its own leaves to be read: its log, its notices, and what people are shown of it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import winnow
from forked import fork_supervisors
from logged_groups import read_rollouts
from winnow.commands.show import Choice, format_rollouts
from winnow.core.critic import describe_values
from winnow.core.events import Notice
from winnow.run_view.summary import summary
from winnow.state.logbook import read_metrics


@pytest.fixture
def told(smallest, monkeypatch):
    """(the run, its notices): PODS on PPO, in whose first two of three steps the policy is held."""
    fork_supervisors(monkeypatch)
    events = []
    critic = {"pretraining_steps": 2, "optimizer": {"learning_rate": 1e-2}}
    run = winnow.train(**smallest(steps=3, advantage="gae", critic=critic, verify={"workers": 1}), watch=events.append)
    return run, [event.text for event in events if isinstance(event, Notice)]


def test_the_log_says_what_was_expected_and_the_metrics_follow_from_it(told):
    run, notices = told
    steps = [row for row in read_metrics(run.folder) if "budget/rollouts" in row]
    for step, row in enumerate(steps):
        groups = [entry.group for entry in read_rollouts(run.folder, step)]
        for group in groups:
            read = [not np.isnan(values).any() for values in group.values]
            assert read == [not np.isnan(returns).any() for returns in group.returns] == group.keep.tolist()
        for name, number in describe_values(groups, gamma=1.0).items():
            assert row[name] == pytest.approx(number, rel=1e-5, abs=1e-6), name  # the log has float32
        assert 0 < row["budget/tokens_valued"] < row["budget/tokens_generated"]
    assert [row["budget/updates"] for row in steps] == [0, 0, 1]
    (notice,) = [text for text in notices if text.startswith("step ")]
    assert {"critic.pretraining_steps", "1", "2"} <= set(re.findall(r"[\w.]+", notice))

    assert re.search(r"^values ", summary(read_metrics(run.folder)), flags=re.MULTILINE)
    _, block = format_rollouts(run.folder, Choice(best=1, tokens=True))
    columns = [tuple(line.split()[-4:]) for line in block.splitlines() if line.endswith("advantage")]
    assert [line[-3:] == ("value", "return", "advantage") for line in columns].count(True) == 2
    assert len(columns) == 4
