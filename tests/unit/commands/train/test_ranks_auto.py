"""`winnow train --ranks auto`: how many ranks suit the machine, and that they are what is launched."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.train import elastic
from winnow.config import Config


def config(**changes):
    return Config.model_validate({"model": {"path": "bundled"}, "task": "arithmetic", "reward": "r1_zero", **changes})


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
    monkeypatch.setattr(elastic, "usable_cores", lambda: cores)

    assert elastic.ranks_for(config(device="cpu", threads=threads, rollout={"prompts_per_step": prompts})) == ranks


def test_the_threads_of_a_rank_may_be_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(elastic, "usable_cores", lambda: 8)

    assert elastic.ranks_for(config(device="cpu")) == 2


@pytest.mark.parametrize(("devices", "ranks"), [(0, 1), (1, 1), (4, 4)])
def test_on_gpus_there_is_a_rank_per_gpu(monkeypatch, devices, ranks):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)

    assert elastic.ranks_for(config(device="cuda")) == ranks


@pytest.mark.parametrize(("cores", "launched"), [(2, [2]), (1, [])])
def test_auto_launches_several_ranks_and_one_trains_here(tmp_path, monkeypatch, cores, launched):
    called, here = [], []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(elastic, "usable_cores", lambda: cores)
    monkeypatch.setattr(elastic, "launch", lambda request, ranks: called.append(ranks) or 0)
    monkeypatch.setattr("winnow.commands.train.here.train_here", lambda request: here.append(request) or 0)

    done = CliRunner().invoke(app, ["train", "arithmetic", "--output", str(tmp_path / "run"), "--ranks", "auto"])

    assert done.exit_code == 0, done.output
    assert called == launched
    assert len(here) == 1 - len(launched)


@pytest.mark.parametrize("words", [["0"], ["-1"], ["two"], ["1.5"], ["auto", "--ray", "local"]])
def test_another_number_is_refused(words):
    assert CliRunner().invoke(app, ["train", "arithmetic", "--ranks", *words]).exit_code == 2
