"""A run at rollout.ahead = 1 as every rank computes it, one of which may be killed at a named point."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import run_cases

E2E = Path(__file__).parents[1] / "e2e"


def ran(config: Mapping[str, Any], *, sleeps: int | None = None, strike: str = "", of_rank: int = 0) -> None:
    """Run or resume; `strike` is the name of the point at which the rank `of_rank` sends itself SIGKILL."""
    if sleeps is not None:
        os.environ["WINNOW_SLEEPS"] = f"{sleeps}{os.environ['RANK']}"
    if strike and int(os.environ["RANK"]) == of_rank:
        _arm(strike)
    run_cases.ran(config, resume=(Path(config["output"]) / "manifest.json").exists())


def _arm(strike: str) -> None:
    sys.path.insert(0, str(E2E))
    import ahead_lives
    import kill_points

    point = next(point for point in ahead_lives.POINTS if point.name == strike)
    kill_points.arm(point, kill_points.kill)
