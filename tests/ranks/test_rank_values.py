"""Shows 1 of many ranks for a value model: values, loss, gradients and weights are those of one process, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ranked
from distances import relative
from ranked import Group
from update_cases import GVM
from value_cases import Valued

from value_models import FORMS

CASE = "value_cases:updates"
LIMIT = 1e-12
SLOW = pytest.mark.slow  # the two that are not have both learners, one with the policy's module and one with its own
IN_THE_SUITE = {("model", "sharded"), ("adapter", "replicated")}


def cases() -> list[Any]:
    return [
        pytest.param(form, learner, counts, id=f"{form}-{learner}-{name}",
                     marks=[] if name == "uneven" and (form, learner) in IN_THE_SUITE else SLOW)
        for form in FORMS
        for learner in ("replicated", "sharded")
        for name, counts in {"uneven": GVM, "one has nothing": (1,)}.items()
    ]  # fmt: skip


@pytest.mark.parametrize(("form", "learner", "counts"), cases())
def test_ranks_compute_what_one_computes(form, learner, counts, several: Group, model_folder) -> None:
    model = {"path": str(model_folder("qwen2")), **FORMS[form].get("model", {})}
    update = {"tokens_per_micro_batch": 256}
    config = {**FORMS[form], "model": model, "update": update, "ranks": {"learner": learner}}
    one: Valued = ranked.alone(CASE, config, counts)
    each: list[Valued] = several.run(CASE, config, counts)
    assert {of.sharded for of in each} == {learner == "sharded"}
    assert len(one.gradients) == 2
    for of in each:
        assert relative(of.values, one.values) <= LIMIT
        for found, expected in zip(of.gradients, one.gradients, strict=True):
            assert relative(found, expected) <= LIMIT
        np.testing.assert_allclose(of.losses, one.losses, rtol=LIMIT, atol=0)
        assert relative(of.weights, one.weights) <= LIMIT
        for name, weights in of.weights.items():  # and the ranks agree to the bit
            np.testing.assert_array_equal(weights, each[0].weights[name])
