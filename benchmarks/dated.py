"""Benchmark results as files: benchmarks/results/<date>_<name>.json, with what is needed to run them again."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def write(name: str, report: Mapping[str, Any], *, packages: Sequence[str]) -> Path:
    """Date, command, commit, versions and hardware, then the report itself."""
    full = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", *(_relative(word) for word in sys.argv)]),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in packages}},
        "hardware": {"machine": platform.machine(), "cpu": _cpu(), "cores": os.cpu_count()}
        | {"load_average": os.getloadavg()},
        **report,
    }
    path = HERE / "results" / f"{full['date']}_{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(full, indent=1, ensure_ascii=True) + "\n", encoding="ascii")
    return path


def _relative(word: str) -> str:
    """No path of this machine in a result."""
    return os.path.relpath(word) if word.startswith("/") else word


def _commit() -> str:
    head = _git("rev-parse", "HEAD").strip()
    return f"{head} with uncommitted changes" if _git("status", "--porcelain") else head


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True).stdout


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
