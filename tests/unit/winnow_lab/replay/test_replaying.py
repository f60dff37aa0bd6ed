"""winnow replay over winnow's own runs: counts by hand, and the run's own selection, which it repeats exactly."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.config_file import validate
from winnow.core.select import fill_keep
from winnow.core.step import fill_advantages
from winnow.errors import ConfigError, DataError
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.logbook import Logbook, read_rows
from winnow.training.resolve import resolve_members
from winnow_lab.replay.replaying import replay
from winnow_lab.replay.text import lines_of

SEED = 5
LENGTHS = (2, 3, 4, 5)
REWARDS = {  # by step and prompt; NaN: the verifier failed
    (0, "a"): [0.0, 1.0, 1.0, 1.0],
    (0, "b"): [0.0, 0.0, 0.0, 0.0],
    (1, "a"): [0.0, 1.0, np.nan, 0.0],
    (1, "b"): [1.0, 0.0, 0.0, 0.0],
}


def sampled(prompt, rewards, mask=None):
    group = Group(
        prompt=Prompt(id=prompt, tokens=np.array([1]), text="?", answer="1", task="toy"),
        rollouts=tuple(
            Rollout(
                index=i, tokens=np.arange(length), logprobs=np.zeros(length), text="t",
                finish="length" if i == 3 else "stop", version=0, trainable=mask and mask(length),
            )
            for i, length in enumerate(LENGTHS[: len(rewards)])
        ),
    )  # fmt: skip
    return group.fill(outcomes=tuple(outcome(reward) for reward in rewards))


def outcome(reward):
    if np.isnan(reward):
        return Outcome(reward=reward, correct=None, kind="failed", cause="timeout")
    return Outcome(reward=reward, correct=bool(reward == 1), kind="correct" if reward == 1 else "wrong")


@pytest.fixture(params=["max_variance", "random", "percentile"])
def select(request):
    return request.param


def write(folder, select, *, only_kept=False, rewards=REWARDS, mask=None):
    """A run that selected 2 of 4 rollouts by `select`, written as a step of winnow writes it."""
    config = validate({"select": {"use": select, "keep_per_prompt": 2}, "seed": SEED, "advantage": "grpo"})
    members = resolve_members(config, base=folder)
    folder.mkdir(exist_ok=True)
    log = Logbook(folder, seed=SEED, rollouts="kept" if only_kept else "all")
    for step in (0, 1):
        groups = [sampled(prompt, own, mask) for (at, prompt), own in rewards.items() if at == step]
        groups = fill_advantages(members.advantage, [fill_keep(members, group, step) for group in groups])
        log.write(step, {"reward/mean": 0.5}, groups, [])
    return folder


def test_the_counts_are_those_of_the_log(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    found = replay(run, select="max_reward", keep=1)
    assert (found.program, found.steps, found.groups, found.flat, found.not_judged) == ("winnow", [0, 1], 4, 1, 1)
    assert (found.sampled.rollouts, found.sampled.tokens) == (16, 4 * sum(LENGTHS))
    assert found.kept_by_run.rollouts == 8
    assert found.kept.rollouts == 4
    # 3/16, 0, 2/9 (three judged), 3/16
    assert found.sampled.variance == pytest.approx((3 / 16 + 0 + 2 / 9 + 3 / 16) / 4)
    assert found.kept_by_run.variance == pytest.approx((0.25 + 0 + 0.25 + 0.25) / 4)
    assert found.kept.variance == 0
    kept = [row for row in read_rows(run) if row["keep"]]
    assert found.kept_by_run.tokens == sum(row["length"] for row in kept)
    assert found.tokens_saved == found.kept_by_run.tokens - found.kept.tokens > 0
    assert found.notes == []


def test_the_runs_own_selector_keeps_what_the_run_kept(tmp_path, select):
    """The random numbers that break ties are those of the run."""
    run = write(tmp_path / "run", select)
    found = replay(run, select=select, keep=2)
    assert found.tokens_saved == 0
    assert found.kept.rollouts == found.kept_by_run.rollouts == 8
    assert found.kept.variances == found.kept_by_run.variances


def test_tokens_of_an_environment_are_in_no_number(tmp_path):
    """Each rollout has one, and only those that the policy sampled are trained on."""
    run = write(tmp_path / "run", "max_variance", mask=lambda length: np.arange(length) != 1)
    assert replay(run, select="max_reward", keep=1).sampled.tokens == 4 * (sum(LENGTHS) - 4)


def test_texts_are_not_needed(tmp_path):
    whole, short = write(tmp_path / "a", "random"), write(tmp_path / "b", "random", only_kept=True)
    one, other = replay(whole, keep=1), replay(short, keep=1)
    assert one.kept == other.kept


def test_a_chain_reads_how_rollouts_ended(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    found = replay(run, select=["finished", "max_reward"], keep=4)
    # rollout 3 of each group was cut off, and rollout 2 of (1, "a") was not judged
    assert found.kept.rollouts == 3 + 3 + 2 + 3
    assert found.select.split() == ["finished", "then", "max_reward"]


def test_an_allocator_gets_the_pass_rates_of_the_step(tmp_path):
    """gvm gives everything to the prompt that was solved in step 0, and more to the harder one in step 1."""
    run = write(tmp_path / "run", "max_variance")
    found = replay(run, select="all", allocate="gvm")
    assert found.moved is not None
    assert found.moved.counts[:2] == [8, 0]
    first, second = found.moved.counts[2:]  # pass rates 1/3 and 1/4
    assert first + second == 8
    assert first <= second
    assert found.moved.budget == 16
    assert found.moved.left_out == 1
    assert found.moved.lacking == 4 + max(0, second - 4)
    assert found.kept.rollouts == 4 + (min(first, 4) - (min(first, 4) > 2)) + min(second, 4)


def test_an_allocator_with_a_history_gets_earlier_steps(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    found = replay(run, select="all", allocate="gvm_online")
    assert found.moved.counts[:2] == [4, 4]
    assert found.moved.counts[2:] == [6, 2]  # b was never solved: two to explore


def test_a_failed_verdict_is_one_of_the_allocated_rollouts(tmp_path):
    rewards = REWARDS | {(1, "b"): [np.nan, 1.0, 0.0, 0.0]}
    run = write(tmp_path / "run", "max_variance", rewards=rewards)
    found = replay(run, select="all", allocate="gvm_online")
    assert found.moved.counts == [4, 4, 6, 2]
    assert found.kept.rollouts == 4 + 4 + 3 + 1


def test_a_group_without_a_verdict_is_not_flat(tmp_path):
    rewards = REWARDS | {(1, "b"): [np.nan] * 4}
    found = replay(write(tmp_path / "run", "max_variance", rewards=rewards), select="max_reward", keep=1)
    assert (found.groups, found.flat, found.not_judged) == (4, 1, 5)


def test_uniform_changes_nothing(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    found = replay(run, select="max_variance", keep=2, allocate="uniform")
    assert found.moved.counts == [4] * 4
    assert found.moved.lacking == found.moved.left_out == 0
    assert found.tokens_saved == 0


def test_the_text_has_every_number(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    found = replay(run, select="max_reward", keep=1, allocate="gvm")
    text = "\n".join(lines_of(found))
    for number in (str(run), "4 groups", "16", "56", "max_reward", "gvm", f"{found.tokens_saved:,.0f}"):
        assert number in text


def test_the_command(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    options = ["--select", "finished", "--select", "max_reward", "--keep", "1", "--allocate", "gvm"]
    result = CliRunner().invoke(app, ["replay", str(run), *options])
    assert result.exit_code == 0, result.output
    expected = lines_of(replay(run, select=["finished", "max_reward"], keep=1, allocate="gvm"))
    assert result.output.splitlines() == "\n".join(expected).splitlines()


def test_by_default_four_are_kept_by_their_variance(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    result = CliRunner().invoke(app, ["replay", str(run)])
    assert result.output.splitlines() == "\n".join(lines_of(replay(run))).splitlines()
    assert replay(run).kept.rollouts == 15


def test_to_keep_more_than_every_group_has_is_refused(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    with refused(ConfigError, "4", "5", key="keep", code="config.combination"):
        replay(run, keep=5)
    result = CliRunner().invoke(app, ["replay", str(run), "--select", "finished", "--select", "random", "--keep", "5"])
    check_printed_error(result, "4", "5", code="config.combination")
    assert replay(run, select=["finished", "all"], keep=5).kept.rollouts == 11  # these selectors have no such option
    assert replay(run, select={"use": "random", "keep_per_prompt": 1}, keep=5).kept.rollouts == 4


def test_a_smaller_group_is_kept_whole(tmp_path):
    run = write(tmp_path / "run", "max_variance", rewards={(0, "a"): [0.0, 1.0], (1, "a"): [0.0, 1.0, 1.0, 1.0]})
    assert replay(run, keep=3).kept.rollouts == 2 + 3


def test_unusable_inputs_are_refused(tmp_path):
    run = write(tmp_path / "run", "max_variance")
    with refused(DataError, "nowhere", code="data.missing"):
        replay(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with refused(DataError, "empty", code="data.missing"):
        replay(tmp_path / "empty")
    with refused(ConfigError, "gvn", code="config.unknown_member"):
        replay(run, allocate="gvn")
    result = CliRunner().invoke(app, ["replay", str(run), "--select", "best"])
    check_printed_error(result, "best", code="config.unknown_member")
