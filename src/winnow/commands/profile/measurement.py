"""The profile of a configuration: measure every point, each in a separate process."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from winnow.commands.profile.apart import measure_in_subprocess
from winnow.commands.profile.device_memory import check_limit
from winnow.commands.profile.points import WAYS, Job, Point, PointResult, ProfileRequest, Way, points
from winnow.commands.profile.work import measure
from winnow.config import Config
from winnow.config_file import load
from winnow.errors import ConfigError
from winnow.memory.usage import capacity
from winnow.models.device import describe_gpu, resolve_device
from winnow.models.model_folder import weights_folder
from winnow.records import Prompt
from winnow.seeds import generator
from winnow.state.manifest import describe_run
from winnow.training.members import Members
from winnow.training.prompts import prompt_tokenizer, render_prompts
from winnow.training.resolve import check_installed, resolve_members

ALL = "all"  # the selector that keeps everything


@dataclass
class Profile:
    """The configuration, the device, the requested points, and the results so far."""

    members: Members
    request: ProfileRequest
    device: torch.device
    prompts: tuple[Prompt, ...]  # a random choice of the task's training problems
    found: list[PointResult] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def selects(self) -> str:
        """A description of the selectors: "max_variance, 4 of 16"."""
        names = [member.label for member in self.config.select if member.label != ALL] or [ALL]
        numbers = (member.options.get("keep_per_prompt") for member in self.config.select)
        kept = min((number for number in numbers if number is not None), default=None)
        of = "" if kept is None else f", {kept} of {self.config.rollout.rollouts_per_prompt}"
        return " and ".join(names) + of

    def job(self, point: Point) -> Job:
        request = self.request
        return Job(
            point=point,
            config=self.config,
            base=self.members.base,
            prompts=self.prompts,
            repeats=request.repeats,
            seconds=request.seconds,
            memory_limit=request.memory_limit,
        )

    def measure(
        self,
        measure: Callable[[Job, Callable[[], None]], PointResult] = measure,
        *,
        ways: Collection[Way] = tuple(WAYS),
    ) -> Iterator[PointResult]:
        """Measure the points of these ways, one after the other."""
        for point in points(self.request, selects=self.selects != ALL):
            if point.way not in ways:
                continue
            one = measure_in_subprocess(self.job(point), measure, on_cpu=self.device.type == "cpu")
            self.found.append(one)
            yield one

    @cached_property
    def measured_on(self) -> dict[str, Any]:
        """The machine, the versions and the resolved configuration, as JSON."""
        described = describe_run(
            self.config,
            base=self.members.base,
            device=str(self.device),
            threads=self.config.threads or torch.get_num_threads(),
            inputs={},
            packages=self.members.packages,
            gpu=describe_gpu(self.device),
        )
        machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "memory_bytes": capacity(torch.device("cpu"))}
        return {
            "date": datetime.date.today().isoformat(),
            "load_average": os.getloadavg(),  # before the first point: the load of other processes
            **machine,
            **{name: value for name, value in described.items() if name not in ("config", "base", "inputs")},
        }


def prepare_profile(
    config: Path, sets: Sequence[str], request: ProfileRequest, *, unset: Sequence[str] = ()
) -> Profile:
    """Check everything before weights are loaded, and choose the prompts. Raises ConfigError or DataError."""
    members = resolve_members(load(config, sets, unset), base=config.parent)
    if members.reads_values:
        raise ConfigError(
            "winnow profile measures sampling and the policy's update, and no value model's update",
            remedy="profile the configuration without [critic], and with an advantage that reads no values "
            "(advantage.use = 'grpo')",
            key="critic",
            code="config.unsupported",
        )
    device = resolve_device(members.config.device)
    check_limit(device, request.memory_limit)
    check_installed(members)
    problems, tokenizer = members.task("train"), prompt_tokenizer(members.config)
    weights_folder(members.config.model.path)
    every = render_prompts(members, problems, tokenizer).prompts
    rng = generator(members.config.seed, "profile", "prompts")
    most = max(*request.rollouts, *request.kept)
    needed = -(-most // members.config.rollout.rollouts_per_prompt)
    chosen = rng.permutation(len(every))[:needed]
    return Profile(members, request, device, tuple(every[i] for i in chosen))


def cpu_name() -> str:
    """The processor's name on Linux; otherwise "unknown"."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
