"""`winnow train --ranks auto`: how many ranks suit the machine and the configuration, and that they are launched."""

from __future__ import annotations

import os

import pytest
import torch
from typer.testing import CliRunner

from winnow import ranks as this_process
from winnow.commands import app
from winnow.commands.train import elastic
from winnow.commands.train.here import TrainingRequest
from winnow.errors import ConfigError
from winnow.recipes import FOLDER

AHEAD = ("rollout.ahead=1", 'rollout.engine={use="native",process="own"}', 'correction="none"', "threads=1")


def request(*sets: str) -> TrainingRequest:
    return TrainingRequest(FOLDER / "arithmetic.toml", sets=sets)


@pytest.mark.parametrize(
    ("cores", "prompts", "threads", "ranks"),
    [
        (2, 32, 0, 2),
        (1.5, 32, 0, 2),  # a quota of one and a half cores
        (0.5, 32, 0, 1),
        (64, 32, 0, 8),  # many processes are not measured
        (8, 3, 0, 3),  # a prompt for each
        (8, 32, 4, 2),
        (2, 32, 4, 1),
    ],
)
def test_on_a_cpu_there_is_a_rank_per_core(monkeypatch, cores, prompts, threads, ranks):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(elastic, "usable_cores", lambda *, allowed: cores)
    sets = ("device=cpu", f"threads={threads}", f"rollout.prompts_per_step={prompts}")

    assert elastic.ranks_for(request(*sets), None) == ranks


def test_the_threads_of_a_rank_may_be_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr("winnow.control_groups.cpu_quota", lambda *_: None)

    assert elastic.ranks_for(request("device=cpu"), frozenset(range(8))) == 2


@pytest.mark.parametrize(("devices", "ranks"), [(0, 1), (1, 1), (4, 4)])
def test_on_gpus_there_is_a_rank_per_gpu(monkeypatch, devices, ranks):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)

    assert elastic.ranks_for(request("device=cuda"), None) == ranks


def test_ranks_that_would_share_a_gpu_are_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)

    with pytest.raises(ConfigError) as refused:
        elastic.launch(request("device=cuda"), 4)
    assert refused.value.key == "device"


def test_the_gpus_of_engines_have_no_ranks(monkeypatch, capsys):
    """Each rank has an engine of its own: two trainers on the first two devices, two engines on the others."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    engine = 'rollout.engine={use="vllm",process="own",device="cuda:2"}'

    assert elastic.ranks_for(request("device=cuda", engine), None) == 2
    assert "cuda:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sets",
    [
        (*AHEAD, "rollout.dynamic_sampling_rounds=1"),
        ('ranks.learner="sharded"', 'optimizer.moments="8bit"'),
    ],
    ids=["dynamic sampling one step ahead", "8-bit moments in shares"],
)
def test_what_several_ranks_cannot_do_is_done_by_one(sets, capsys, monkeypatch):
    monkeypatch.setattr(elastic, "usable_cores", lambda *, allowed: len(allowed))
    assert elastic.ranks_for(request("device=cpu", *sets), frozenset((0, 1))) == 1
    assert capsys.readouterr().err
    with this_process.assumed(2), pytest.raises(ConfigError):
        request("device=cpu", *sets).members()


def test_a_mistake_that_has_nothing_to_do_with_ranks_is_an_error():
    with pytest.raises(ConfigError):
        elastic.ranks_for(request("device=cpu", "rollout.prompts_per_step=0"), None)


@pytest.mark.parametrize(("cores", "launched"), [(2, [2]), (1, [])])
def test_auto_launches_several_ranks_and_one_trains_here(tmp_path, monkeypatch, cores, launched):
    called, here = [], []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(elastic, "usable_cores", lambda *, allowed: cores)
    monkeypatch.setattr(elastic, "launch", lambda request, ranks, *, allowed: called.append(ranks) or 0)
    monkeypatch.setattr("winnow.commands.train.here.train_here", lambda request: here.append(request) or 0)

    done = CliRunner().invoke(app, ["train", "arithmetic", "--output", str(tmp_path / "run"), "--ranks", "auto"])

    assert done.exit_code == 0, done.output
    assert called == launched
    assert len(here) == 1 - len(launched)


@pytest.mark.parametrize("words", [["0"], ["-1"], ["two"], ["1.5"], ["9" * 5000], ["auto", "--ray", "local"]])
def test_another_number_is_refused(words):
    assert CliRunner().invoke(app, ["train", "arithmetic", "--ranks", *words]).exit_code == 2


def test_a_number_of_ranks_is_assumed_in_a_block_only(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with this_process.assumed(3):
        assert (this_process.launched_count(), this_process.launched_here()) == (3, 3)
        with this_process.assumed(2):
            assert this_process.launched_count() == 2
        assert this_process.launched_count() == 3
    assert (this_process.launched_count(), this_process.count()) == (1, 1)
    assert "WORLD_SIZE" not in os.environ
