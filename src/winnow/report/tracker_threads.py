"""The threads of trackers, as the end of a process meets them."""

from __future__ import annotations

import os
import sys
import threading

NAME = "tracker "  # what their names begin with


def leave(code: int) -> None:
    """End the process at once with this exit code where the thread of a tracker is still at work.

    Python 3.11 ends such a thread by force, which aborts the process where it is in C++: the run's own code would be
    lost. What the run has to do at its end is done by now.
    """
    if any(thread.name.startswith(NAME) for thread in threading.enumerate()):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
