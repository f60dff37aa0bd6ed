"""Weights & Biases. The x axis is winnow's step, a separate metric: W&B's step cannot decrease at a resume."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from winnow.errors import ConfigError
from winnow.registry import register
from winnow.trackers.interface import ROLLOUT, Status, TrackedRun, Tracker

STEP = "step"
LONGEST_TITLE = 60  # characters: W&B takes 63


class WandbTracker(Tracker):
    """One run of W&B, continued under its id by a resume."""

    def __init__(self, run: Any, library: Any) -> None:
        self.id = run.id
        self._run, self._library = run, library
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, STEP: step})

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table."""
        data = [[row[name] for name in ROLLOUT] for row in rows]
        table = self._library.Table(columns=list(ROLLOUT), data=data, allow_mixed_types=True)
        self._run.log({"rollouts": table, STEP: step})

    def notice(self, step: int, text: str) -> None:
        """Send an alert. `wait_duration` is 0, because by default W&B drops further alerts with the same title within a
        minute.
        """
        self._run.alert(title=text[:LONGEST_TITLE], text=text, wait_duration=0)

    def picture(self, step: int, name: str, png: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:  # W&B copies the file at once
            path = Path(folder) / "picture.png"
            path.write_bytes(png)
            self._run.log({name: self._library.Image(str(path)), STEP: step})

    def close(self, status: Status) -> None:
        """Finish the run. W&B has no status for an interrupted run, so it is a failed one until it is resumed."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


@register("tracker", "wandb", requires="wandb")
def wandb(
    run: TrackedRun,
    *,
    project: str = "winnow",
    entity: str | None = None,
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    mode: Literal["online", "offline"] | None = None,
) -> Tracker:
    """Weights & Biases. `mode` is WANDB_MODE by default; "offline" writes into the run folder."""
    import wandb as library

    folder = run.folder / "trackers"
    settings = library.Settings(
        console="off",  # W&B would capture winnow's output
        silent=True,
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        init_timeout=60,
    )
    online = (mode or library.setup().settings.mode) not in ("offline", "dryrun", "disabled")
    if online and not library.login(prompt=False):
        raise ConfigError(
            "W&B has no key on this machine",
            remedy="run `wandb login`, or set WANDB_API_KEY; or write into the run folder and send it later with "
            '`wandb sync`: track = {use = "wandb", mode = "offline"}',
            key="track",
            code="config.tracker",
        )
    return WandbTracker(
        library.init(
            project=project,
            entity=entity,
            name=name or run.name,
            group=group,
            tags=list(tags),
            mode=mode,
            dir=str(folder),
            id=run.id,
            resume="allow" if run.id else None,
            config=dict(run.config),
            allow_val_change=True,
            settings=settings,
        ),
        library,
    )
