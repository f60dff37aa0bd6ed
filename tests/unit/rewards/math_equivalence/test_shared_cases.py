"""Labelled pairs beside the folder of problem sets, by the reward `boxed`; other tables here repeat them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from winnow.records import Prompt, Rollout
from winnow.rewards.compose import make_reward
from winnow.rewards.math_equivalence import algebra


@pytest.fixture
def cases(test_data: Path) -> list[dict[str, Any]]:
    folder = test_data.parent / "cases"
    files = [folder / "math_false_positives.jsonl", folder / "math_false_negatives.jsonl"]
    if not all(file.is_file() for file in files):
        pytest.skip(f"no labelled pairs in {folder}")
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
def test_every_pair_is_judged_as_labelled(cases: list[dict[str, Any]]) -> None:
    reward = make_reward({"use": "boxed", "options": {"grader": "math"}})
    wrong = []
    for case in cases:
        prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q", answer=case["gold"], task="t")
        text = rf"So the answer is \boxed{{{case['answer']}}}."
        rollout = Rollout(
            index=0, tokens=np.zeros(1, np.int64), logprobs=np.zeros(1), text=text, finish="stop", version=0
        )
        if reward(prompt, rollout).correct is not case["equal"]:
            wrong.append(case)
    assert len(cases) >= 32
    assert wrong == []
