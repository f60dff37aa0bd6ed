"""A reward whose file writes noise into every socket of the supervisor that imports it."""

from __future__ import annotations

import os
import stat
import sys

from winnow.records import Prompt, Rollout

for end in map(int, os.listdir("/proc/self/fd")) if "supervisor" in sys.argv[0] else ():
    try:
        if stat.S_ISSOCK(os.fstat(end).st_mode):
            os.write(end, b"noise\n7 {}\n")
    except OSError:
        continue


def noisy(prompt: Prompt, rollout: Rollout) -> bool:
    return True
