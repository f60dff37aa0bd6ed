"""Disks that refuse, for real and for the time of a block: full or small ones, and a folder that is read-only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

_OVERRIDE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: for root, no permission bit counts otherwise
_VERSION = 0x20080522


@contextlib.contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """No file grows beyond `room` bytes: the system writes so many of them, and then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with mock.patch.object(sys, "dont_write_bytecode", True), mock.patch.dict(os.environ, PYTHONDONTWRITEBYTECODE="1"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # Python ignores SIGXFSZ, so that this is an OSError
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """The folder is a file system of `size` bytes in memory. Skips the test where nothing may be mounted."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "winnow-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write into a folder, or a folder in it, root included."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    modes = [path.stat().st_mode for path in folders]
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    try:
        for path in folders:
            path.chmod(0o555)
        sets[0] = effective & ~_OVERRIDE
        assert libc.capset(header, sets) == 0
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0
        for path, mode in zip(folders, modes, strict=True):
            if path.exists():
                path.chmod(mode)
