"""The panels of a profile's picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from winnow.commands.profile.curves import measured, points_of, saturation, speed_up, steps
from winnow.commands.profile.measurement import Profile
from winnow.commands.profile.points import Ending, PointResult, Way
from winnow.commands.profile.profile_plot import Panel, Series, draw

MIB, GIB = 2**20, 2**30
STYLES: dict[Way, int] = {"sampling": 0, "whole": 1, "accumulated": 2, "selected": 3}  # the same style in every panel
UPDATES: dict[Way, str] = {"whole": "all at once", "accumulated": "all, accumulated", "selected": "selected"}


def draw_profile(profile: Profile, *outputs: Path) -> None:
    """Write the picture to each path, in the format of its suffix."""
    draw(panels(profile), outputs, title=title(profile), subtitle=f"selected: {profile.selects}")


def title(profile: Profile) -> str:
    config, on = profile.config, profile.measured_on
    threads = f"{on['threads']} CPU thread{'s' * (on['threads'] > 1)}"
    where = on.get("gpu", {}).get("name") or threads
    return f"{Path(config.model.path).name} on {where}, rollouts of {config.rollout.max_new_tokens} tokens"


def panels(profile: Profile) -> list[Panel]:
    """Sampling, seconds and memory of updates, whole steps."""
    results = profile.found
    return [_sampling(results), _seconds(results), _memory(results, profile.request.memory_limit), _steps(results)]


def _sampling(results: Sequence[PointResult]) -> Panel:
    change, at = speed_up(results), saturation(results)
    note = f": {change[2]:.1f} times less per token from {change[0]} to {change[1]}" if change else ""
    return Panel(
        f"sampling{note}",
        "rollouts sampled concurrently",
        "microseconds per token",
        (_curve(results, "sampling", "", lambda one: 1e6 * one.per_token),),
        mark=None if at is None else (at, "saturated"),
    )


def _seconds(results: Sequence[PointResult]) -> Panel:
    curves = tuple(_curve(results, way, name, lambda one: one.median) for way, name in _updates(results).items())
    return Panel("update", "rollouts given to an update", "seconds", curves)


def _memory(results: Sequence[PointResult], limit: int | None) -> Panel:
    peaks = [one.peak for way in UPDATES for one in points_of(results, way) if one.peak is not None]
    unit, name = (GIB, "GiB") if max([*peaks, limit or 0], default=0) >= GIB else (MIB, "MiB")
    curves = tuple(
        _curve(results, way, label, lambda one: None if one.peak is None else one.peak / unit)
        for way, label in _updates(results).items()
    )
    level = None if limit is None else (limit / unit, "limit")
    return Panel("memory of an update", "rollouts given to an update", f"peak ({name})", curves, level=level)


def _updates(results: Sequence[PointResult]) -> dict[Way, str]:
    """The requested kinds of updates, with their labels in the picture."""
    return {way: name for way, name in UPDATES.items() if points_of(results, way)}


def _steps(results: Sequence[PointResult]) -> Panel:
    whole = steps(results)
    every = tuple((step.rollouts, step.trained_on_all) for step in whole if step.trained_on_all is not None)
    selected = tuple((s.rollouts, s.trained_on_selected) for s in whole if s.trained_on_selected is not None)
    sampling = tuple((n, one.median) for n, one in measured(results, "sampling").items())
    curves = (
        Series("sampling", sampling, style=STYLES["sampling"]),
        Series("and training on all", every, style=STYLES["accumulated"]),
        Series("on selected", selected, style=STYLES["selected"]),
    )
    return Panel("step", "rollouts sampled in a step", "seconds", tuple(curve for curve in curves if curve.points))


def _curve(
    results: Sequence[PointResult], way: Way, label: str, value: Callable[[PointResult], float | None]
) -> Series:
    values = [(n, value(one)) for n, one in measured(results, way).items()]

    def ended(ending: Ending) -> tuple[int, ...]:
        return tuple(one.point.rollouts for one in points_of(results, way) if one.ending == ending)

    return Series(
        label,
        tuple((n, y) for n, y in values if y is not None),
        style=STYLES[way],
        does_not_fit=ended("out of memory"),
        too_slow=ended("out of time"),
        failed=ended("failed"),
    )
