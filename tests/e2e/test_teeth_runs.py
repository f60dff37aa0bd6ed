"""What only a whole run can show. Each test is the one that kills some bug of tests/mutants."""

from __future__ import annotations

import json

import pytest

import winnow
from logged_groups import read_rollouts
from winnow.records import StepReport
from winnow.state.logbook import METRICS, read_metrics, read_rows


class BrokeOff(BaseException):
    """A run that ends in the middle, as a crash would end it: no Exception, so nothing is saved on the way out."""


def steps(result):
    return [row for row in read_metrics(result.folder) if "budget/rollouts" in row]


def test_a_failed_verdict_stays_out_of_a_baseline_of_the_whole_group(smallest, tmp_path):
    """Rewards 0, none, 2, 3: mean 5/3 over the three that are known, of which 0 and 3 are kept."""
    (tmp_path / "flaky.py").write_text(
        "def flaky(prompt, rollout):\n    return None if rollout.index == 1 else float(rollout.index)\n"
    )
    result = winnow.train(
        **smallest(
            steps=1,
            reward={"use": f"{tmp_path}/flaky.py:flaky"},
            advantage={"use": "dr_grpo", "statistics": "group"},
            weighting="constant",
            verify={"workers": 0, "max_failure_share": 0.5},
        )
    )
    for entry in read_rollouts(result.folder):
        assert entry.group.advantages == pytest.approx([-5 / 3, 0, 0, 4 / 3])


@pytest.mark.parametrize("weighting", ["token", "sequence"])
def test_a_memory_knob_changes_neither_loss_nor_gradient(weighting, smallest, tmp_path):
    """Law 1 from end to end: all rows in one micro-batch, or one row in each."""
    found = []
    for budget in (100_000, 1):
        result = winnow.train(
            **smallest(
                steps=1,
                output=str(tmp_path / str(budget)),
                model={"dtype": "float64"},
                weighting=weighting,
                update={"tokens_per_micro_batch": budget},
            )
        )
        (row,) = steps(result)
        found.append([row["policy/loss"], row["policy/grad_norm"]])
    assert found[0][1] > 0
    assert found[0] == pytest.approx(found[1], rel=1e-6, abs=1e-12)


def test_an_engine_with_its_own_weights_samples_from_the_newest(smallest):
    """At every step, not the first alone, its log-probs are those of the policy that is about to learn."""
    config = smallest(steps=3, rollout={"engine": "hf"}, optimizer={"learning_rate": 3e-2})
    gaps = [row["policy/logprob_gap_max"] for row in steps(winnow.train(**config))]
    assert len(gaps) == 3
    assert max(gaps) < 1e-4


def test_a_prompt_that_returns_meets_new_random_numbers(smallest):
    """Four problems, four per step, and a policy that hardly moves: only the random numbers differ."""
    config = smallest(steps=2, task={"size": 4}, optimizer={"learning_rate": 1e-12})
    first, second = (
        {e.group.prompt.id: [r.tokens.tolist() for r in e.group.rollouts] for e in read_rollouts(result.folder, step)}
        for result in [winnow.train(**config)]
        for step in (0, 1)
    )
    assert first.keys() == second.keys()
    assert all(first[prompt] != second[prompt] for prompt in first)


def test_a_term_teaches_from_groups_without_an_advantage(smallest, tmp_path):
    """No rollout is ever rewarded, and the entropy is still pushed up."""
    (tmp_path / "never.py").write_text("def never(prompt, rollout):\n    return 0.0\n")
    config = smallest(reward={"use": f"{tmp_path}/never.py:never"}, terms=[{"use": "entropy", "coefficient": 0.01}])
    for row in steps(winnow.train(**config)):
        assert row["budget/updates"] == 1
        assert row["policy/grad_norm"] > 0


def test_a_run_that_broke_off_resumes_to_the_same_files(smallest, tmp_path):
    """Broken off after step 2, resumed from the checkpoint before it: weights, state and log as if nothing had been."""
    knowing = {"allocate": "gvm_online", "weighting": "prompt"}  # what was seen of a prompt decides what it gets
    config = smallest(steps=4, checkpoint={"every": 2}, update={"epochs": 2}, **knowing)

    def break_off(event):
        if isinstance(event, StepReport) and event.step == 2:
            raise BrokeOff

    whole = winnow.train(**{**config, "output": str(tmp_path / "whole")})
    with pytest.raises(BrokeOff):
        winnow.train(**config, watch=break_off)
    resumed = winnow.train(**config, resume=True)
    for name in ("model.safetensors", "trainer.tensors", "trainer.json"):
        assert (resumed.model / name).read_bytes() == (whole.model / name).read_bytes(), name
    assert _logged(resumed.folder) == _logged(whole.folder)


def _logged(folder):
    """The steps of the rows of metrics as they stand in the file, which a reader would merge; (step, prompt, index,
    reward) of every rollout. In the order of the log.
    """
    metrics = [json.loads(line)["step"] for line in (folder / METRICS).read_text().splitlines()]
    return metrics, [(row["step"], row["prompt_id"], row["index"], row["reward"]) for row in read_rows(folder)]
