"""The process of a point: every way in which it ends gives a result."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from winnow.config import Config
from winnow.errors import DataError
from winnow_lab.profile.measurement import measure_in_subprocess
from winnow_lab.profile.points import Job, Point, PointResult, ProfileRequest, Work
from winnow_lab.profile.work import DeviceMemory, is_out_of_memory

CPU, MIB = torch.device("cpu"), 2**20


def job(*, seconds=60.0, limit=None):
    return Job(Point("whole", 8), Config(), Path(), (), ProfileRequest((), (), 1, seconds, limit))


def ends_well(job, loaded):
    print("not shown")
    loaded()
    return PointResult(job.point, "measured", (1.0,), Work(tokens=os.getpid()))


def takes_memory(job, loaded):
    """Allocate 256 MiB."""
    memory = DeviceMemory(CPU)
    memory.limit(job.request.memory_limit)
    held = [torch.ones(MIB) for _ in range(64)]
    return PointResult(job.point, "measured", (1.0,), Work(tokens=len(held)))


def counts_memory(job, loaded):
    memory = DeviceMemory(CPU)
    kept = torch.ones(16 * MIB)  # 64 MiB, and temporarily another 128
    held = memory.begin()
    torch.ones(32 * MIB).sum()
    return PointResult(job.point, "measured", (1.0,), Work(tokens=len(kept)), held=held, peak=memory.peak())


def never_ends(job, loaded):
    loaded()
    time.sleep(1000)


def is_killed(job, loaded):
    os.kill(os.getpid(), signal.SIGKILL)


def exits(job, loaded):
    os.write(2, b"no luck\n")
    os._exit(3)


def is_ended_by_a_library(job, loaded):
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def refuses(job, loaded):
    raise DataError("no-such-folder")


def test_the_result_is_measured_in_another_process():
    result = measure_in_subprocess(job(), ends_well, on_cpu=True)
    assert (result.ending, result.seconds) == ("measured", (1.0,))
    assert result.work.tokens != os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on a CPU needs Linux")
def test_a_process_beyond_its_memory_limit_is_out_of_memory():
    result = measure_in_subprocess(job(limit=64 * MIB), takes_memory, on_cpu=True)
    assert result.ending == "out of memory", result
    assert result.why
    assert measure_in_subprocess(job(), takes_memory, on_cpu=True).work.tokens == 64  # without a limit


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted on Linux only")
def test_the_peak_includes_memory_that_was_freed():
    result = measure_in_subprocess(job(), counts_memory, on_cpu=True)
    assert result.held == pytest.approx(64 * MIB, abs=16 * MIB)
    assert result.peak == pytest.approx(192 * MIB, abs=16 * MIB)


@pytest.mark.parametrize(
    ("work", "ending", "names"),
    [
        (is_killed, "out of memory", ["SIGKILL"]),
        (is_ended_by_a_library, "out of memory", ["SIGABRT", "bad_alloc"]),
        (exits, "failed", ["3", "no luck"]),
        (refuses, "failed", ["no-such-folder"]),
    ],
)
def test_a_process_without_a_measurement_gives_the_reason(work, ending, names):
    result = measure_in_subprocess(job(), work, on_cpu=True)
    assert result.ending == ending
    assert all(name in result.why for name in names), result.why


def test_a_point_beyond_its_time_limit_is_killed():
    result = measure_in_subprocess(job(seconds=0.2), never_ends, on_cpu=True)
    assert result.ending == "out of time"
    assert "0.2" in result.why


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (OSError("No space left on device"), False),
    ],
)
def test_which_errors_mean_out_of_memory(error, memory):
    assert is_out_of_memory(error, limited=True) is memory
    assert not is_out_of_memory(RuntimeError("can't start new thread"), limited=False)
