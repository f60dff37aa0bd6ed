"""The metrics that each library has stored: {step: {metric: value}}, the later of two values of a step."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Values = dict[int, dict[str, float]]
BLOCK, HEADER = 32768, 7  # of a .wandb file: a LevelDB log after 7 bytes


def logged(run: Path) -> Values:
    """The metrics in metrics.jsonl."""
    values: Values = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row.pop("step")
        values.setdefault(step, {}).update({k: math.nan if v is None else v for k, v in row.items()})
    return values


def tracker_id(run: Path, name: str) -> str:
    return json.loads((run / "trackers" / f"{name}.json").read_text())["id"]


def runs_of(folder: Path) -> dict[str, int]:
    """The number of runs in each library; for W&B, as many as `wandb sync` of all its files would create."""
    from mlflow import MlflowClient
    from trackio.sqlite_storage import SQLiteStorage

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    launches = (folder / "run/trackers/wandb").glob("offline-run-*/*.wandb")
    started = [record.run.run_id for path in launches for record in _records(path) if record.HasField("run")]
    return {
        "mlflow": len(client.search_runs(experiments)),
        "trackio": len(SQLiteStorage.get_runs("winnow")),
        "wandb": len(set(started)),
    }


ONE_OF_EACH = {"mlflow": 1, "trackio": 1, "wandb": 1}


def from_tensorboard(run: Path) -> Values:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator  # TensorBoard's own
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(run / "tensorboard"), tensor_size_guidance={"scalars": 0})
    events.Reload()
    values: Values = {}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            for event in events.Tensors(tag):
                assert tag not in values.get(event.step, {}), "TensorBoard shows a step once"
                values.setdefault(event.step, {})[tag] = tensor_util.make_ndarray(event.tensor_proto).item()
    return values


def from_mlflow(run: Path, uri: str) -> Values:
    from mlflow import MlflowClient

    client, values, run_id = MlflowClient(tracking_uri=uri), dict[int, dict[str, float]](), tracker_id(run, "mlflow")
    for name in client.get_run(run_id).data.metrics:
        for metric in sorted(client.get_metric_history(run_id, name), key=lambda metric: metric.timestamp):
            values.setdefault(metric.step, {})[name] = metric.value
    return values


def from_trackio(run: Path) -> Values:
    from trackio.sqlite_storage import SQLiteStorage

    values: Values = {}
    for row in SQLiteStorage.get_logs("winnow", run.name, run_id=tracker_id(run, "trackio")):
        metrics = {name: math.nan if v is None else v for name, v in row.items() if "/" in name}
        values.setdefault(row["step"], {}).update(metrics)
    return values


def from_wandb(run: Path) -> Values:
    """Every launch's file, in the order in which `wandb sync` sends them."""
    values: Values = {}
    for path in sorted((run / "trackers" / "wandb").glob("offline-run-*/*.wandb")):
        for record in _records(path):
            if record.HasField("run"):
                assert record.run.run_id == tracker_id(run, "wandb"), "every launch is of one run"
            row = {item.key or item.nested_key[0]: _number(item.value_json) for item in record.history.item}
            if "step" in row:
                metrics = {name: v for name, v in row.items() if "/" in name}
                values.setdefault(int(row["step"]), {}).update(metrics)
    return values


def _number(text: str) -> Any:
    value = json.loads(text)
    return math.nan if value == "NaN" else value


def _records(path: Path) -> Iterator[Any]:
    """The whole records of a .wandb file, without one that a killed process left incomplete."""
    from wandb.proto import wandb_internal_pb2

    data, place, record = path.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + HEADER])
        record += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""
