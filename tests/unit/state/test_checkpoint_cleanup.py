"""Saves beside foreign links, files and folders, and on disks that refuse to remove or to read."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest
import torch

import winnow
from refusals import refused
from refusing_disks import read_only
from winnow.core.events import Notice
from winnow.errors import RunFolderError
from winnow.state import checkpoint


def save(folder, step, *, keep_last=1):
    def write_model(path):
        (path / "weights").write_text(str(step))
        return {}

    return checkpoint.save(
        folder,
        step,
        write_model=write_model,
        tensors={"moment": torch.ones(1)},
        state={"step": step},
        keep_last=keep_last,
    )


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def linked(folder, target):
    """step-000001 moved elsewhere, with a link in its place."""
    (folder / "checkpoints" / "step-000001").rename(target)
    (folder / "checkpoints" / "step-000001").symlink_to(target)


def test_a_link_to_an_old_checkpoint_is_removed_without_its_target(tmp_path):
    run = tmp_path / "run"
    save(run, 1)
    linked(run, tmp_path / "elsewhere")

    assert save(run, 2).notices == ()

    assert names(run) == ["step-000002"]
    assert (tmp_path / "elsewhere" / "weights").read_text() == "1"


@pytest.mark.parametrize("name", ["step-000001", ".unfinished-x", ".unfinished-step-000002"])
def test_a_foreign_file_prevents_no_save_and_is_not_changed(tmp_path, name):
    (tmp_path / "checkpoints").mkdir()
    stray = tmp_path / "checkpoints" / name
    stray.write_text("mine")
    for step in (2, 3):
        save(tmp_path, step)
    assert names(tmp_path) == sorted([name, "step-000003"])
    assert stray.read_text() == "mine"


def test_a_file_with_the_name_of_a_new_checkpoint_is_renamed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000002").write_text("mine")

    (text,) = save(tmp_path, 2).notices

    assert all(name in text for name in ("checkpoints/step-000002 ", "step-000002-moved-aside"))
    assert (tmp_path / "checkpoints" / "step-000002-moved-aside").read_text() == "mine"
    assert checkpoint.newest(tmp_path).step == 2


def test_a_broken_link_with_the_name_of_a_new_checkpoint_is_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000002").symlink_to(tmp_path / "gone")
    assert save(tmp_path, 2).notices == ()
    assert names(tmp_path) == ["step-000002"]
    assert not (tmp_path / "checkpoints" / "step-000002").is_symlink()


def immutable(monkeypatch, function, name):
    """As after `chattr +i`, or below a mount: `function` of os refuses a path that ends in `name`."""
    real = getattr(os, function)

    def refuse(path, *rest, **more):
        if os.path.basename(path) == name:
            raise OSError(errno.EPERM, "Operation not permitted", os.fspath(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, function, refuse)


def test_an_old_checkpoint_that_cannot_be_moved_is_a_notice_and_stays(tmp_path, monkeypatch):
    save(tmp_path, 1)
    immutable(monkeypatch, "replace", "step-000001")

    (text,) = save(tmp_path, 2).notices

    assert all(name in text for name in ("step-000001", "Operation not permitted"))
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_an_old_checkpoint_that_is_moved_and_stays_has_its_new_name(tmp_path, monkeypatch):
    save(tmp_path, 1)
    with monkeypatch.context() as patched:
        immutable(patched, "unlink", "weights")
        (text,) = save(tmp_path, 2).notices
        assert ".unfinished-old-step-000001" in text
        assert names(tmp_path) == [".unfinished-old-step-000001", "step-000002"]
        assert len(save(tmp_path, 3).notices) == 2
        assert checkpoint.newest(tmp_path).step == 3
    assert save(tmp_path, 4).notices == ()
    assert names(tmp_path) == ["step-000004"]


def test_a_checkpoint_gets_its_name_back_if_the_new_one_cannot(tmp_path, monkeypatch):
    path = save(tmp_path, 1).path
    (path / "weights").write_text("damaged")
    real = os.rename

    def refuse(source, target, *rest, **more):
        if ".unfinished-step-000001" in os.fspath(source):
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(source, target, *rest, **more)

    monkeypatch.setattr(os, "replace", refuse)
    with refused(RunFolderError, "step-000001", "Device or resource busy", code="run_folder.unsaved"):
        save(tmp_path, 1)
    assert names(tmp_path) == ["step-000001"]
    assert (path / "weights").read_text() == "damaged"


def test_a_checkpoint_that_cannot_be_removed_is_one_notice_of_a_run(smallest, monkeypatch):
    """Five saves. The first one's checkpoint always stays."""
    events = []
    immutable(monkeypatch, "replace", "step-000001")
    config = smallest(steps=5, checkpoint={"every": 1, "keep_last": 1})
    result = winnow.train(**config, watch=events.append)
    assert result.model.name == "step-000005"
    notices = [event.text for event in events if isinstance(event, Notice) and "step-000001" in event.text]
    assert len(notices) == 1
    assert sorted(os.listdir(result.model.parent)) == ["step-000001", "step-000005"]


def test_a_file_in_the_place_of_a_checkpoint_is_skipped(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-000002").write_text("mine")
    found = checkpoint.newest(tmp_path)
    assert found.step == 1
    assert "step-000002" in found.notices[0]


def test_a_checkpoint_that_the_disk_cannot_read_is_skipped(tmp_path, monkeypatch):
    save(tmp_path, 1, keep_last=2)
    save(tmp_path, 2, keep_last=2)
    real = hashlib.file_digest

    def failing(file, *rest):
        if "step-000002" in file.name:
            raise OSError(errno.EIO, "Input/output error")
        return real(file, *rest)

    monkeypatch.setattr(hashlib, "file_digest", failing)
    found = checkpoint.newest(tmp_path)
    assert found.step == 1
    assert all(name in found.notices[0] for name in ("step-000002", "Input/output error"))


def test_a_checkpoint_that_vanishes_after_its_check_is_refused(tmp_path):
    save(tmp_path, 1)
    found = checkpoint.newest(tmp_path)
    (found.path / "trainer.json").unlink()
    with refused(RunFolderError, "step-000001", "trainer.json", code="run_folder.damaged"):
        checkpoint.load(found)


@pytest.mark.parametrize("make", [Path.write_text, Path.symlink_to], ids=["file", "link"])
def test_a_file_or_link_as_folder_of_checkpoints_is_refused(tmp_path, make):
    """It must not count as a run without checkpoints, which would start over and cut its logs."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "target").mkdir()
    make(run / "checkpoints", str(tmp_path / "target"))
    with refused(RunFolderError, "checkpoints", key="output", code="run_folder.unreadable"):
        checkpoint.check(run, 0)
    with refused(RunFolderError, "checkpoints", code="run_folder.unsaved"):
        save(run, 1)
    assert list((tmp_path / "target").iterdir()) == []


def test_a_resume_refuses_a_file_as_folder_of_checkpoints(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    with refused(RunFolderError, tmp_path / "checkpoints", key="output", code="run_folder.unreadable"):
        checkpoint.newest(tmp_path)


def test_less_space_than_a_checkpoint_needs_is_refused_before_a_run(tmp_path):
    checkpoint.check(tmp_path, 1)
    needed = 2 * shutil.disk_usage(tmp_path).free + 10**9
    with refused(RunFolderError, f"{needed / 1e6:.0f} MB", tmp_path, key="output", code="run_folder.unwritable"):
        checkpoint.check(tmp_path, needed)


def test_a_disk_that_does_not_report_its_size_is_accepted(tmp_path, monkeypatch):
    for unknown in (shutil._ntuple_diskusage(0, 0, 0), None):

        def usage(path, unknown=unknown):
            if unknown is None:
                raise OSError(errno.ENOSYS, "Function not implemented")
            return unknown

        monkeypatch.setattr(shutil, "disk_usage", usage)
        checkpoint.check(tmp_path, 10**12)


def test_a_folder_of_checkpoints_that_may_not_be_written_is_refused_before_a_run(tmp_path):
    save(tmp_path, 1)
    named = refused(RunFolderError, "checkpoints", "Permission denied", key="output", code="run_folder.unreadable")
    with read_only(tmp_path / "checkpoints"), named:
        checkpoint.check(tmp_path, 0)
    checkpoint.check(tmp_path, 0)
