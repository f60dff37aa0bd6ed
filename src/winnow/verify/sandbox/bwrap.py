"""Bubblewrap, hardened: the added layer. New namespaces, an empty root that shows a few read-only paths, no rights.

Always started as an unprivileged user: what root starts keeps root's hold on the host's files (a `uid` of bubblewrap's
own changes only what is shown), and the limit on processes would not count.
"""

from __future__ import annotations

import os
import shutil

from winnow.verify.sandbox.interpreter import Interpreter

_DEVICES = ("/dev/null", "/dev/urandom")  # and no /proc, no /sys, no /tmp


def available() -> str | None:
    """Where bubblewrap is installed."""
    return shutil.which("bwrap")


def command(bwrap: str, interpreter: Interpreter) -> list[str]:
    """What stands before the interpreter's own command line."""
    shown = [path for path in interpreter.readable if path not in _DEVICES]
    return [
        *(bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        "--as-pid-1",  # with an init of its own, bubblewrap leaves a zombie of it per run
        *("--clearenv", *(word for name, value in interpreter.environment for word in ("--setenv", name, value))),
        *(word for path in shown for word in ("--ro-bind", path, path)),
        *(word for path in _DEVICES if os.path.exists(path) for word in ("--dev-bind", path, path)),
        *("--remount-ro", "/", "--chdir", "/", "--"),
    ]
