"""The environment of a run: the network, a Ray cluster, and the sandbox for programs of a model."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
HUB = "https://huggingface.co"
ANSWER_SECONDS = 5.0


def of_network(environment: Mapping[str, str], *, connect: bool) -> dict[str, Any]:
    """Which variables of proxies and the hub are set, never their values; with `connect`, whether the hub answers."""
    proxies = [name for name in PROXIES if environment.get(name) or environment.get(name.lower())]
    offline = [name for name in OFFLINE if environment.get(name, "").lower() in ("1", "true", "yes", "on")]
    hub = try_connection(environment.get("HF_ENDPOINT") or HUB) if connect else None
    endpoint = bool(environment.get("HF_ENDPOINT"))
    token = bool(environment.get("HF_TOKEN"))
    return {"proxies": proxies, "offline": offline, "HF_ENDPOINT": endpoint, "HF_TOKEN": token, "hub": hub}


def try_connection(address: str, seconds: float = ANSWER_SECONDS) -> str:
    """ "answers", or the reason why not, after at most `seconds`."""
    # A thread, as urlopen's timeout bounds neither the look-up of a name nor an answer that arrives byte by byte.
    replies: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=lambda: replies.put(_reply(address, seconds)), daemon=True).start()
    try:
        return replies.get(timeout=seconds)
    except Empty:
        return f"does not answer: {_cause(TimeoutError())}"


def _reply(address: str, seconds: float) -> str:
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=seconds):
            return "answers"
    except urllib.error.HTTPError:
        return "answers"  # with any status
    except Exception as error:  # invalid addresses raise many kinds of errors
        return f"does not answer: {_cause(getattr(error, 'reason', error))}"


def _cause(error: object) -> str:
    """The cause in fixed words, as the error's text may contain the address with a password."""
    causes = {
        TimeoutError: "no reply in time",
        socket.gaierror: "its name cannot be resolved",
        ssl.SSLError: "its certificate is not accepted",
        ConnectionRefusedError: "the connection is refused",
    }
    matches = (cause for kind, cause in causes.items() if isinstance(error, kind))
    return next(matches, f"{type(error).__name__}" if isinstance(error, BaseException) else "no connection")


def of_ray(environment: Mapping[str, str], version: str | None) -> dict[str, Any]:
    """The version of Ray, and whether the environment names a cluster."""
    return {"version": version, "RAY_ADDRESS": bool(environment.get("RAY_ADDRESS"))}


def of_sandbox() -> dict[str, Any]:
    """The available layers one by one, and those that the reward `tests` chooses for programs of a model. The choice
    runs two canary programs.
    """
    from winnow.verify.sandbox import SandboxError, bwrap, choose, landlock, seccomp

    try:
        chosen, complaint = str(choose("auto").layers), None
    except SandboxError as error:
        chosen, complaint = None, str(error)
    return {
        "chosen": chosen,
        "complaint": complaint,
        "bubblewrap": bwrap.available() is not None,
        "landlock": landlock.version(),
        "seccomp": seccomp.machine() is not None,
        "user_namespaces": user_namespaces(),
        "control_groups": next((v for v, mark in ((2, "cgroup.controllers"), (1, "memory")) if _group(mark)), None),
    }


def user_namespaces(settings: Path = Path("/proc/sys")) -> bool | None:
    """Whether a user without privileges can create namespaces, which bubblewrap needs; None where it is unknown."""
    if not (settings / "user").is_dir():
        return None
    most = _setting(settings / "user/max_user_namespaces", 0)
    allowed = _setting(settings / "kernel/unprivileged_userns_clone", 1)  # Debian's
    restricted = _setting(settings / "kernel/apparmor_restrict_unprivileged_userns", 0)  # Ubuntu's
    return bool(most and allowed and not restricted)


def _setting(path: Path, absent: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return absent


def _group(mark: str) -> bool:
    return Path("/sys/fs/cgroup", mark).exists()
