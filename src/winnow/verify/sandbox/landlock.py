"""The Landlock layer: it limits the files that a process can open. It needs no privilege, and Linux 5.13 or later.

It does not restrict reading a file's size and dates or changing its attributes. The system call filter refuses the
latter; `stat` is possible. That filter also refuses every right that Landlock restricts only in newer kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CREATE_RULESET = 444  # the same number on every architecture
_VERSION_FLAG = 1  # LANDLOCK_CREATE_RULESET_VERSION: return the version, create nothing
_RIGHTS_BY_VERSION = (0, 13, 14, 15, 15, 16)  # number of file rights in version i
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1


def version() -> int:
    """The version of the kernel's landlock; 0 if there is none, or a container's filter hides it."""
    if sys.platform != "linux":
        return 0
    answer = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG))
    return max(0, int(answer))


def ruleset(version: int) -> tuple[int, int, int]:
    """All rights that this version can refuse, as the kernel's landlock_ruleset_attr has them: bit masks of rights on
    files, of the network, and of the scope (abstract sockets of, and signals to, processes outside).
    """
    rights = _RIGHTS_BY_VERSION[min(version, len(_RIGHTS_BY_VERSION) - 1)]
    return (1 << rights) - 1, 3 if version >= 4 else 0, 3 if version >= 6 else 0


def rights(path: str) -> int:
    """A program's rights on a readable path: to read it, and for /dev/null also to write to it."""
    if path == os.devnull:
        return _READ_FILE | _WRITE_FILE
    return _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
