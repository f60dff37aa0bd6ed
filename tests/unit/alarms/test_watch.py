"""When an alarm is raised, the contents of its text, and the state after a resume."""

from __future__ import annotations

import random

import pytest
from rows import held_out_run, raised, run

from golden_files import assert_golden
from refusals import refused
from winnow.alarms.watch import Alarms, alarms_of_run
from winnow.config import dump
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.state.log import check_metrics

SHORT = {"alarms": {"steps": 1, "clear_steps": 3}}


def cut(*steps, count=20):
    """Rows in which most rollouts are cut off at these steps."""
    return run(count, rollout__truncated=lambda step: 0.9 if step in steps else 0.1)


def test_an_alarm_is_raised_again_after_clear_steps():
    """clear_steps = 3: it holds at steps 2, 4, 7 and 11, with one, two and three clear steps in between."""
    assert raised(cut(2, 4, 7, 11, 12), steps=1, clear_steps=3) == {"all_truncated": [2, 11]}
    assert [(a.step, a.last) for a in alarms_of_run(cut(2, 4, 7, 11, 12), SHORT)] == [(2, 7), (11, 12)]


def live(rows, settings=SHORT, cut_at=None):
    """(the log's rows, (step, name) of each alarm that was raised), as in a run that is resumed at `cut_at`."""
    alarms, log, begun = Alarms(settings), [], []
    for place, row in enumerate(rows):
        if place == cut_at:
            alarms = Alarms(settings)
            alarms.remember(log)
        between = {name: value for name, value in row.items() if name.startswith("eval/")}
        if between:
            alarms.evaluated(between)
        training = {name: value for name, value in row.items() if not name.startswith("eval/") and name != "step"}
        if not training:
            continue
        log.append({**row, **alarms.metrics(row["step"], training)})
        begun += [(alarm.step, alarm.name) for alarm in alarms.begun]
    return log, begun


@pytest.mark.parametrize("cut_at", [1, 5, 20, 33, 34, 35, 47])
def test_a_resume_changes_no_row_and_raises_no_alarm_twice(cut_at):
    rows = held_out_run()
    assert live(rows, {}, cut_at) == live(rows, {})
    assert {name for _, name in live(rows, {})[1]} == {"overfitting", "all_truncated", "sudden_drop"}


def test_a_run_and_its_log_raise_the_same_alarms():
    rows = held_out_run()
    pairs = [(alarm.step, alarm.name) for alarm in alarms_of_run(rows)]
    assert [pair for pair in pairs if pair[0] < len(rows)] == live(rows, {})[1]


def test_an_evaluation_that_a_resume_keeps_is_not_lost():
    """The log ends with the evaluation before the next step, which is a bad one."""
    rows = held_out_run()
    rows[40]["eval/accuracy_sampled"] = 0.1
    log, _ = live(rows[:40], {})
    evaluation = {name: value for name, value in rows[40].items() if name.startswith("eval/") or name == "step"}
    resumed, whole = Alarms(), Alarms()
    resumed.remember([*log, evaluation])
    whole.remember(log)
    whole.evaluated(evaluation)
    for row in rows[40:50]:
        training = {name: value for name, value in row.items() if not name.startswith("eval/")}
        assert resumed.metrics(row["step"], training) == whole.metrics(row["step"], training)
        assert resumed.begun == whole.begun
        assert [alarm.name for alarm in whole.begun] == (["sudden_drop"] if row["step"] == 40 else [])


def test_the_text_names_evidence_cause_and_keys_with_their_values():
    config = dump(validate({"rollout": {"max_new_tokens": 7, "stop": ["</a>", "\n"]}}))
    (alarm,) = alarms_of_run(cut(3, 4, 5, 6, 7, 8, count=9), config)
    assert_golden("alarm_text", alarm.text)
    assert alarm.evidence["rollout/truncated"] == pytest.approx(0.58)
    assert alarm.keys == {"rollout.max_new_tokens": 7, "rollout.stop": ["</a>", "\n"], "prompt.template": "chat"}
    assert (alarm.step, alarm.last) == (5, 8)


def test_an_alarm_names_the_keys_that_the_configuration_has():
    values = {"critic__updates": 0, "budget__tokens_valued": 9}
    (alarm,) = alarms_of_run(run(1, **values), dump(validate({})))
    assert (alarm.keys, "critic." in alarm.text) == ({}, False)
    (alarm,) = alarms_of_run(run(1, **values))
    keys = ["critic.optimizer.learning_rate", "critic.optimizer.max_grad_norm"]
    assert alarm.keys == dict.fromkeys(keys)
    assert all(key in alarm.text for key in keys)


def test_a_head_on_the_policys_backbone_and_a_function_have_other_causes():
    below = {"critic__explained_variance": -0.1}
    (alarm,) = alarms_of_run(run(20, **below, critic__loss=0.1))
    assert set(alarm.keys) == {"critic.coefficient", "optimizer.learning_rate", "critic.clip_range"}
    (alarm,) = alarms_of_run(run(20, **below))
    assert (alarm.name, alarm.keys) == ("values_explain_nothing", {})


def test_unknown_limits_of_another_version_are_ignored():
    assert raised_with({"alarms": {"truncated_share": 0.95, "of_tomorrow": 3}}) == []
    assert raised_with({"alarms": {}}) == raised_with({}) == ["all_truncated"]
    with refused(ConfigError, "most", key="alarms.truncated_share", code="config.value"):
        raised_with({"alarms": {"truncated_share": "most"}})


def raised_with(settings):
    return [alarm.name for alarm in alarms_of_run(run(9, rollout__truncated=0.9), settings)]


def test_no_log_raises_an_error():
    """Very large, negative or missing numbers: the rules return alarms or none."""
    noise = random.Random(0)
    numbers = (0, -1, 1, 0.5, 1e308, -1e308, 5e-324, float("nan"), None, 10**300)
    names = [*held_out_run()[0], "critic/updates", "critic/explained_variance", "loss/kl", "outcome/failed/timeout"]
    for _ in range(30):
        rows = []
        for step in range(0, 60, noise.choice((1, 1, 7))):
            row = {name: noise.choice(numbers) for name in names if noise.random() < 0.8} | {"step": step}
            check_metrics(row | {name: 0 for name, value in row.items() if value != value})
            rows.append(row)
        alarms_of_run(rows)


@pytest.mark.parametrize(
    ("alarms", "key"),
    [
        ({"off": None}, "alarms.off"),
        ({"off": 3}, "alarms.off"),
        ({"off": [1]}, "alarms.off.0"),
        ({"steps": "many"}, "alarms.steps"),
    ],
)
def test_limits_of_a_manifest_that_cannot_be_used_are_refused_by_key(alarms, key):
    with refused(ConfigError, key=key, code="config.value"):
        Alarms({"alarms": alarms})


@pytest.mark.parametrize("alarms", [3, "x", [1], None])
def test_a_table_of_limits_that_is_none_has_the_defaults(alarms):
    assert alarms_of_run(cut(2), {"alarms": alarms}) == alarms_of_run(cut(2))
