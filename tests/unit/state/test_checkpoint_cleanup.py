"""Saving among links, files and folders that do not belong there, and on disks that refuse to remove or to read."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest
import torch

import winnow
from winnow.errors import RunFolderError
from winnow.state import checkpoint
from winnow.training.events import Notice


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


def test_a_link_in_place_of_an_old_checkpoint_is_removed_and_what_it_leads_to_is_not(tmp_path):
    run = tmp_path / "run"
    save(run, 1)
    linked(run, tmp_path / "elsewhere")

    assert save(run, 2).notices == ()

    assert names(run) == ["step-000002"]
    assert (tmp_path / "elsewhere" / "weights").read_text() == "1"


@pytest.mark.parametrize("name", ["step-000001", ".unfinished-x", ".unfinished-step-000002"])
def test_a_stray_file_blocks_no_save_and_is_left_alone(tmp_path, name):
    (tmp_path / "checkpoints").mkdir()
    stray = tmp_path / "checkpoints" / name
    stray.write_text("mine")
    for step in (2, 3):
        save(tmp_path, step)
    assert names(tmp_path) == sorted([name, "step-000003"])
    assert stray.read_text() == "mine"


def test_what_stands_where_the_new_checkpoint_belongs_is_moved_aside_and_named(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000002").write_text("mine")

    (text,) = save(tmp_path, 2).notices

    assert "step-000002 was a file, where a checkpoint belongs; it is now called step-000002-moved-aside" in text
    assert (tmp_path / "checkpoints" / "step-000002-moved-aside").read_text() == "mine"
    assert checkpoint.newest(tmp_path).step == 2


def test_a_link_that_leads_nowhere_does_not_take_the_new_checkpoint_s_name(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000002").symlink_to(tmp_path / "gone")
    assert save(tmp_path, 2).notices == ()
    assert names(tmp_path) == ["step-000002"]
    assert not (tmp_path / "checkpoints" / "step-000002").is_symlink()


def immutable(monkeypatch, function, name):
    """As after `chattr +i`, or below a mount: `function` of os refuses what is called `name`."""
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

    assert "step-000001 could not be removed (Operation not permitted) and is as it was" in text
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_an_old_checkpoint_that_can_be_moved_and_not_removed_is_named_as_it_is_now_called(tmp_path, monkeypatch):
    save(tmp_path, 1)
    with monkeypatch.context() as patched:
        immutable(patched, "unlink", "weights")
        (text,) = save(tmp_path, 2).notices
        assert ".unfinished-old-step-000001, which no run needs any more, could not be removed" in text
        assert names(tmp_path) == [".unfinished-old-step-000001", "step-000002"]
        assert len(save(tmp_path, 3).notices) == 2
        assert checkpoint.newest(tmp_path).step == 3
    assert save(tmp_path, 4).notices == ()
    assert names(tmp_path) == ["step-000004"]


def test_a_damaged_one_of_the_same_step_comes_back_where_the_new_one_gets_no_name(tmp_path, monkeypatch):
    path = save(tmp_path, 1).path
    (path / "weights").write_text("damaged")
    real = os.rename

    def refuse(source, target, *rest, **more):
        if ".unfinished-step-000001" in os.fspath(source):
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(source, target, *rest, **more)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunFolderError, match=r"cannot save checkpoint .*busy; older checkpoints are untouched"):
        save(tmp_path, 1)
    assert names(tmp_path) == ["step-000001"]
    assert (path / "weights").read_text() == "damaged"


def test_a_run_whose_old_checkpoints_cannot_go_ends_with_its_model_and_says_so_once(smallest, monkeypatch):
    """Five saves, the first of which stays whatever is tried."""
    heard = []
    immutable(monkeypatch, "replace", "step-000001")
    config = smallest(steps=5, checkpoint={"every": 1, "keep_last": 1})
    result = winnow.train(**config, watch=heard.append)
    assert result.model.name == "step-000005"
    told = [event.text for event in heard if isinstance(event, Notice) and "could not be removed" in event.text]
    assert len(told) == 1
    assert sorted(os.listdir(result.model.parent)) == ["step-000001", "step-000005"]


def test_a_file_where_a_checkpoint_folder_belongs_is_passed_over(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-000002").write_text("mine")
    found = checkpoint.newest(tmp_path)
    assert found.step == 1
    assert "step-000002 is damaged (step-000002 is a file, where a folder belongs)" in found.notices[0]


def test_a_checkpoint_that_the_disk_does_not_give_back_is_passed_over(tmp_path, monkeypatch):
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
    assert "step-000002 is damaged (Input/output error) and was passed over" in found.notices[0]


def test_a_checkpoint_that_vanishes_after_it_was_checked_is_a_message(tmp_path):
    save(tmp_path, 1)
    found = checkpoint.newest(tmp_path)
    (found.path / "trainer.json").unlink()
    with pytest.raises(RunFolderError, match=r"step-000001 was whole a moment ago and cannot be read now"):
        checkpoint.load(found)


@pytest.mark.parametrize("make", [Path.write_text, Path.symlink_to], ids=["file", "link"])
def test_no_checkpoint_is_written_through_what_is_not_a_folder(tmp_path, make):
    """Nor is its absence taken for a run that has saved none, which would start over and cut its logs."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "target").mkdir()
    make(run / "checkpoints", str(tmp_path / "target"))
    with pytest.raises(RunFolderError, match=r"checkpoints is a (file|symbolic link), where a folder belongs"):
        checkpoint.check(run, 0)
    with pytest.raises(RunFolderError, match=r"checkpoints is a (file|symbolic link), where a folder belongs"):
        save(run, 1)
    assert list((tmp_path / "target").iterdir()) == []


def test_a_file_for_a_folder_of_checkpoints_is_no_fresh_start(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(RunFolderError, match=r"cannot use .*checkpoints"):
        checkpoint.newest(tmp_path)


def test_less_room_than_a_checkpoint_takes_is_refused_before_a_run(tmp_path):
    checkpoint.check(tmp_path, 1)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(RunFolderError, match=r"a checkpoint of this run takes \d+ MB, and \d+ MB are free in .*output"):
        checkpoint.check(tmp_path, 2 * free + 10**9)


def test_a_disk_that_does_not_tell_its_size_is_tried(tmp_path, monkeypatch):
    for unknown in (shutil._ntuple_diskusage(0, 0, 0), None):

        def usage(path, unknown=unknown):
            if unknown is None:
                raise OSError(errno.ENOSYS, "Function not implemented")
            return unknown

        monkeypatch.setattr(shutil, "disk_usage", usage)
        checkpoint.check(tmp_path, 10**12)
