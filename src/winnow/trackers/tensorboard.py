"""TensorBoard: event files in the run folder, which `tensorboard --logdir runs` finds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.registry import register
from winnow.trackers.flat_config import config_text
from winnow.trackers.tracked_run import Status, TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """Event files. Those of an earlier launch are read up to the first step of this one."""

    id = "tensorboard"  # nothing but the folder tells one run from another

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """As float64: by default, TensorBoard rounds to float32."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        self._writer.flush()

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """As one text per step, in which a model's own is a block of code, whatever marks it holds."""
        self._writer.add_text("rollouts", "\n\n".join(_in_markdown(row) for row in rows), step)
        self._writer.flush()

    def notice(self, step: int, text: str) -> None:
        """As text."""
        self._writer.add_text("notices", code_block(text), step)
        self._writer.flush()

    def picture(self, step: int, name: str, png: bytes) -> None:
        """See `Tracker`."""
        import numpy as np
        from PIL import Image

        with Image.open(io.BytesIO(png)) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")
        self._writer.flush()

    def close(self, status: Status) -> None:
        """See `Tracker`."""
        self._writer.close()


@register("tracker", "tensorboard", requires="tensorboard", instead_of={"tensorboardx": "the same files"})
def tensorboard(run: TrackedRun, *, folder: str | None = None) -> Tracker:
    """TensorBoard's event files, in `folder`, or else in the run folder's `tensorboard`."""
    from torch.utils.tensorboard import SummaryWriter

    # TensorBoard heeds the second such mark that it finds: the first launch makes one, too
    writer = SummaryWriter(folder or str(run.folder / "tensorboard"), purge_step=run.first_step)
    writer.add_text("config", code_block(config_text(run.config)), run.first_step)
    return TensorBoardTracker(writer)


def code_block(text: str) -> str:
    """Any text as a block of code of Markdown: every line of it is indented, so that no mark in it ends the block."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _in_markdown(row: Mapping[str, Any]) -> str:
    numbers = {name: row[name] for name in ("index", "reward", "correct", "advantage", "keep", "reason", "finish")}
    said = ", ".join(f"{name} {value}" for name, value in numbers.items())
    parts = (f"{row['prompt_id']}: {said}", "prompt: " + row["prompt"], "text: " + (row["text"] or ""))
    return "\n\n<!-- -->\n\n".join(code_block(part) for part in parts)
