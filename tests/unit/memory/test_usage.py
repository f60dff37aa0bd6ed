"""Free and used memory of this machine."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from winnow.memory.usage import MIB, Gauge, capacity, free_bytes, left_in_groups
from winnow.metrics import check

CPU = torch.device("cpu")


def test_this_machine_has_some_memory_and_not_all_of_it_is_free():
    assert 0 < free_bytes(CPU) < capacity(CPU)


def test_a_missing_device_has_no_memory():
    assert free_bytes(torch.device("cuda:77")) is None
    assert capacity(torch.device("cuda:77")) is None


def group(folder, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_control_group_leaves_its_limit_less_what_cannot_give_way(tmp_path):
    second = group(
        tmp_path / "v2", memory__max="1000\n", memory__current="700\n", memory__stat="anon 500\ninactive_file 150\n"
    )
    first = group(
        tmp_path / "v1",
        memory__limit_in_bytes="2000\n",
        memory__usage_in_bytes="2500\n",
        memory__stat="total_inactive_file 100\n",
    )
    unlimited = group(tmp_path / "max", memory__max="max\n", memory__current="7\n", memory__stat="inactive_file 1\n")
    endless = group(
        tmp_path / "v1max",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__usage_in_bytes="7\n",
        memory__stat="total_inactive_file 1\n",
    )
    assert list(left_in_groups([second, first, unlimited, endless, tmp_path / "gone"])) == [1000 - 700 + 150, 0]


def test_a_gauge_measures_memory_that_a_phase_leaves():
    gauge = Gauge()
    gauge.start()
    gauge.read("generate")
    held = np.ones(64 * MIB, dtype=np.uint8)  # up to 32 MiB may be in memory that glibc kept of an earlier test
    gauge.read("update")
    seen = gauge.metrics()
    check(seen)
    grown = seen["memory/update/cpu/resident"] - seen["memory/generate/cpu/resident"]
    assert grown == pytest.approx(held.nbytes / MIB, abs=8)
    assert seen["memory/update/cpu/peak_resident"] >= seen["memory/update/cpu/resident"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is read")
def test_a_gauge_is_cheap(monkeypatch):
    """One small file a reading, and nothing at the start of a phase: some 50 microseconds."""
    read, opened = [], open
    monkeypatch.setattr("builtins.open", lambda path, *how, **more: read.append(path) or opened(path, *how, **more))
    gauge = Gauge()
    for _ in range(3):
        gauge.start()
        gauge.read("update")
    assert read == ["/proc/self/status"] * 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gauge_has_each_phase_s_own_peak():
    torch.zeros(1, device="cuda")
    gauge = Gauge()
    gauge.start()
    torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda").sum()
    gauge.read("update")
    gauge.start()
    gauge.read("sync")
    seen = gauge.metrics()
    check(seen)
    assert seen["memory/update/cuda0/peak"] >= seen["memory/update/cuda0/allocated"] + 64
    assert seen["memory/sync/cuda0/peak"] < seen["memory/update/cuda0/peak"]
    assert seen["memory/sync/cuda0/reserved"] >= 64


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is read")
def test_a_kernel_without_peaks_is_measured_as_other_systems_are(tmp_path, monkeypatch):
    """The lines of gVisor."""
    status, opened = tmp_path / "status", open
    status.write_text("VmSize:\t9 kB\nVmRSS:\t7 kB\nVmData:\t5 kB\n")
    own = "/proc/self/status"
    monkeypatch.setattr(
        "builtins.open", lambda path, *how, **more: opened(status if path == own else path, *how, **more)
    )
    gauge = Gauge(devices=())
    gauge.read("update")
    assert set(gauge.metrics()) == {"memory/update/cpu/peak_resident"}
