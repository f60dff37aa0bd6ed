"""TensorBoard: event files in the run folder, which `tensorboard --logdir runs` displays."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.registry import register
from winnow.trackers.interface import Status, TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """Event files. TensorBoard reads those of an earlier launch up to the first step of this one."""

    id = "tensorboard"  # the folder alone identifies a run

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write float64: by default, TensorBoard rounds to float32."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        self._writer.flush()

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one text per step. Prompts and the model's texts are blocks of code, so that no Markdown in them is
        rendered.
        """
        self._writer.add_text("rollouts", "\n\n".join(_in_markdown(row) for row in rows), step)
        self._writer.flush()

    def notice(self, step: int, text: str) -> None:
        """Write a text."""
        self._writer.add_text("notices", code_block(text), step)
        self._writer.flush()

    def picture(self, step: int, name: str, png: bytes) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(io.BytesIO(png)) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")
        self._writer.flush()

    def close(self, status: Status) -> None:
        self._writer.close()


@register("tracker", "tensorboard", requires="tensorboard")
def tensorboard(run: TrackedRun, *, folder: str | None = None) -> Tracker:
    """TensorBoard's event files in `folder`, by default `tensorboard` in the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    # TensorBoard applies `purge_step` from the second one that it reads, so the first launch sets it, too
    writer = SummaryWriter(folder or str(run.folder / "tensorboard"), purge_step=run.first_step)
    writer.add_text("config", code_block(json.dumps(run.config, indent=1)), run.first_step)
    return TensorBoardTracker(writer)


def code_block(text: str) -> str:
    """The text as a block of code in Markdown: every line is indented, so that no mark in the text ends the block."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _in_markdown(row: Mapping[str, Any]) -> str:
    numbers = {name: row[name] for name in ("index", "reward", "correct", "advantage", "keep", "reason", "finish")}
    summary = ", ".join(f"{name} {value}" for name, value in numbers.items())
    parts = (f"{row['prompt_id']}: {summary}", "prompt: " + row["prompt"], "text: " + (row["text"] or ""))
    return "\n\n<!-- -->\n\n".join(code_block(part) for part in parts)
