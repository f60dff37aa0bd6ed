"""`winnow profile --plan`: make a plan from the options. All checks come before the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from winnow.algos.costs import StepCosts
from winnow.commands.profile.measurement import Profile, prepare_profile
from winnow.commands.profile.plan import PlanRequest, StepPlan
from winnow.commands.profile.points import PointResult, ProfileRequest, Way
from winnow.commands.profile.run_statistics import statistics_of
from winnow.commands.profile.text import row
from winnow.config_file import load
from winnow.state.cost_file import costs_of_profile
from winnow.training.resolve import resolve_members

MEASURED: tuple[Way, ...] = ("sampling", "accumulated")  # the two curves


def prepare_plan(
    config: Path, sets: Sequence[str], run: Path, request: PlanRequest, *, window: int, unset: Sequence[str] = ()
) -> StepPlan:
    """A plan whose candidates have no seconds yet. Raises WinnowError for everything that can be checked now."""
    members = resolve_members(load(config, sets, unset), base=config.parent)
    return StepPlan(members, statistics_of(run.expanduser(), window=window), request)


def curves_to_measure(
    config: Path, sets: Sequence[str], plan: StepPlan, request: ProfileRequest, *, unset: Sequence[str] = ()
) -> Profile:
    """A profile of the configuration's two curves, with rollouts of the run's mean length."""
    length = max(1, round(plan.run.length))
    return prepare_profile(config, [*sets, f"rollout.max_new_tokens={length}"], request, unset=unset)


def measure_points(profile: Profile) -> Iterator[PointResult]:
    """Measure the points of the two curves."""
    return profile.measure(ways=MEASURED)


def costs_of(profile: Profile) -> StepCosts:
    """The cost curves through the measured points. Raises DataError if a curve has none."""
    on = profile.measured_on
    return costs_of_profile(
        {"points": [row(result) for result in profile.found]}, f"measured on {on['date']}, {on['cpu']}"
    )
