"""python run_program.py FOLDER STEPS RESUME KILL_AFTER CONFIG: a small run with trackers. After KILL_AFTER steps of
this launch it gets SIGKILL, or SIGTERM if the number is negative; with 0 it is not interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import winnow


def wait_for_trackers(folder: Path, track: list[object]) -> None:
    """Wait until each tracker was created, and a second longer for the items that were sent since."""
    while len(list(folder.glob("trackers/*.json"))) < len(track):
        time.sleep(0.1)
    time.sleep(1)


if __name__ == "__main__":
    folder, steps, resume, kill_after, config = sys.argv[1:]
    left = [int(kill_after)]

    def watch(event: object) -> None:
        if isinstance(event, winnow.StepReport) and left[0]:
            left[0] -= 1 if left[0] > 0 else -1
            if not left[0]:
                wait_for_trackers(Path(folder), json.loads(config)["track"])
                os.kill(os.getpid(), signal.SIGKILL if int(kill_after) > 0 else signal.SIGTERM)

    result = winnow.train(
        steps=int(steps),
        output=folder,
        threads=1,
        device="cpu",
        rollout={"prompts_per_step": 4, "rollouts_per_prompt": 4, "max_new_tokens": 12},
        evaluate={"problems": 2, "rollouts_per_prompt": 1, "every": 2},
        checkpoint={"every": 2, "background": False},
        verify={"workers": 0},
        resume=resume == "1",
        watch=watch,
        progress=False,
        **json.loads(config),
    )
    sys.exit(75 if result.interrupted else 0)
