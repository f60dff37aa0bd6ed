"""MLflow, by its client: its fluent functions keep the run of a thread and of a process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError
from winnow.registry import register
from winnow.trackers.flat_config import LOGIN, config_text, flat_config
from winnow.trackers.tracked_run import ROLLOUT, Status, TrackedRun, Tracker

AT_ONCE = 100  # parameters or metrics in a call: MLflow takes no more of the first
LONGEST = 500  # characters of a parameter that every version of MLflow takes; the whole configuration is a file besides
LONGEST_NAME = 200  # characters: MLflow takes 250
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowTracker(Tracker):
    """One run of MLflow, continued under its id by a resume. Of a step that was done twice, the later value counts."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.id: str = run_id
        self._client = client

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        entities = [Metric(legal(name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(entities), AT_ONCE):
            self._client.log_batch(self.id, metrics=entities[first : first + AT_ONCE])

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """As a file of the form of MLflow's tables, without the pandas that its own function wants."""
        data = [[row[name] for name in ROLLOUT] for row in rows]
        text = json.dumps({"columns": list(ROLLOUT), "data": data})
        self._client.log_text(self.id, text, f"rollouts/step-{step:06d}.json")

    def notice(self, step: int, text: str) -> None:
        """As a file, one per step and text."""
        self._client.log_text(self.id, text, f"notices/step-{step:06d}-{time.time_ns()}.txt")

    def picture(self, step: int, name: str, png: bytes) -> None:
        """See `Tracker`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"step-{step:06d}.png"
            path.write_bytes(png)
            self._client.log_artifact(self.id, str(path), name)

    def close(self, status: Status) -> None:
        """See `Tracker`."""
        self._client.set_terminated(self.id, STATUS[status])

    def describe(self, config: Mapping[str, Any]) -> None:
        """The configuration: a parameter keeps its first value in MLflow, the file is that of the last launch."""
        from mlflow.entities import Param

        known = self._client.get_run(self.id).data.params
        values = {legal(name): str(value)[:LONGEST] for name, value in flat_config(config).items()}
        new = [Param(name, value) for name, value in values.items() if name not in known]
        for first in range(0, len(new), AT_ONCE):
            self._client.log_batch(self.id, params=new[first : first + AT_ONCE])
        self._client.log_text(self.id, config_text(config), "config.json")


@register("tracker", "mlflow", requires="mlflow")
def mlflow(
    run: TrackedRun,
    *,
    tracking_uri: str | None = None,
    experiment: str = "winnow",
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Tracker:
    """MLflow: a database or a server at `tracking_uri` ("sqlite:///mlflow.db", "http://..."), or where it is absent at
    MLFLOW_TRACKING_URI, or else MLflow's own choice, `mlflow.db` in the current folder.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent to anyone that the user did not name
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it would write to a terminal that a display has
    client = MlflowClient(tracking_uri=tracking_uri)
    if run.id is None:
        found = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if found is None else found.experiment_id
        run_id = client.create_run(place, run_name=name or run.name, tags=dict(tags or {})).info.run_id
    else:
        run_id = run.id
        _check_known(client, run_id)
        client.update_run(run_id, status="RUNNING")
    tracker = MlflowTracker(client, run_id)
    tracker.describe(run.config)
    return tracker


def _check_known(client: Any, run_id: str) -> None:
    """Raise ConfigError where MLflow knows no such run: MLFLOW_TRACKING_URI may have changed since."""
    from mlflow import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException as error:
        raise ConfigError(
            f"MLflow has no run {run_id} at {LOGIN.sub('', client.tracking_uri)}",
            remedy="set MLFLOW_TRACKING_URI to the place of the earlier launch, or remove the tracker's file in the "
            "run folder's `trackers` to start a new one",
            key="track",
            code="config.tracker",
        ) from error


def legal(name: str) -> str:
    """The name, if MLflow takes it: one of other letters (a "+" of a reward's part), with nothing, "." or ".." between
    its slashes, or too long would have all metrics of its call refused. One that is changed gets a digest, as two may
    become alike.
    """
    letters = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)
    legal = re.sub(r"(?<![^/])\.{0,2}(?=/|$)", "_", letters)[:LONGEST_NAME]
    return legal if legal == name else f"{legal}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
