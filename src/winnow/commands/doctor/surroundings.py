"""What is around a run: the network, a Ray cluster, and what programs of a model can be locked into."""

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


def of_network(environment: Mapping[str, str], *, ask: bool) -> dict[str, Any]:
    """Which variables are set that bend or forbid connections, never what they hold; and, where asked for, whether the
    hub answers.
    """
    proxies = [name for name in PROXIES if environment.get(name) or environment.get(name.lower())]
    offline = [name for name in OFFLINE if environment.get(name, "").lower() in ("1", "true", "yes", "on")]
    hub = answers(environment.get("HF_ENDPOINT") or HUB) if ask else None
    own_hub = bool(environment.get("HF_ENDPOINT"))
    token = bool(environment.get("HF_TOKEN"))
    return {"proxies": proxies, "offline": offline, "HF_ENDPOINT": own_hub, "HF_TOKEN": token, "hub": hub}


def answers(address: str, seconds: float = ANSWER_SECONDS) -> str:
    """ "answers", or why not, in so many seconds, however slowly a name is looked up or a server sends its bytes."""
    said: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=lambda: said.put(_reply(address, seconds)), daemon=True).start()
    try:
        return said.get(timeout=seconds)
    except Empty:
        return f"does not answer: {_cause(TimeoutError())}"


def _reply(address: str, seconds: float) -> str:
    try:
        asked = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(asked, timeout=seconds):
            return "answers"
    except urllib.error.HTTPError:
        return "answers"  # whatever it says
    except Exception as error:  # an address that is none raises many kinds
        return f"does not answer: {_cause(getattr(error, 'reason', error))}"


def _cause(error: object) -> str:
    """In our words: those of the error may hold the address, and whatever password stands in it."""
    known = {
        TimeoutError: "no reply in time",
        socket.gaierror: "its name is not known here",
        ssl.SSLError: "its certificate is not accepted",
        ConnectionRefusedError: "the connection is refused",
    }
    words = (said for kind, said in known.items() if isinstance(error, kind))
    return next(words, f"{type(error).__name__}" if isinstance(error, BaseException) else "no connection")


def of_ray(environment: Mapping[str, str], version: str | None) -> dict[str, Any]:
    """Whether Ray is here, and whether the environment names a cluster."""
    return {"version": version, "RAY_ADDRESS": bool(environment.get("RAY_ADDRESS"))}


def of_sandbox() -> dict[str, Any]:
    """The layers that are there one by one, and those that programs of a model would be run in: as the reward `tests`
    chooses them, which starts its two canary programs.
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
    """Whether the kernel lets a user without privileges make namespaces, as bubblewrap does; None where it is not
    known.
    """
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
