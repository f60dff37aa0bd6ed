"""A save that fails costs nothing that was there before, even where a single checkpoint is kept."""

from __future__ import annotations

import pytest
import torch

from winnow.errors import RunFolderError
from winnow.state import checkpoint


def save(folder, step, write_model):
    checkpoint.save(
        folder, step, write_model=write_model, tensors={"moment": torch.ones(1)}, state={"step": step}, keep_last=1
    )


def full_disk(path):
    raise OSError("No space left on device")


def test_the_only_checkpoint_outlives_a_failed_save(tmp_path):
    save(tmp_path, 1, lambda path: (path / "weights").write_text("one"))
    with pytest.raises(RunFolderError, match="older checkpoints are untouched"):
        save(tmp_path, 2, full_disk)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 1
