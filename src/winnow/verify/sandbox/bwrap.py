"""The bubblewrap layer: new namespaces, an empty root with a few read-only paths, and no capabilities.

It is always started as an unprivileged user. A process started by root would keep root's access to the host's files, as
the option `--uid` changes only the user that the process sees. The limit on processes would not apply to it either.
"""

from __future__ import annotations

import os
import shutil

from winnow.verify.sandbox.interpreter import Interpreter

_DEVICES = ("/dev/null", "/dev/urandom")  # and no /proc, no /sys, no /tmp


def available() -> str | None:
    """The path of bubblewrap; None if it is not installed."""
    return shutil.which("bwrap")


def command(bwrap: str, interpreter: Interpreter) -> list[str]:
    """The words before the interpreter's own command line."""
    shown = [path for path in interpreter.readable if path not in _DEVICES]
    return [
        *(bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        "--as-pid-1",  # bubblewrap's own init process would leave a zombie per run
        *("--clearenv", *(word for name, value in interpreter.environment for word in ("--setenv", name, value))),
        *(word for path in shown for word in ("--ro-bind", path, path)),
        *(word for path in _DEVICES if os.path.exists(path) for word in ("--dev-bind", path, path)),
        *("--remount-ro", "/", "--chdir", "/", "--"),
    ]
