"""The summaries of benchmarks that are run by hand on a quiet machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import demo


def test_a_demo_s_evaluations_before_and_after_are_in_its_summary(tmp_path):
    run, sizes = tmp_path / "0", {"eval/accuracy_sampled_sem": 0.1, "eval/accuracy_greedy": 0.5}
    step = {"seconds/step": 2.0, "budget/updates": 1.0, "budget/rollouts": 8.0, "reward/mean": 0.0}
    step |= {"budget/tokens_generated": 32.0, "budget/tokens_trained": 16.0}
    rows = [{"step": at, "eval/accuracy_sampled": at / 4, "eval/seconds": 1.0, **sizes} for at in (0, 2)]
    run.mkdir()
    rows[1:1] = [{"step": at, **step} for at in (0, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = demo.summary(run)
    assert plain["curve"] == {"0": 0.0, "2": 0.5}
    assert (plain["cost"]["steps"], plain["cost"]["seconds/step"], plain["cost"]["budget/tokens_trained"]) == (2, 4, 32)
    assert "after" not in plain

    for folder, accuracy in (("evaluated-0/against", 0.25), ("evaluated-0", 0.75)):
        names = ("accuracy_sampled", "accuracy_greedy")
        task = {
            "problems": 4,
            "rollouts_per_prompt": 2,
            "metrics": {**{f"eval/{name}": accuracy for name in names}, "eval/truncated": 1 - accuracy},
            "intervals": {name: {"low": accuracy - 0.1, "high": accuracy + 0.1} for name in names},
        }
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "metrics.json").write_text(json.dumps({"tasks": {"arithmetic": task}}))
    both = demo.summary(run)
    assert both["before"]["accuracy_sampled"] == {"mean": 0.25, "low": 0.15, "high": 0.35}
    assert both["after"]["accuracy_greedy"] == pytest.approx({"mean": 0.75, "low": 0.65, "high": 0.85})
    assert (both["before"]["truncated"], both["after"]["truncated"]) == (0.75, 0.25)
