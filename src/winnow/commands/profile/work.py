"""Measure a point, in its process: load the policy as a run does, warm up, repeat the work, and time it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from winnow.commands.profile.device_memory import DeviceMemory
from winnow.commands.profile.points import Job, PointResult, Work
from winnow.commands.profile.sampling_work import sampling_work
from winnow.commands.profile.update_work import update_work
from winnow.models.device import resolve_device
from winnow.models.precision import keeps_masters, set_deterministic, set_matrix_products
from winnow.training.build import load_model
from winnow.training.prompts import prompt_tokenizer
from winnow.training.resolve import resolve_members


def measure(job: Job, loaded: Callable[[], None]) -> PointResult:
    """Measure the point's seconds and memory. It calls `loaded` after loading the model, when its time limit starts."""
    members = resolve_members(job.config, job.base)
    config = members.config
    torch.set_num_threads(config.threads or torch.get_num_threads())
    set_matrix_products(tf32=config.model.tf32)
    device = resolve_device(config.device)
    set_deterministic(device, deterministic=config.deterministic)
    tokenizer = prompt_tokenizer(config)
    memory = DeviceMemory(device)  # after the imports, which do not count
    policy = load_model(config, device, None, tokenizer, masters=keeps_masters(config))
    memory.copy_weights(policy.model)
    memory.limit(job.memory_limit)  # after loading, which may briefly need more
    loaded()
    began = time.perf_counter()
    if job.point.way == "sampling":
        make = sampling_work(members, policy, job.prompts, job.point.rollouts)
    else:
        make = update_work(members, policy, job.prompts, job.point)
    with make as work:
        return _repeated(job, work, device, memory, began)


def _repeated(
    job: Job, work: Callable[[int], Work], device: torch.device, memory: DeviceMemory, began: float
) -> PointResult:
    """A warm-up, then `job.repeats` repetitions, or fewer if the time is too short for them; at least one."""
    work(0)
    seconds, held, peak, done = list[float](), list[int | None](), list[int | None](), Work(0)
    for number in range(1, job.repeats + 1):
        held.append(memory.begin())
        done, duration = timed(lambda number=number: work(number), device)  # type: ignore[misc]
        peak.append(memory.peak())
        seconds.append(duration)
        # Twice the last duration, so that a slower next repetition still ends in time
        if time.perf_counter() - began + 2 * duration > job.seconds:
            break
    return PointResult(job.point, "measured", tuple(seconds), done, held=most(held), peak=most(peak))


def most(numbers: list[int | None]) -> int | None:
    """The maximum; None if memory is not counted."""
    return max((number for number in numbers if number is not None), default=None)


def timed(work: Callable[[], Work], device: torch.device) -> tuple[Work, float]:
    """The work done, and its seconds, including its GPU kernels."""
    _wait(device)
    start = time.perf_counter()
    done = work()
    _wait(device)
    return done, time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
