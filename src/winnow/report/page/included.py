"""Which rollouts a file takes along: whole groups, up to a size, of the first, the last and evenly chosen steps.

Steps are visited in the order first, last, middle, quarters, ... Each may first fill an equal share of the room (an
eighth where there are more than eight steps), so that large steps do not leave others out; then the room that is left
goes to them in the same order. A group that does not fit any more ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from winnow.errors import DataError
from winnow.report.page.rollout_data import group_data
from winnow.report.page.step_groups import GroupPlace, LoggedSteps
from winnow.report.page.strict_json import encoded
from winnow.report.page.token_pieces import TokenPieces

SHARES = 8
LONGEST = 20_000  # characters of a text in a file
MEGABYTE = 1_000_000


@dataclass
class Included:
    """The groups that a file takes along."""

    limit: int  # bytes of JSON
    size: int = 0
    groups: dict[tuple[int, int], str] = field(default_factory=dict)  # (step, first row) -> JSON
    rollouts: dict[int, int] = field(default_factory=dict)  # step -> so many
    notes: list[str] = field(default_factory=list)
    full: bool = False

    @property
    def in_order(self) -> list[str]:
        return [self.groups[key] for key in sorted(self.groups)]

    def why(self, steps: Mapping[int, Sequence[GroupPlace]]) -> str:
        """What is missing, and how to see it; nothing where all is there."""
        total = sum(place.count for places in steps.values() for place in places)
        here = sum(self.rollouts.values())
        if here == total:
            return ""
        return (
            f"{here:,} of {total:,} rollouts, of {len(self.rollouts):,} of {len(steps):,} steps, are in this file, "
            f"which takes {self.limit / MEGABYTE:g} MB of them: whole groups of the first, the last and evenly chosen "
            f"steps. For more, raise the limit, or serve the page: on the command line --limit, --serve"
        )


def included(
    log: LoggedSteps, steps: Mapping[int, Sequence[GroupPlace]], pieces: TokenPieces | None, limit: int
) -> Included:
    """The groups of `steps` that fit in `limit` bytes."""
    found = Included(limit)
    order = [list(steps)[place] for place in spread(len(steps))]
    begun = dict.fromkeys(order, 0)
    for share in (limit // max(1, min(SHARES, len(order))), limit):
        for step in order:
            if found.full:
                return found
            begun[step] += _fill(found, log, steps[step][begun[step] :], pieces, share)
    return found


def _fill(
    found: Included, log: LoggedSteps, places: Sequence[GroupPlace], pieces: TokenPieces | None, share: int
) -> int:
    """Take along groups of one step, and return how many: until its share, or all there is, is full."""
    own = 0
    try:
        file = log.file(places[0].step) if places else None
        for taken, place in enumerate(places):
            assert file is not None
            group = encoded(group_data(file, place, pieces, longest=LONGEST))
            if found.size + len(group) > found.limit:
                found.full = True
                return taken
            if own + len(group) > share:
                return taken
            own += len(group)
            found.size += len(group)
            found.groups[place.step, place.first] = group
            found.rollouts[place.step] = found.rollouts.get(place.step, 0) + place.count
    except DataError as error:
        found.notes.append(f"step {places[0].step} is left out in part: {error}")
    return len(places)


def spread(count: int) -> Iterator[int]:
    """0, count - 1, and what halves the longest stretch between, until every number below `count` was there."""
    yield from range(min(count, 1))
    if count > 1:
        yield count - 1
    stretches = deque([(0, count - 1)])
    while stretches:
        first, last = stretches.popleft()
        middle = (first + last) // 2
        if first < middle:
            yield middle
            stretches += [(first, middle), (middle, last)]
