"""The rollouts that a file includes: whole groups, up to a size, of the first, the last and evenly chosen steps.

Steps are visited in the order first, last, middle, quarters, ... Each step may first fill an equal share of the room
(an eighth if there are more than eight steps), so that large steps do not displace others. The remaining room is filled
in the same order. A group that does not fit is omitted, and smaller groups after it are tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from winnow.errors import DataError
from winnow_lab.report.html import encoded
from winnow_lab.report.rollouts import GroupPlace, LoggedSteps, TokenPieces, group_data

SHARES = 8
SMALLEST = 300  # bytes of the smallest possible group
MISSES_OF_STEP = 4  # groups in a row that do not fit, after which the next step is tried
MISSES = 100  # groups in a row that do not fit, after which a half full file counts as full: each costs a read
LONGEST = 20_000  # characters of a text in a file
MEGABYTE = 1_000_000


@dataclass
class Included:
    """The groups that a file includes."""

    limit: int  # bytes of JSON
    size: int = 0
    groups: dict[tuple[int, int], str] = field(default_factory=dict)  # (step, first row) -> JSON
    rollouts: dict[int, int] = field(default_factory=dict)  # step -> number of included rollouts
    notes: list[str] = field(default_factory=list)
    too_large: set[tuple[int, int]] = field(default_factory=set)  # groups larger than the limit
    missed: int = 0  # groups in a row that did not fit in the remaining room

    @property
    def room(self) -> int:
        """The remaining bytes."""
        return self.limit - self.size

    @property
    def full(self) -> bool:
        """Whether no further group is tried."""
        return self.room < SMALLEST or (self.missed >= MISSES and self.room < self.size)

    def count_size(self, place: GroupPlace, size: int) -> None:
        """Record the size of a group that was read."""
        self.missed = self.missed + 1 if size > self.room else 0
        if size > self.limit:
            self.too_large.add((place.step, place.first))

    def take(self, place: GroupPlace, group: str) -> None:
        """Include a group."""
        self.size += len(group)
        self.groups[place.step, place.first] = group
        self.rollouts[place.step] = self.rollouts.get(place.step, 0) + place.count

    @property
    def in_order(self) -> list[str]:
        return [self.groups[key] for key in sorted(self.groups)]

    def why(self, steps: Mapping[int, Sequence[GroupPlace]]) -> str:
        """The reason why rollouts are missing, and how to see them; empty if all are included."""
        total = sum(place.count for places in steps.values() for place in places)
        here = sum(self.rollouts.values())
        if here == total:
            return ""
        large = f" (groups that are larger than the limit: {len(self.too_large):,} or more)" * bool(self.too_large)
        return (
            f"{here:,} of {total:,} rollouts, of {len(self.rollouts):,} of {len(steps):,} steps, are in this file, "
            f"which has {self.limit / MEGABYTE:.3g} MB for the rollouts of a run{large}: whole groups of the first, "
            f"the last and evenly chosen steps. For more, raise --limit on the command line, or serve the page with "
            f"--serve"
        )


def included(
    log: LoggedSteps, steps: Mapping[int, Sequence[GroupPlace]], pieces: TokenPieces | None, limit: int
) -> Included:
    """The groups of `steps` that fit in `limit` bytes."""
    chosen = Included(limit)
    order = [list(steps)[place] for place in spread(len(steps))]
    left = dict(steps)
    for share in (limit // max(1, min(SHARES, len(order))), limit):
        for step in order:
            if chosen.full:
                return chosen
            left[step] = _fill(chosen, log, left[step], pieces, share)
    return chosen


def _fill(
    chosen: Included, log: LoggedSteps, places: Sequence[GroupPlace], pieces: TokenPieces | None, share: int
) -> Sequence[GroupPlace]:
    """Include groups of one step until its share, or the whole room, is full. Returns the groups that are left."""
    room, missed, left = min(share, chosen.room), 0, list[GroupPlace]()
    try:
        file = log.file(places[0].step) if places else None
        for tried, place in enumerate(places):
            assert file is not None
            if chosen.full or missed == MISSES_OF_STEP or room < SMALLEST:
                return [*left, *places[tried:]]
            group = encoded(group_data(file, place, pieces, longest=LONGEST))
            chosen.count_size(place, len(group))
            if len(group) <= room:
                room -= len(group)
                missed = 0
                chosen.take(place, group)
            else:
                missed += 1
                left.append(place)
    except DataError as error:
        chosen.notes.append(f"step {places[0].step} is left out in part: {error}")
        return []
    return left


def spread(count: int) -> Iterator[int]:
    """0, count - 1, then the middles of the intervals between, level by level, until every number below `count` has
    occurred.
    """
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
