"""Replaces itself with another command, which receives SIGTERM when its parent process exits or is killed.

    python tied_child.py LAUNCHER COMMAND...      LAUNCHER: the process id of the parent

A training run thus saves and exits when its sweep is killed. Only Linux has such a signal (PR_SET_PDEATHSIG);
elsewhere the command continues. The kernel sends it when the thread that started the command exits, so that must be a
thread that runs as long as its process. This file is run by its path and imports nothing of winnow.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(launcher):  # it exited before prctl, so no signal will follow
            sys.exit("the sweep exited before the run started")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
