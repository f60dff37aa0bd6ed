"""The threads of trackers at the exit of a process."""

from __future__ import annotations

import os
import sys
import threading

NAME = "tracker "  # prefix of the threads' names


def exit_if_running(code: int) -> None:
    """Exit the process at once with this exit code if a tracker's thread is still running.

    Python 3.11 ends daemon threads by force at exit. This aborts the process if the thread is in C++, and the run's
    exit code is lost. The run has finished all its own work when this is called.
    """
    if any(thread.name.startswith(NAME) for thread in threading.enumerate()):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
