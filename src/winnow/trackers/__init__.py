"""Trackers: services that display a run while it trains. Importing this package registers all of them, without
importing their libraries.
"""

import winnow.trackers.mlflow
import winnow.trackers.tensorboard
import winnow.trackers.trackio
import winnow.trackers.wandb  # noqa: F401
from winnow.trackers.interface import ROLLOUT, Status, TrackedRun, Tracker

__all__ = ["ROLLOUT", "Status", "TrackedRun", "Tracker"]
