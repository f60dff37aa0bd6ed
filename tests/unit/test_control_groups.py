from __future__ import annotations

import os

import pytest

from winnow.control_groups import control_groups, cpu_quota, usable_cores


def test_the_tightest_quota_of_the_control_groups_counts(tmp_path):
    of_process = tmp_path / "cgroup"
    of_process.write_text("0::/slice/job\n")
    assert cpu_quota(tmp_path, of_process) is None
    (tmp_path / "slice/job").mkdir(parents=True)
    (tmp_path / "slice/job/cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path, of_process) is None
    (tmp_path / "slice/cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path, of_process) == 1.5
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert cpu_quota(tmp_path, of_process) == 1.5


def test_a_quota_of_the_older_interface(tmp_path):
    for name, us in (("cpu.cfs_quota_us", "250000"), ("cpu.cfs_period_us", "100000")):
        (tmp_path / "cpu").mkdir(exist_ok=True)
        (tmp_path / "cpu" / name).write_text(us)
    assert cpu_quota(tmp_path, tmp_path / "absent") == 2.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert cpu_quota(tmp_path, tmp_path / "absent") is None


def test_the_groups_of_a_controller_are_those_of_the_process_and_around_it(tmp_path):
    of_process = tmp_path / "cgroup"
    of_process.write_text("4:memory:/docker/a\n3:cpu,cpuacct:/docker/b\n")
    found = control_groups("cpu", tmp_path, of_process)
    own = tmp_path / "cpu,cpuacct"
    assert set(found) == {tmp_path, tmp_path / "cpu", own, own / "docker", own / "docker" / "b"}
    of_process.write_text("0::/user.slice/job\n")
    slices = {tmp_path / "user.slice", tmp_path / "user.slice" / "job"}
    assert set(control_groups("memory", tmp_path, of_process)) == {tmp_path, tmp_path / "memory", *slices}


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 4), ("150000 100000", 1.5), ("900000 100000", 4)])
def test_usable_cores_are_those_of_affinity_and_quota(tmp_path, monkeypatch, limit, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 5}, raising=False)
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path, tmp_path / "absent") == cores
