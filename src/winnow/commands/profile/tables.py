"""A profile as rows: lines for a terminal, CSV, and JSON with what was measured on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from winnow.commands.profile.curves import GAIN, Step, fall, measured, of, saturation, steps, wall
from winnow.commands.profile.points import WAYS, Found, Way
from winnow.commands.profile.profiled import Profile
from winnow.config import dump
from winnow.memory.sizes import readable
from winnow.models.precision import in_words
from winnow.report.text import compact, safe, shorten
from winnow.state.output_files import write_output

COLUMNS = (
    "measured", "rollouts", "ending", "seconds", "seconds_min", "seconds_max", "repetitions", "tokens",
    "seconds_per_token", "tokens_per_second", "trained", "micro_batches", "held_bytes", "peak_bytes", "why",
)  # fmt: skip
UPDATES: tuple[Way, ...] = ("whole", "accumulated", "selected")
UNKNOWN = "-"
REASON = 100  # characters of it in a terminal


def row(found: Found) -> dict[str, Any]:
    """A point by `COLUMNS`; None where there is nothing to say."""
    named: dict[str, Any] = dict.fromkeys(COLUMNS)
    named |= {
        "measured": WAYS[found.point.way],
        "rollouts": found.point.rollouts,
        "ending": found.ending,
        "held_bytes": found.held,
        "peak_bytes": found.peak,
        "why": found.why or None,
    }
    if found.ending == "measured" and found.work is not None:
        named |= {
            "seconds": found.median,
            "seconds_min": min(found.seconds),
            "seconds_max": max(found.seconds),
            "repetitions": len(found.seconds),
            "tokens": found.work.tokens,
            "seconds_per_token": found.per_token,
            "tokens_per_second": 1 / found.per_token,
            "trained": found.work.trained or None,
            "micro_batches": found.work.micro_batches or None,
        }
    return named


class Rows:
    """A CSV file, which has each row as soon as it is written: what is measured stays, whatever comes after it.

    It is written anew with every row, so that it never ends in half a row. Raises DataError where that fails.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._text = path, io.StringIO()
        self._writer = csv.DictWriter(self._text, COLUMNS, lineterminator="\n")
        self._writer.writeheader()
        self._save()

    def write(self, found: Found) -> None:
        self._writer.writerow(row(found))
        self._save()

    def _save(self) -> None:
        write_output(self._path, self._text.getvalue().encode("utf-8", errors="backslashreplace"))


def as_json(profile: Profile) -> dict[str, Any]:
    """Everything: what was measured on, what was asked, the points with all repetitions, and what follows from them."""
    found, falls = profile.found, fall(profile.found)
    return {
        "winnow_profile": 1,
        "measured_on": profile.measured_on,
        "configuration": dump(profile.config),
        "asked": asdict(profile.asked),
        "lengths": f"every rollout has exactly {profile.config.rollout.max_new_tokens} tokens",
        "selects": profile.selects,
        "points": [{**row(one), "all_seconds": list(one.seconds)} for one in found],
        "saturates_at": saturation(found),
        "time_per_token_falls": falls and dict(zip(("from", "to", "times"), falls, strict=True)),
        "updates_end": {WAYS[way]: asdict(wall(found, way)) for way in UPDATES},
        "steps": [asdict(step) for step in steps(found)],
    }


def opening(profile: Profile) -> Iterator[str]:
    """What is measured, and the table's head."""
    config, asked, on = profile.config, profile.asked, profile.measured_on
    gpu = on.get("gpu", {}).get("name")
    yield safe(f"machine    {gpu or on['cpu']}, {on['threads']} threads, torch {on['versions']['torch']}")
    yield safe(f"model      {config.model.path} in {in_words(config, str(profile.device))}")
    yield safe(
        f"sampling   {config.rollout.engine.label}, {config.rollout.rollouts_per_prompt} rollouts of a prompt, each of "
        f"exactly {config.rollout.max_new_tokens} tokens"
    )
    yield (
        f"update     random rollouts of that length, in micro-batches of {config.update.tokens_per_micro_batch:,} "
        f"tokens; without accumulation all in one"
    )
    yield safe(f"selection  {profile.selects}")
    if asked.memory_limit is not None:
        yield f"limit      {readable(asked.memory_limit)} for model, optimizer, activations, keys and values"
    yield (
        f"repeated   {asked.repeats} times after a warm-up, medians; a point has {asked.seconds:g} seconds, and a "
        f"process of its own"
    )
    yield ""
    heads = ("rollouts", "trained", "seconds", "us/token", "tokens/s", "peak")
    yield f"{'':<24}" + "".join(f"{head:>10}" for head in heads)


def line(found: Found, *, repeats: int) -> str:
    """A point in the terminal's table."""
    start = f"{WAYS[found.point.way]:<24}{found.point.rollouts:>10}"
    if found.ending != "measured" or found.work is None:
        why = f": {found.why}" if found.why else ""
        return start + shorten(safe(f"  {found.ending}{why}".replace("\n", " ")), REASON)
    cells = (
        found.work.trained or UNKNOWN,
        f"{found.median:.4g}",
        f"{1e6 * found.per_token:.1f}",
        compact(1 / found.per_token),
        UNKNOWN if found.peak is None else readable(found.peak),
    )
    made = len(found.seconds)
    cut = f"  {made} of {repeats} repetitions" if made < repeats else ""
    return start + "".join(f"{cell:>10}" for cell in cells) + cut


def closing(profile: Profile) -> Iterator[str]:
    """What follows from the points."""
    found = profile.found
    yield ""
    yield from _about_sampling(found)
    for way in UPDATES:
        if way in {one.point.way for one in found}:
            yield f"{WAYS[way]:<24}{_about_wall(found, way)}"
    whole = [step for step in steps(found) if step.trained_on_all or step.trained_on_selected]
    if whole:
        yield ""
        yield f"a step of sampling and update; selection: {safe(profile.selects)}"
        yield f"{'':<24}{'sampled':>10}{'trained on all':>18}{'on selected':>18}{'times':>8}"
        yield from map(_step, whole)


def _about_sampling(found: list[Found]) -> Iterator[str]:
    falls, at, ends = fall(found), saturation(found), wall(found, "sampling").ends
    if ends is not None:
        yield f"{'sampling':<24}out of memory at {ends} rollouts"
    if falls is None:
        return
    few, many, times = falls
    change = f"{times:.1f} times less" if times >= 1 else f"{1 / times:.1f} times more"
    yield f"{'time per token':<24}{few} -> {many} rollouts: {change}"
    gain = f"doubling the rollouts lowers it by less than {GAIN:.0%}"
    largest = max(measured(found, "sampling"))
    yield f"{'saturation':<24}" + (f"from {at} on {gain}" if at else f"not up to {largest} rollouts")


def _about_wall(found: list[Found], way: Way) -> str:
    end = wall(found, way)
    others = [one for one in of(found, way) if one.ending not in ("measured", "out of memory")]
    also = "".join(f"; {one.ending} at {one.point.rollouts}" for one in others)
    if end.ends is None:
        return (f"fits, up to the {end.fits} rollouts that were measured" if end.fits else "not measured") + also
    fits = f"{end.fits} fit" if end.fits else "none of the numbers asked for fits"
    return f"out of memory at {end.ends} rollouts; {fits}{also}"


def _step(step: Step) -> str:
    every, selected = step.trained_on_all, step.trained_on_selected
    times = UNKNOWN if every is None or selected is None else f"{every / selected:.2f}"
    cells = (UNKNOWN if seconds is None else f"{seconds:.4g} s" for seconds in (every, selected))
    return f"{'':<24}{step.rollouts:>10}" + "".join(f"{cell:>18}" for cell in cells) + f"{times:>8}"
