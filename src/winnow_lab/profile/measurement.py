"""The profile of a configuration: measure every point, each in a separate process.

Even a crash of that process gives a result, and its memory is freed.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import torch

from winnow.config import Config
from winnow.core.members import Members
from winnow.errors import ConfigError, WinnowError, format_error, signal_name
from winnow.memory.usage import capacity
from winnow.models.device import describe_gpu, resolve_device
from winnow.models.folder import weights_folder
from winnow.records import Prompt
from winnow.seeds import generator
from winnow.state.manifest import describe_run
from winnow.training.build import threads_of_rank
from winnow.training.prompts import prompt_tokenizer, render_lists
from winnow.training.resolve import check_installed, resolve_file
from winnow_lab.profile.points import Job, PointResult, ProfileRequest, points
from winnow_lab.profile.work import (
    check_limit,
    is_out_of_memory,
    lift_limit,
    measure,
    mentions_out_of_memory,
    prefer_for_oom_kill,
)

Measure = Callable[[Job, Callable[[], None]], PointResult]
PRELOADED = "winnow_lab.profile.work"
LAST = 400  # characters of a process's last output
ALL = "all"  # the selector that keeps everything


def measure_in_subprocess(job: Job, measure: Measure, *, on_cpu: bool) -> PointResult:
    """Return the result of `measure(job, loaded)`, called in a process that may run out of memory or time.

    It may take `request.seconds` after its call of `loaded`. On a CPU the process is forked from one that has imported
    everything and computed nothing; a process that uses CUDA cannot be forked, and is spawned.
    """
    context: Any = multiprocessing.get_context("forkserver" if on_cpu else "spawn")
    if on_cpu:
        context.set_forkserver_preload([PRELOADED])
    ours, theirs = context.Pipe()
    with tempfile.TemporaryFile() as log, ours:
        output = Connection(os.dup(log.fileno()))
        process = context.Process(target=_run_child, args=(job, measure, theirs, output), daemon=True)
        with theirs, output:
            process.start()
        try:
            result = _receive_result(job, ours)
            ending = _describe_exit(process) if result is None else ""
        finally:
            process.kill()
            process.join()
        return result or _result_without_message(job, ending, _last_output(log))


def _receive_result(job: Job, messages: Connection) -> PointResult | None:
    """The result that the process sends; None if it exited without one."""
    limit: float | None = None  # loading has no limit
    try:
        while messages.poll(limit):
            if isinstance(message := messages.recv(), PointResult):
                return message
            limit = job.request.seconds  # the message "loaded"
    except EOFError:
        return None
    return PointResult(job.point, "out of time", why=f"not measured within {job.request.seconds:g} seconds")


def _run_child(job: Job, measure: Measure, messages: Connection, output: Connection) -> None:
    """In the process: measure, and send the result."""
    prefer_for_oom_kill()
    threading.Thread(target=_exit_with_command, args=(messages,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C, and kills this process
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    try:
        result = measure(job, lambda: messages.send("loaded"))
    except Exception as error:
        lift_limit()
        result = _failed(job, error)
    messages.send(result)


def _exit_with_command(messages: Connection) -> None:
    """Exit when the command has exited or was killed, which closes the other end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        messages.recv()
    os._exit(1)


def _failed(job: Job, error: Exception) -> PointResult:
    message = format_error(error) if isinstance(error, WinnowError) else f"{type(error).__name__}: {error}"
    return PointResult(
        job.point,
        "out of memory" if is_out_of_memory(error, limited=job.request.memory_limit is not None) else "failed",
        why=_short(message),
    )


def _describe_exit(process: BaseProcess) -> str:
    """The signal or the status with which a process exited."""
    process.join()
    code = process.exitcode or 0
    return f"killed by {signal_name(-code)}" if code < 0 else f"exited with status {code}"


def _result_without_message(job: Job, ending: str, last: str) -> PointResult:
    """The result of a process that exited without one.

    SIGKILL counts as out of memory, because the kernel sends it then. A library may also abort the process.
    """
    killed = ending == f"killed by {signal.SIGKILL.name}"
    memory = killed or mentions_out_of_memory(last, limited=job.request.memory_limit is not None)
    ending = f"{ending} (by the system, for its memory?)" if killed and not last else ending
    why = f"its process was {ending}" if ending.startswith("killed") else f"its process {ending}"
    return PointResult(
        job.point, "out of memory" if memory else "failed", why=_short(f"{why}: {last}" if last else why)
    )


def _last_output(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-LAST:].decode("utf-8", "replace").strip()


def _short(text: str) -> str:
    return " ".join(text.split())[:LAST]


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

    def measure(self) -> Iterator[PointResult]:
        """Measure the points, one after the other."""
        for point in points(self.request, selects=self.selects != ALL):
            job = Job(point, self.config, self.members.base, self.prompts, self.request)
            one = measure_in_subprocess(job, measure, on_cpu=self.device.type == "cpu")
            self.found.append(one)
            yield one

    @cached_property
    def measured_on(self) -> dict[str, Any]:
        """The machine, the versions and the resolved configuration, as JSON."""
        described = describe_run(
            self.config,
            base=self.members.base,
            device=str(self.device),
            threads=threads_of_rank(self.config.threads),
            inputs={},
            packages=self.members.packages,
            gpu=describe_gpu(self.device),
        )
        machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "memory_bytes": capacity(torch.device("cpu"))}
        return {
            "date": datetime.date.today().isoformat(),
            "load_average": os.getloadavg(),  # before the first point: the load of other processes
            **machine,
            **{name: value for name, value in described.items() if name not in ("config", "base", "recipe", "inputs")},
        }


def prepare_profile(
    config: Path, sets: Sequence[str], request: ProfileRequest, *, unset: Sequence[str] = ()
) -> Profile:
    """Check everything before weights are loaded, and choose the prompts. Raises ConfigError or DataError."""
    members = resolve_file(config, sets, unset)
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
    every = render_lists(members, [problems], tokenizer)[0].prompts
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
