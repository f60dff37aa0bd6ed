"""A profile as lines for a terminal, as CSV, and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from winnow.config import dump
from winnow.memory.plan import format_bytes
from winnow.models.device import describe_precision
from winnow.state.disk import write_output
from winnow.view.text import format_count, sanitize, shorten
from winnow_lab.profile.measurement import Profile
from winnow_lab.profile.points import (
    GAIN,
    WAYS,
    PointResult,
    Step,
    Way,
    measured,
    memory_bound,
    points_of,
    saturation,
    speed_up,
    steps,
)

COLUMNS = (
    "measured", "rollouts", "ending", "seconds", "seconds_min", "seconds_max", "repetitions", "tokens",
    "seconds_per_token", "tokens_per_second", "trained", "micro_batches", "held_bytes", "peak_bytes", "why",
)  # fmt: skip
UPDATES: tuple[Way, ...] = ("whole", "accumulated", "selected")
UNKNOWN = "-"
REASON = 100  # maximum characters of the reason for a missing measurement, in a terminal


def row(result: PointResult) -> dict[str, Any]:
    """A point as a row with `COLUMNS`; None for values that it does not have."""
    named: dict[str, Any] = dict.fromkeys(COLUMNS)
    named |= {
        "measured": WAYS[result.point.way],
        "rollouts": result.point.rollouts,
        "ending": result.ending,
        "held_bytes": result.held,
        "peak_bytes": result.peak,
        "why": result.why or None,
    }
    if result.ending == "measured" and result.work is not None:
        named |= {
            "seconds": result.median,
            "seconds_min": min(result.seconds),
            "seconds_max": max(result.seconds),
            "repetitions": len(result.seconds),
            "tokens": result.work.tokens,
            "seconds_per_token": result.per_token,
            "tokens_per_second": 1 / result.per_token,
            "trained": result.work.trained or None,
            "micro_batches": result.work.micro_batches or None,
        }
    return named


def write_rows(path: Path, results: Sequence[PointResult]) -> None:
    """Replace a CSV file of points, which never ends within a row. Raises DataError if that fails."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(row, results))
    write_output(path, text.getvalue().encode("utf-8", errors="backslashreplace"))


def as_json(profile: Profile) -> dict[str, Any]:
    """The whole profile as JSON: the machine, the options, the points with all repetitions, and the conclusions."""
    results, change = profile.found, speed_up(profile.found)
    return {
        "winnow_profile": 1,
        "measured_on": profile.measured_on,
        "configuration": dump(profile.config),
        "asked": asdict(profile.request),
        "lengths": f"every rollout has exactly {profile.config.rollout.max_new_tokens} tokens",
        "selects": profile.selects,
        "points": [{**row(one), "all_seconds": list(one.seconds)} for one in results],
        "saturates_at": saturation(results),
        "time_per_token_falls": change and dict(zip(("from", "to", "times"), change, strict=True)),
        "updates_end": {WAYS[way]: asdict(memory_bound(results, way)) for way in UPDATES},
        "steps": [asdict(step) for step in steps(results)],
    }


def opening(profile: Profile) -> Iterator[str]:
    """The settings of the measurement, and the head of the table."""
    config, request, on = profile.config, profile.request, profile.measured_on
    gpu = on.get("gpu", {}).get("name")
    yield sanitize(f"machine    {gpu or on['cpu']}, {on['threads']} threads, torch {on['versions']['torch']}")
    yield sanitize(f"model      {config.model.path} in {describe_precision(config, str(profile.device))}")
    yield sanitize(
        f"sampling   {config.rollout.engine.label}, {config.rollout.rollouts_per_prompt} rollouts per prompt, each of "
        f"exactly {config.rollout.max_new_tokens} tokens"
    )
    yield (
        f"update     random rollouts of that length, in micro-batches of {config.update.tokens_per_micro_batch:,} "
        f"tokens; without accumulation all in one"
    )
    yield sanitize(f"selection  {profile.selects}")
    if request.memory_limit is not None:
        yield f"limit      {format_bytes(request.memory_limit)} for model, optimizer, activations, keys and values"
    yield (
        f"repeated   {request.repeats} times after a warm-up, medians; a point has {request.seconds:g} seconds, and a "
        f"separate process"
    )
    yield ""
    heads = ("rollouts", "trained", "seconds", "us/token", "tokens/s", "peak")
    yield f"{'':<24}" + "".join(f"{head:>10}" for head in heads)


def line(result: PointResult, *, repeats: int) -> str:
    """A point as a line of the terminal's table."""
    start = f"{WAYS[result.point.way]:<24}{result.point.rollouts:>10}"
    if result.ending != "measured" or result.work is None:
        why = f": {result.why}" if result.why else ""
        return start + shorten(sanitize(f"  {result.ending}{why}".replace("\n", " ")), REASON)
    cells = (
        result.work.trained or UNKNOWN,
        f"{result.median:.4g}",
        f"{1e6 * result.per_token:.1f}",
        format_count(1 / result.per_token),
        UNKNOWN if result.peak is None else format_bytes(result.peak),
    )
    done = len(result.seconds)
    note = f"  {done} of {repeats} repetitions" if done < repeats else ""
    return start + "".join(f"{cell:>10}" for cell in cells) + note


def closing(profile: Profile) -> Iterator[str]:
    """The conclusions from the points: saturation, memory bounds, and whole steps."""
    results = profile.found
    yield ""
    yield from _describe_sampling(results)
    for way in UPDATES:
        if way in {one.point.way for one in results}:
            yield f"{WAYS[way]:<24}{_describe_bound(results, way)}"
    whole = [step for step in steps(results) if step.trained_on_all or step.trained_on_selected]
    if whole:
        yield ""
        yield f"a step of sampling and update; selection: {sanitize(profile.selects)}"
        yield f"{'':<24}{'sampled':>10}{'trained on all':>18}{'on selected':>18}{'times':>8}"
        yield from map(_step, whole)


def _describe_sampling(results: list[PointResult]) -> Iterator[str]:
    times_less, at, ends = speed_up(results), saturation(results), memory_bound(results, "sampling").ends
    if ends is not None:
        yield f"{'sampling':<24}out of memory at {ends} rollouts"
    if times_less is None:
        return
    few, many, times = times_less
    change = f"{times:.1f} times less" if times >= 1 else f"{1 / times:.1f} times more"
    yield f"{'time per token':<24}{few} -> {many} rollouts: {change}"
    gain = f"doubling the rollouts lowers it by less than {GAIN:.0%}"
    largest = max(measured(results, "sampling"))
    yield f"{'saturation':<24}" + (f"from {at} on {gain}" if at else f"not up to {largest} rollouts")


def _describe_bound(results: list[PointResult], way: Way) -> str:
    bound = memory_bound(results, way)
    others = [one for one in points_of(results, way) if one.ending not in ("measured", "out of memory")]
    also = "".join(f"; {one.ending} at {one.point.rollouts}" for one in others)
    if bound.ends is None:
        return (f"fits, up to the {bound.fits} rollouts that were measured" if bound.fits else "not measured") + also
    fits = f"{bound.fits} fit" if bound.fits else "none of the requested numbers fits"
    return f"out of memory at {bound.ends} rollouts; {fits}{also}"


def _step(step: Step) -> str:
    every, selected = step.trained_on_all, step.trained_on_selected
    times = UNKNOWN if every is None or selected is None else f"{every / selected:.2f}"
    cells = (UNKNOWN if seconds is None else f"{seconds:.4g} s" for seconds in (every, selected))
    return f"{'':<24}{step.rollouts:>10}" + "".join(f"{cell:>18}" for cell in cells) + f"{times:>8}"
