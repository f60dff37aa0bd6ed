"""The entry points of this checkout, for tests that run it from Python's path and not as an installed package."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

NAME = "winnow-rl"
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def declared() -> dict[str, dict[str, str]]:
    """group -> name -> function, of pyproject.toml."""
    points: dict[str, dict[str, str]] = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    return points


def register() -> None:
    """Put metadata with the entry points of pyproject.toml first on the path, unless those installed are the same.

    They are of this process and of those that it starts.
    """
    try:
        installed = importlib.metadata.distribution(NAME)
        about, points = installed.read_text("METADATA") or "", installed.entry_points
    except importlib.metadata.PackageNotFoundError:
        about, points = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n", importlib.metadata.EntryPoints()
    groups = declared()
    if groups == {group: {point.name: point.value for point in points.select(group=group)} for group in groups}:
        return
    site = Path(tempfile.mkdtemp(prefix="winnow-metadata-"))
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    metadata = site / "winnow_rl-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(about)
    lines = (f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in points.items()) for group, points in groups.items())
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    sys.path.insert(0, str(site))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
