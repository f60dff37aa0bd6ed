"""Trackio: a local database, a Space or a self-hosted server, displayed by `trackio show`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.errors import ConfigError
from winnow.registry import register
from winnow.trackers.interface import ROLLOUT, Status, TrackedRun, Tracker


class TrackioTracker(Tracker):
    """One run of Trackio, continued by a resume. If a step was done twice, its later row counts."""

    def __init__(self, run: Any, library: Any) -> None:
        self.id: str = run.id
        self._run, self._library = run, library

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log traces: the prompt and the completion as messages, all other columns as metadata."""
        self._run.log({"rollouts": [self._trace(row) for row in rows]}, step=step)

    def notice(self, step: int, text: str) -> None:
        """Send an alert."""
        self._run.alert(title="winnow", text=text, level=self._library.AlertLevel.INFO, step=step)

    def picture(self, step: int, name: str, png: bytes) -> None:
        from PIL import Image

        with Image.open(io.BytesIO(png)) as image:
            self._run.log({name: self._library.Image(image.convert("RGB"))}, step=step)

    def close(self, status: Status) -> None:
        self._run.finish()

    def _trace(self, row: Mapping[str, Any]) -> Any:
        messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["text"]}]
        rest = {name: row[name] for name in ROLLOUT if name not in ("prompt", "text")}
        return self._library.Trace(messages=messages, metadata=rest)


@register("tracker", "trackio", requires="trackio")
def trackio(
    run: TrackedRun,
    *,
    project: str = "winnow",
    name: str | None = None,
    group: str | None = None,
    space_id: str | None = None,
    server_url: str | None = None,
) -> Tracker:
    """Trackio: the local database, the Space `space_id` or the server `server_url`. Rollouts are traces."""
    import trackio as library

    _quiet(library)
    made = library.init(
        project=project,
        name=name or run.name,
        group=group,
        space_id=space_id,
        server_url=server_url,
        config=dict(run.config),
        resume="never" if run.id is None else "allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    if run.id not in (None, made.id):
        raise ConfigError(
            f"the newest run {made.name!r} in Trackio's project {project!r} is not the one that is resumed, and "
            f"Trackio identifies a run by its name alone",
            remedy="give each run a different `name`",
            key="track.name",
            code="config.tracker",
        )
    return TrackioTracker(made, library)


def _quiet(library: Any) -> None:
    """Silence Trackio's prints, which have no option that turns them off and would break the live display."""
    from trackio import run, utils

    for module in (library, run, utils):
        vars(module)["print"] = lambda *_, **__: None
