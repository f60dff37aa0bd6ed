"""What a plan reads of a run's log, against values by hand; and of the logs of other trainers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planned_run import RIGHT, SECONDS, N, group, rewards_of, write_planned_run
from refusals import refused
from winnow.algos.planning import Rule
from winnow.algos.step_plan import Setting
from winnow.algos.step_window import PHASES
from winnow.errors import ConfigError, DataError
from winnow.records import Group
from winnow.state.logbook import Logbook
from winnow_lab.plan.evidence import _logged, evidence_of

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_planned_run(tmp_path_factory.mktemp("planned") / "run")


def test_evidence_is_of_the_window(run):
    found = evidence_of(run, window=2)
    assert found.steps.tolist() == [1, 2]
    assert found.counts.tolist() == [[N - right, right] for right in RIGHT] * 2
    assert found.prompt.tolist() == [0, 1, 2, 3] * 2
    assert found.flat.tolist() == [1.0, 0.0, 0.0, 0.0] * 2
    assert (found.program, found.setting, found.rule) == ("winnow", Setting(N, N, 4), Rule("grpo"))
    statistics = found.statistics()
    assert (statistics.length, statistics.trained_length, statistics.grad_norm) == (6.0, 6.0, 0.5)
    assert statistics.mixture.mean == pytest.approx(np.mean(RIGHT) / N, abs=0.02)


def test_rewards_that_differ_by_rounding_alone_are_flat(tmp_path):
    alike = group("p", [0.3, 0.1 + 0.2] * 4)
    with refused(ConfigError, tmp_path / "alike", code="config.unsupported"):
        evidence_of(write_planned_run(tmp_path / "alike", [alike]))
    mixed = evidence_of(write_planned_run(tmp_path / "mixed", [alike, group("q", rewards_of(4))]), window=1)
    assert mixed.flat.tolist() == [True, False]


def test_a_prompt_that_is_drawn_twice_counts_twice(run):
    found = evidence_of(run, window=1)
    hard = found.statistics(np.array([3.0, 1.0, 0.0, 0.0])).mixture
    easy = found.statistics(np.array([0.0, 0.0, 1.0, 3.0])).mixture
    assert hard.mean < 0.1 < 0.6 < easy.mean


def test_the_seconds_of_the_first_step_and_of_a_checkpoint_do_not_count(run):
    found = evidence_of(run)
    assert found.steps[0] == 0
    assert found.statistics().seconds == {name: seconds for name, seconds in SECONDS.items() if name != "save"}
    assert found.statistics(steps=np.array([5.0, 1.0, 0.0])).seconds["update"] == pytest.approx(1.5)
    assert evidence_of(run, before=1).statistics().seconds["update"] == pytest.approx(2.5)


def test_lasting_is_the_share_of_longer_rollouts(run):
    """Half of them have 4 tokens, half 8."""
    lasting = evidence_of(run, window=1).lasting
    assert lasting.tolist() == [1.0] * 4 + [0.5] * 4


def test_tokens_of_an_environment_are_no_lengths_where_only_kept_rollouts_are_logged(tmp_path):
    """The policy sampled two tokens of each rollout of four or eight."""
    made = group("p", rewards_of(4))
    turns = tuple(replace(one, trainable=np.arange(len(one.tokens)) < 2) for one in made.rollouts)
    own = Group(prompt=made.prompt, rollouts=turns, outcomes=made.outcomes)
    own = own.fill(keep=np.arange(N) < 3, advantages=np.zeros(N))
    Logbook(tmp_path, seed=0, rollouts="kept").write(0, {}, [own], [])
    assert _logged(tmp_path, [0], masked=True)[2] == [2, 2, 2]
    assert _logged(tmp_path, [0], masked=False)[2] == [2, 2, 2, 8, 4, 8, 4, 8]


def test_a_failed_verdict_is_no_wrong_answer(tmp_path):
    groups = [group("p", [1.0, 0.0, np.nan, np.nan]), group("q", [np.nan] * 4)]
    found = evidence_of(write_planned_run(tmp_path / "run", groups), window=3)
    assert found.counts.tolist() == [[1, 1]] * 3  # q has no verdict in any of the three steps


def test_rewards_with_parts_have_levels(tmp_path):
    groups = [group("p", [0.0, 0.1, 1.0, 1.0]), group("q", [0.1, 0.1, 0.1, 0.1])]
    found = evidence_of(write_planned_run(tmp_path / "run", groups), window=1)
    assert found.levels.values.tolist() == [0.0, 0.1, 1.0]
    assert found.counts.tolist() == [[1, 1, 2], [0, 4, 0]]
    assert len(found.atoms.values) == 3


@pytest.mark.parametrize("right", [0, N], ids=["all wrong", "all right"])
def test_a_run_whose_groups_are_all_flat_has_no_plan(tmp_path, right):
    run = write_planned_run(tmp_path / "run", [group("p", rewards_of(right))])
    with refused(ConfigError, run, code="config.unsupported"):
        evidence_of(run)


def test_a_run_without_rollouts_is_refused_and_one_without_phases_is_not(tmp_path):
    with refused(DataError, tmp_path):
        evidence_of(tmp_path)
    lacks = write_planned_run(tmp_path / "lacks", **{"seconds/update": None})
    assert not evidence_of(lacks).has_phases
    for file in (lacks / "rollouts").iterdir():
        file.unlink()
    with refused(DataError, lacks, key="log.rollouts", code="data.empty"):
        evidence_of(lacks)


def test_a_run_of_several_processes_is_refused(tmp_path):
    run = write_planned_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"ranks": 2}))
    with refused(ConfigError, run, 2, code="config.unsupported"):
        evidence_of(run)


def test_a_manifest_with_an_invalid_configuration_is_refused(tmp_path):
    broken = write_planned_run(tmp_path / "run")
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["config"]["rollout"]["rollouts_per_prompt"] = "many"
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with refused(ConfigError, key="rollout.rollouts_per_prompt"):
        evidence_of(broken)


def test_a_run_whose_rollouts_were_cut_has_no_plan(tmp_path):
    """The log has their tokens up to the cut, which is not where they would have ended."""
    cut = write_planned_run(tmp_path / "cut", sets=['cut="stragglers"', 'weighting="prompt"'])
    with refused(ConfigError, cut, key="cut", code="config.unsupported"):
        evidence_of(cut)


def test_steps_without_an_update_have_no_gradient(tmp_path):
    """The root of the mean square: 0.5 in the two steps that have one, 0 in the third."""
    run = write_planned_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    del lines[1]["policy/grad_norm"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert evidence_of(run).statistics().grad_norm == pytest.approx(0.5 * (2 / 3) ** 0.5)
    none = write_planned_run(tmp_path / "none", **{"policy/grad_norm": None})
    assert evidence_of(none).statistics().grad_norm is None


def test_a_log_of_verl_has_sizes_phases_and_the_rest_of_a_step():
    found = evidence_of(FIXTURES / "verl_run", credit="rloo")
    assert (found.program, found.config, found.setting, found.rule) == ("verl", None, Setting(8, 8, 4), Rule("rloo"))
    assert found.has_phases
    assert found.has_tokens
    seconds = found.statistics().seconds
    assert set(seconds) <= {*PHASES, "other"}
    assert sum(seconds.values()) == pytest.approx(float(np.mean(found.rows["seconds/step"][1:])))


def test_a_log_of_trl_has_seconds_of_whole_steps_alone(tmp_path):
    copied = tmp_path / "run"
    (copied / "completions").mkdir(parents=True)
    for path in (FIXTURES / "trl_run").rglob("*"):
        if path.is_file() and path.suffix in (".json", ".parquet"):
            (copied / path.relative_to(FIXTURES / "trl_run")).write_bytes(path.read_bytes())
    (copied / "winnow.toml").write_text("reward_weights = { right = 1.0, short = 0.5 }")
    found = evidence_of(copied)
    assert (found.program, found.setting) == ("TRL", Setting(8, 8, 4))
    assert (found.has_tokens, found.has_phases, found.has_seconds) == (True, False, True)
    assert len(found.levels.values) == 6  # of a sum with a length
    assert found.explained > 0.9


def test_a_log_of_prime_rl_has_what_was_trained_on():
    found = evidence_of(FIXTURES / "prime_rl_run")
    assert (found.program, found.setting.rollouts) == ("prime-rl", 4)
    assert 2 <= found.setting.kept < 4
    assert not found.has_phases


@pytest.mark.parametrize("name", ["openrlhf_run", "skyrl_run"])
def test_a_log_without_rollouts_is_refused_with_its_own_reason(name):
    """The remedy names no key of winnow's configuration, which another trainer's run does not have."""
    with refused(DataError, name, code="data.missing") as caught:
        evidence_of(FIXTURES / name)
    assert "log.rollouts" not in str(caught.value)


def test_counts_that_no_row_has_are_refused_by_name(tmp_path):
    run = write_planned_run(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps({**row, "group/count": None}) + "\n" for row in rows))
    with refused(DataError, "group/count", code="data.incomplete"):
        evidence_of(run)
