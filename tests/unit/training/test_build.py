"""A machine's threads and verify workers, dealt to its ranks."""

from __future__ import annotations

import pytest
import torch

from winnow import ranks
from winnow.training import build
from winnow.training.build import threads_of_rank, workers_of_rank


@pytest.mark.parametrize(("local", "cores", "threads"), [(1, 8, 8), (2, 8, 4), (3, 8, 2), (4, 1, 1)])
def test_a_rank_takes_its_share_of_the_cores_and_at_least_one(monkeypatch, local, cores, threads):
    monkeypatch.setattr(ranks, "local_count", lambda: local)
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(build, "cpu_quota", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    assert threads_of_rank(0) == threads
    assert threads_of_rank(3) == 3


@pytest.mark.parametrize(
    ("quota", "local", "threads"), [(2.0, 1, 2), (1.5, 1, 2), (0.5, 1, 1), (4.0, 2, 2), (99.0, 1, 64)]
)
def test_a_quota_of_the_control_groups_bounds_the_threads(monkeypatch, quota, local, threads):
    """A container may see 64 cores and be limited to two."""
    monkeypatch.setattr(ranks, "local_count", lambda: local)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(build, "cpu_quota", lambda: quota)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    assert threads_of_rank(0) == threads


@pytest.mark.parametrize(("local", "wanted", "workers"), [(1, 4, 4), (2, 4, 2), (2, 5, 2), (4, 3, 1), (4, 0, 0)])
def test_verify_workers_are_of_a_machine_and_none_stays_none(monkeypatch, local, wanted, workers):
    monkeypatch.setattr(ranks, "local_count", lambda: local)

    assert workers_of_rank(wanted) == workers


def test_omp_num_threads_is_per_process(monkeypatch):
    """torchrun sets it for each of its ranks."""
    monkeypatch.setattr(ranks, "local_count", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert threads_of_rank(0) == 8
    assert threads_of_rank(3) == 3


def test_the_threads_of_a_run_end_with_it():
    before = torch.get_num_threads()
    with build.threads_set(before + 2):
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before
