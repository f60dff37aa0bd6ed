from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from winnow.config_file import validate
from winnow.records import StepReport
from winnow.training.notices import of_step


def said(explained, *, steps=range(40)):
    run = SimpleNamespace(config=validate({"advantage": "gae", "critic": {"pretraining_steps": 25}}))
    reports = (StepReport(step=step, metrics={"critic/explained_variance": explained}) for step in steps)
    return {report.step: texts for report in reports if (texts := list(of_step(run, report)))}


@pytest.mark.parametrize(
    ("explained", "more"),
    [
        (
            -0.25,
            "; before its last update the value model explained -0.25 of the returns' variance (1: all, 0: no more "
            "than a constant)",
        ),
        (math.nan, ""),
    ],
)
def test_the_end_of_pretraining_is_told_once(explained, more):
    over = "step 24: critic.pretraining_steps are over: the policy learns from step 25 on"
    assert said(explained) == {24: [over + more]}
    assert said(explained, steps=range(25, 40)) == {}  # a resume behind it
