from __future__ import annotations

import math
import re

import pytest

from winnow.config_file import validate
from winnow.core.loop import step_notices
from winnow.records import StepReport


def notices(explained, *, steps=range(40)):
    config = validate({"advantage": "gae", "critic": {"pretraining_steps": 25}})
    reports = (StepReport(step=step, metrics={"critic/explained_variance": explained}) for step in steps)
    return {report.step: texts for report in reports if (texts := list(step_notices(config, report)))}


@pytest.mark.parametrize(("explained", "numbers"), [(-0.25, ["24", "25", "-0.25"]), (math.nan, ["24", "25"])])
def test_the_end_of_pretraining_is_one_notice(explained, numbers):
    ((step, (text,)),) = notices(explained).items()
    assert step == 24
    assert "critic.pretraining_steps" in text
    assert re.findall(r"-?\d+[\d.]*", text.partition("(")[0]) == numbers
    assert notices(explained, steps=range(25, 40)) == {}  # a resume after it


def test_a_run_that_ends_with_its_pretraining_is_not_said_to_go_on():
    config = validate({"steps": 25, "advantage": "gae", "critic": {"pretraining_steps": 25}})
    assert list(step_notices(config, StepReport(step=24, metrics={}))) == []
