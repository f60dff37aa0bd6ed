"""Trackers: where a run can be watched besides its folder. Importing this registers them all, and none of their
libraries.
"""

import winnow.trackers.mlflow
import winnow.trackers.tensorboard
import winnow.trackers.trackio
import winnow.trackers.wandb  # noqa: F401
from winnow.trackers.tracked_run import ROLLOUT, Status, TrackedRun, Tracker

__all__ = ["ROLLOUT", "Status", "TrackedRun", "Tracker"]
