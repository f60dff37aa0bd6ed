"""MLflow, through its client: its fluent functions keep one active run per thread and process."""

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

from winnow.config import leaves
from winnow.errors import ConfigError
from winnow.registry import register
from winnow.state.log import plain
from winnow.trackers.interface import LOGIN, ROLLOUT, Status, TrackedRun, Tracker

AT_ONCE = 100  # parameters or metrics per call: MLflow accepts at most 100 parameters
LONGEST = 500  # characters of a parameter that every version of MLflow accepts; config.json has the full values
LONGEST_NAME = 200  # characters: MLflow accepts 250, and `legal` may append a digest
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowTracker(Tracker):
    """One run of MLflow, continued under its id by a resume. If a step was done twice, its later value counts."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.id: str = run_id
        self._client = client

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        entities = [Metric(legal(name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(entities), AT_ONCE):
            self._client.log_batch(self.id, metrics=entities[first : first + AT_ONCE])

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a file in the format of MLflow's tables, where NaN is null. Their `log_table` would need pandas."""
        data = plain([[row[name] for name in ROLLOUT] for row in rows])
        text = json.dumps({"columns": list(ROLLOUT), "data": data})
        self._client.log_text(self.id, text, f"rollouts/step-{step:06d}.json")

    def notice(self, step: int, text: str) -> None:
        """Write a file, one per notice."""
        self._client.log_text(self.id, text, f"notices/step-{step:06d}-{time.time_ns()}.txt")

    def picture(self, step: int, name: str, png: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"step-{step:06d}.png"
            path.write_bytes(png)
            self._client.log_artifact(self.id, str(path), name)

    def close(self, status: Status) -> None:
        self._client.set_terminated(self.id, STATUS[status])

    def describe(self, config: Mapping[str, Any]) -> None:
        """Log the configuration. MLflow keeps a parameter's first value; config.json is of the last launch."""
        from mlflow.entities import Param

        known = self._client.get_run(self.id).data.params
        values = {legal(".".join(map(str, path))): str(value)[:LONGEST] for path, value in leaves(config)}
        new = [Param(name, value) for name, value in values.items() if name not in known]
        for first in range(0, len(new), AT_ONCE):
            self._client.log_batch(self.id, params=new[first : first + AT_ONCE])
        self._client.log_text(self.id, json.dumps(config, indent=1), "config.json")


@register("tracker", "mlflow", requires="mlflow")
def mlflow(
    run: TrackedRun,
    *,
    tracking_uri: str | None = None,
    experiment: str = "winnow",
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Tracker:
    """MLflow: a database or a server at `tracking_uri` ("sqlite:///mlflow.db", "http://..."). Its default is
    MLFLOW_TRACKING_URI, and without that MLflow's default, `mlflow.db` in the current folder.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # data goes only to the server that the user names
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # its log lines would break the live display
    client = MlflowClient(tracking_uri=tracking_uri)
    if run.id is None:
        experiment_id = _experiment(client, experiment)
        run_id = client.create_run(experiment_id, run_name=name or run.name, tags=dict(tags or {})).info.run_id
    else:
        run_id = run.id
        _check_known(client, run_id)
        client.update_run(run_id, status="RUNNING")
    tracker = MlflowTracker(client, run_id)
    tracker.describe(run.config)
    return tracker


def _experiment(client: Any, name: str) -> str:
    """The id of an experiment, which is created if there is none."""
    from mlflow import MlflowException

    existing = client.get_experiment_by_name(name)
    if existing is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another run may have created it meanwhile
            existing = client.get_experiment_by_name(name)
            if existing is None:
                raise
    return str(existing.experiment_id)


def _check_known(client: Any, run_id: str) -> None:
    """Raise ConfigError if MLflow has no such run: MLFLOW_TRACKING_URI may have changed since the earlier launch."""
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
    """The name in a form that MLflow accepts.

    MLflow refuses all metrics of a call if one of their names is wrong. A name may not be too long, nor have an empty
    part, "." or ".." between slashes, nor some characters, such as the "+" in a reward's part. A changed name gets a
    digest, so that no two are equal.
    """
    letters = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)
    legal = re.sub(r"(?<![^/])\.{0,2}(?=/|$)", "_", letters)[:LONGEST_NAME]
    return legal if legal == name else f"{legal}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
