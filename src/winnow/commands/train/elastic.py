"""`winnow train --ranks N`: torch's elastic launcher starts N processes on this machine, each a rank of the run.

The launcher runs in a separate thread, in which signals are blocked. This process forwards each signal to the ranks
once; torch's launcher does not receive it, as it would kill the ranks after 30 seconds. A rank has a separate session,
so that Ctrl-C in a terminal only reaches this process.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from winnow import ranks as this_process
from winnow.background import BackgroundWork
from winnow.commands.command_line import FAILED, INTERRUPTED, SAVED, print_text
from winnow.commands.train.here import TrainingRequest, train_here
from winnow.commands.train.rank_end import RankEnd, first_cause
from winnow.config import Config
from winnow.control_groups import usable_cores
from winnow.core.stop_signals import SIGNALS
from winnow.errors import ConfigError, unsupported
from winnow.models.device import planned_device
from winnow.state.folder import check_free
from winnow.trackers.feed import exit_if_running
from winnow.view.screen import escape_logs, escape_unprintable

POLL_SECONDS = 0.1
MOST_ON_CPU = 8  # ranks of `auto`: each has some 0.5 GB of libraries, and a small share of the prompts


def ranks_for(request: TrainingRequest, allowed: frozenset[int] | None) -> int:
    """The ranks of `--ranks auto`: the most that suit this machine and that the configuration allows.

    That is one per GPU. On a CPU it is one per usable core (of the `allowed` ones), or one per so many cores as a rank
    has threads by the key `threads` or OMP_NUM_THREADS; at most 8. Each rank gets at least one prompt.

    A small model samples faster in several processes of one thread than in one of several (docs/log.md). Raises
    ConfigError for a mistake in the configuration.
    """
    most = _most_ranks(request.members().config, allowed)
    for count in range(most, 1, -1):
        try:
            with this_process.assumed(count):
                request.members()
        except ConfigError as error:
            if count == most:
                print_text(f"fewer than {most} ranks, because {error}", err=True)
        else:
            return count
    return 1


def _most_ranks(config: Config, allowed: frozenset[int] | None) -> int:
    if planned_device(config.device).type == "cuda":
        count = max(1, torch.cuda.device_count())
    else:
        threads = config.threads or (torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1)
        count = min(MOST_ON_CPU, max(1, math.ceil(usable_cores(allowed=allowed)) // threads))
    return min(count, config.rollout.prompts_per_step)


def launch(request: TrainingRequest, ranks: int, *, allowed: frozenset[int] | None = None) -> int:
    """Train with `ranks` processes on this machine, and return the exit code of the run.

    The processes run on the `allowed` cores, as OpenMP may have bound this thread to one of them.

    Before a rank is started, raises ConfigError for a mistake in the configuration, and RunFolderError for a folder
    that already contains a run.
    """
    if this_process.launched_count() > 1:
        raise ConfigError(
            "this process is a rank already, as WORLD_SIZE is above 1, and cannot start further ranks",
            remedy="start the run without ranks, or unset WORLD_SIZE",
            code="config.combination",
        )
    with this_process.assumed(ranks):
        members = request.members()
    config = members.config
    gpus = torch.cuda.device_count() if planned_device(config.device).type == "cuda" else ranks
    if gpus < ranks:  # NCCL would refuse that at the end of the first step
        raise unsupported(
            f"{ranks} ranks need a GPU each, and this machine has {gpus}",
            remedy="start fewer ranks, or set device = 'cpu'",
            key="device",
        )
    if not request.resume:
        check_free(members.output)
    os.environ["OMP_PROC_BIND"] = "false"  # else OpenMP binds every rank to the same core
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # else gloo repeats each error of a rank in lines of C++
    with TemporaryDirectory(prefix="winnow-ranks-") as notes, _forwarded(ranks) as signals:
        running = BackgroundWork(lambda: _run_ranks(request, ranks, Path(notes), allowed), name="ranks")
        running.start()
        while not running.outcome.done():
            running.wait(POLL_SECONDS)
            signals.forward()
        code, failed = running.outcome.result()
        if failed is None:
            return code
        cause = first_cause(
            failed,
            [note for path in sorted(Path(notes).rglob("error.json")) if (note := RankEnd.read(path))],
            ranks=ranks,
            timeout_seconds=config.ranks.timeout_seconds,
            signals=signals.forwarded,
        )
    print_text(cause.text, err=True)
    return cause.code


def run_rank(request: TrainingRequest) -> int:
    """Train as a rank, in its process. After an error, the process exits with a code and leaves a note (RankEnd)."""
    os.setsid()
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # on one machine, even if its name resolves elsewhere
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Make this rank save and exit when its parent has exited. On Linux, torch already set this up in the kernel.
    parent = multiprocessing.parent_process()
    if parent is not None and not sys.platform.startswith("linux"):
        threading.Thread(target=_interrupt_after, args=(parent,), daemon=True).start()
    escape_unprintable()
    escape_logs()
    try:
        code = train_here(request, launched=True)
    except (KeyboardInterrupt, SystemExit) as error:  # torch's launcher would count both as success
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    if code not in (0, SAVED):
        exit_if_running(code)
        sys.exit(code)
    if parent is not None and not parent.is_alive():  # nobody reads the code, for which torch would wait for ever
        os._exit(code)
    atexit.register(exit_if_running, 0)  # at exit, as torch's launcher first needs the returned code
    return code


def _run_ranks(
    request: TrainingRequest, ranks: int, notes: Path, allowed: frozenset[int] | None
) -> tuple[int, tuple[int, int] | None]:
    """The exit code of all ranks, and the first failed one with its code, by torch's launcher of local processes."""
    if allowed is not None:
        os.sched_setaffinity(0, allowed)  # of this thread, which the ranks inherit
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # ranks inherit this mask until `run_rank` unblocks them
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # it logs each failure with a traceback; `first_cause` reports it in a line
    try:
        return max(elastic_launch(_launch_config(ranks, notes), run_rank)(request).values()), None
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return failure.exitcode, (rank, failure.exitcode)
    finally:
        logging.disable(before)


def _launch_config(ranks: int, notes: Path) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=POLL_SECONDS,
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(log_dir=str(notes)),
    )


@dataclass
class _Signals:
    """Signals that this process received, and those that it forwarded to the ranks."""

    ranks: int
    received: deque[int] = field(default_factory=deque)
    forwarded: set[int] = field(default_factory=set)
    _started: bool = False

    def forward(self) -> None:
        """Send the oldest waiting signal to every rank, once all are started."""
        processes = multiprocessing.active_children()
        self._started = self._started or len(processes) >= self.ranks
        if self.received and self._started:
            number = self.received.popleft()
            self.forwarded.add(number)
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid or 0, number)


@contextmanager
def _forwarded(ranks: int) -> Iterator[_Signals]:
    """Within the block, SIGTERM, SIGINT and SIGHUP are for the ranks. An ignored signal (nohup) stays ignored."""
    signals = _Signals(ranks)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    caught = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in caught:
        signal.signal(number, lambda got, frame: signals.received.append(got))
    try:
        yield signals
    finally:
        for number in caught:
            signal.signal(number, before[number])


def _interrupt_after(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
