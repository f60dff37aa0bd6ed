"""A decision from its row alone: what a row has to contain, and what changes its choice."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from winnow.algos.costs import CostCurve, StepCosts
from winnow.algos.planning import Rule
from winnow.algos.size_choice import SizeBounds
from winnow.algos.size_decision import decided, evidence_of, looks, run_of, weight_before
from winnow.algos.step_plan import Setting, StepModel
from winnow.algos.step_window import COLUMNS, lasting_of

BOUNDS = SizeBounds(rollouts=(2, 32), kept=(2, 16), prompts=(2, 16))
COSTS = StepCosts(
    CostCurve(np.array([8.0, 64.0]), np.array([1.0, 1.2]), tokens_per_rollout=6.0),
    CostCurve(np.array([8.0, 64.0]), np.array([1.0, 8.0]), tokens_per_rollout=6.0),
    source="by hand",
)
SECONDS = {"generate": 1.0, "verify": 0.1, "select": 0.1, "logprobs": 0.25, "update": 1.0, "sync": 0.1, "step": 3.0}
RESULTS = ("measured", "noise", "outcome", "compared", "settings", "chosen", "expected", "waits", "error", "reason")


def step(number, rights=(0, 1, 4, 7), n=8, **changes):
    """A step whose groups have so many right rollouts of n, and lengths of 4 and 8 tokens."""
    numbers = {
        "group/count": len(rights), "budget/rollouts": n * len(rights), "budget/tokens_generated": 6 * n * len(rights),
        "select/trained": 12, "budget/tokens_trained": 72, "seconds/save": 0.0,
        "policy/gradient_along": 0.5, "policy/gradient_square": 1.0,
        **{f"seconds/{name}": seconds for name, seconds in SECONDS.items()},
    }  # fmt: skip
    rewards = np.array([float(i < right) for right in rights for i in range(n)])
    lengths = np.bincount([4, 8], weights=[len(rewards) // 2] * 2).astype(int)
    return {"step": number, "rewards": rewards, "sizes": [n] * len(rights), "lengths": lengths, **numbers, **changes}


def row(steps=None, costs=None, **changes):
    """A row as the file has it: through JSON."""
    left = {"earlier": None, "work": [[16.0, 96.0, 0.0, 0.9, 0.0, 0.0]], "noise": None, "updates": 0, "expected": None}
    numbers = {"epochs": 1, "updates": 1, "trains_all": False, "decay": 0.9, "at_once": 512}
    made = {
        "jump": True, "whole": True, "before": {"rollouts": 8, "kept": 4, "prompts": 4},
        "run": run_of(BOUNDS, Rule("grpo"), costs, **numbers),
        "evidence": {**evidence_of([step(k) for k in range(4)] if steps is None else steps), **left},
    }  # fmt: skip
    return json.loads(json.dumps({**made, **changes}))


def test_the_choice_and_its_forecast_follow_from_the_keys_that_the_module_names():
    whole = row()
    found = decided(whole)
    assert found == decided({**whole, **found, "step": 4, "seconds": 1.0, "chosen": None, "measured": None})
    assert found == decided({key: whole[key] for key in ("run", "before", "jump", "whole", "evidence")})
    assert json.loads(json.dumps(found)) == found
    for key in ("run", "before", "jump", "whole", "evidence"):
        with pytest.raises(KeyError):
            decided({name: value for name, value in whole.items() if name != key})


def test_a_row_is_not_changed():
    made = row(costs=COSTS)
    before = copy.deepcopy(made)
    decided(made)
    assert made == before


@pytest.mark.parametrize(
    ("name", "factor"), [("seconds/update", 30.0), ("seconds/generate", 30.0), ("policy/gradient_along", 0.02)]
)
def test_a_changed_measurement_changes_the_choice(name, factor):
    """Dear updates and noisy gradients are answered by other sizes than dear sampling."""
    made, changed = row(), row()
    steps = changed["evidence"]["steps"]
    steps[name] = [factor * value for value in steps[name]]
    if name.startswith("seconds"):
        steps["seconds/step"] = [value + (factor - 1) * SECONDS[name[8:]] for value in steps["seconds/step"]]
    assert decided(changed)["chosen"] != decided(made)["chosen"]


def test_changed_rewards_change_the_choice():
    easy = [step(k, rights=(7, 8, 8, 8) * 4, **{"group/count": 16}) for k in range(4)]
    mixed = [step(k, rights=(3, 4, 4, 5) * 4, **{"group/count": 16}) for k in range(4)]
    assert decided(row(easy))["chosen"] != decided(row(mixed))["chosen"]


def test_bounds_law_and_kept_work_are_read_from_the_row():
    made = row()
    chosen = decided(made)["chosen"]
    assert chosen != made["before"]
    narrow = copy.deepcopy(made)
    narrow["run"]["bounds"] = {"rollouts": [8, 8], "kept": [4, 4], "prompts": [4, 4], "keeps_all": False}
    found = decided(narrow)
    assert (found["settings"], found["chosen"]) == (1, made["before"])
    for path, value in ((("run", "law"), "tuned"), (("run", "noise", "rollout"), 0.01), (("evidence", "work"), [])):
        other = copy.deepcopy(made)
        place = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert decided(other)["expected"] != decided(made)["expected"]


def test_given_costs_are_in_the_row_and_those_of_the_run_are_not_used():
    made, other = row(costs=COSTS), row(costs=COSTS)
    other["evidence"]["steps"] |= {name: [None] * 4 for name in COLUMNS if name.startswith("seconds/")}
    found, expected = decided(made), decided(other)
    assert found["chosen"] == expected["chosen"]
    assert found["expected"] == expected["expected"]
    assert found["measured"]["costs"] == "by hand"
    dear = StepCosts(COSTS.update, COSTS.sampling)
    assert decided(row(costs=dear))["chosen"] != found["chosen"]


def test_evidence_counts_equal_groups_once():
    found = evidence_of([step(0), step(1, rights=(4, 1, 8))])
    assert found["levels"] == [0.0, 1.0]
    kinds = {tuple(group["counts"]): (group["flat"], group["times"]) for group in found["groups"]}
    assert kinds == {(8, 0): (True, 1), (7, 1): (False, 2), (4, 4): (False, 2), (1, 7): (False, 1), (0, 8): (True, 1)}
    assert found["lengths"] == [[4, 8], [28, 28]]
    assert found["steps"]["step"] == [0, 1]
    assert found["steps"]["seconds/update"] == [1.0, 1.0]
    assert lasting_of(*found["lengths"]).tolist() == [1.0] * 4 + [0.5] * 4


def test_groups_of_one_level_are_flat_only_if_their_rewards_are_equal():
    """24 rewards become six levels."""
    rewards = np.linspace(0.0, 1.0, 24)
    steps = [step(0, rewards=np.concatenate([rewards, rewards[[1, 2]], [1.0, 1.0]]), sizes=[24, 2, 2])]
    groups = {tuple(group["counts"]): group["flat"] for group in evidence_of(steps)["groups"]}
    assert {(2, 0, 0, 0, 0, 0): False, (0, 0, 0, 0, 0, 2): True}.items() <= groups.items()
    assert sorted(groups.values()) == [False, False, True]


def test_groups_whose_rewards_differ_by_rounding_alone_are_flat():
    alike, sure = [0.3, 0.1 + 0.2], [0.0, 1.0]
    assert evidence_of([step(0, rewards=np.array(alike), sizes=[2])])["groups"] == [{"flat": True, "times": 1}]
    found = evidence_of([step(0, rewards=np.array(alike + sure), sizes=[2, 2])])
    assert [(group["counts"], group["flat"]) for group in found["groups"]] == [((0, 2, 0), True), ((1, 0, 1), False)]


@pytest.mark.parametrize("whole", [True, False])
def test_without_a_signal_nothing_is_compared(whole):
    flat = decided(row([step(0, rights=(0, 8))], whole=whole))
    none = decided(row([step(0, rewards=np.zeros(0), sizes=[])], whole=whole))
    for found in (flat, none):
        assert found.keys() == {"chosen", "reason", "waits"}
        assert found["waits"] is not whole
    assert flat["reason"] != none["reason"]


def test_what_came_of_the_last_decision_is_beside_what_was_expected():
    expected = {"gain": 1.5, "seconds": 2.0, "tokens": 90.0, "flat": 0.5, "signal_share": 0.25}
    made = row()
    made["evidence"]["expected"] = expected
    found = decided(made)
    assert decided(row())["outcome"] is None
    assert found["outcome"] == {
        name: [expected[name], found["measured"][name]] for name in ("seconds", "tokens", "flat", "signal_share")
    }
    assert found["measured"]["seconds"] == pytest.approx(3.0)


def test_products_of_the_sizes_before_are_corrected_by_their_signal():
    """AdamW's mean gradient still has gradients of the sizes before; after an early jump, fewer than later."""
    shares = {}
    for start in (2, 200):
        steps = [step(start + k, **{"policy/gradient_along": 0.25}) for k in range(4)]
        made, other = row(steps), row(steps)
        other["evidence"]["earlier"] = {"rollouts": 2, "kept": 2, "prompts": 16}
        assert decided(made)["measured"]["signal_share"] == 0.25
        shares[start] = decided(other)["measured"]["signal_share"]
    assert 0.25 < shares[2] < shares[200]
    model = StepModel(Setting(8, 4, 4), Rule("grpo"))
    same = row([step(k) for k in range(2, 6)])
    same["evidence"]["earlier"] = same["before"]
    assert decided(same)["measured"]["signal_share"] == 0.5
    assert model.current == Setting(**same["before"])


@pytest.mark.parametrize(("before", "since"), [(2, [0]), (2, [1]), (2, [5]), (40, [3]), (4, [4, 5, 6, 7]), (0, [0, 1])])
def test_the_weight_of_earlier_updates_is_that_in_adamws_mean_without_its_bias(before, since):
    """The earlier gradients are 1, and those of the window 0."""
    weights = []
    for new in since:
        mean = 0.0
        for place in range(before + new):
            mean = 0.9 * mean + 0.1 * (place < before)
        weights.append(mean / (1 - 0.9 ** (before + new)) if before + new else 0.0)
    assert weight_before(0.9, before, since) == pytest.approx(np.mean(weights))


def test_a_look_has_a_standard_error_that_a_whole_window_has_not():
    whole, early = decided(row()), decided(row(whole=False))
    assert "error" not in whole
    assert early["error"] > 0
    assert early == decided(row(whole=False))  # its draws are the same
    assert [steps for steps in range(20) if looks(steps)] == [2, 4, 8, 16]


def test_one_product_of_a_look_measures_no_noise():
    """Its scatter is not known. At the end of a window it counts."""
    steps = [step(0, **{"policy/gradient_along": None}), step(1)]
    assert decided(row(steps, whole=False))["noise"] == {}
    assert decided(row(steps))["noise"]["updates"] == 1
    assert decided(row([*steps, step(2)], whole=False))["noise"]["updates"] == 2
