"""Which rollouts a file takes along: whole groups, up to a size, of the first, the last and evenly chosen steps.

Steps are visited in the order first, last, middle, quarters, ... Each may first fill an equal share of the room (an
eighth where there are more than eight steps), so that large steps do not leave others out; then the room that is left
goes to them in the same order. A group that does not fit is left out, and smaller ones after it are tried.
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
SMALLEST = 300  # bytes: no group takes less
MISSES_OF_STEP = 4  # groups in a row that do not fit, after which the next step is tried
MISSES = 100  # after which a file that is half full has no room: each of them was read for nothing
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
    too_large: set[tuple[int, int]] = field(default_factory=set)  # groups that would not fit by themselves
    missed: int = 0  # groups in a row that did not fit in what is left

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self.limit - self.size

    @property
    def full(self) -> bool:
        """Whether nothing more is tried."""
        return self.room < SMALLEST or (self.missed >= MISSES and self.room < self.size)

    def seen(self, place: GroupPlace, size: int) -> None:
        """A group has so many bytes."""
        self.missed = self.missed + 1 if size > self.room else 0
        if size > self.limit:
            self.too_large.add((place.step, place.first))

    def take(self, place: GroupPlace, group: str) -> None:
        """Take a group along."""
        self.size += len(group)
        self.groups[place.step, place.first] = group
        self.rollouts[place.step] = self.rollouts.get(place.step, 0) + place.count

    @property
    def in_order(self) -> list[str]:
        return [self.groups[key] for key in sorted(self.groups)]

    def why(self, steps: Mapping[int, Sequence[GroupPlace]]) -> str:
        """What is missing, and how to see it; nothing where all is there."""
        total = sum(place.count for places in steps.values() for place in places)
        here = sum(self.rollouts.values())
        if here == total:
            return ""
        large = f" (groups that are larger by themselves: {len(self.too_large):,} or more)" * bool(self.too_large)
        return (
            f"{here:,} of {total:,} rollouts, of {len(self.rollouts):,} of {len(steps):,} steps, are in this file, "
            f"which takes {self.limit / MEGABYTE:g} MB of them{large}: whole groups of the first, the last and evenly "
            f"chosen steps. For more, raise the limit, or serve the page: on the command line --limit, --serve"
        )


def included(
    log: LoggedSteps, steps: Mapping[int, Sequence[GroupPlace]], pieces: TokenPieces | None, limit: int
) -> Included:
    """The groups of `steps` that fit in `limit` bytes."""
    found = Included(limit)
    order = [list(steps)[place] for place in spread(len(steps))]
    left = dict(steps)
    for share in (limit // max(1, min(SHARES, len(order))), limit):
        for step in order:
            if found.full:
                return found
            left[step] = _fill(found, log, left[step], pieces, share)
    return found


def _fill(
    found: Included, log: LoggedSteps, places: Sequence[GroupPlace], pieces: TokenPieces | None, share: int
) -> Sequence[GroupPlace]:
    """Take along groups of one step until its share, or all there is, is full. Returns those that are left."""
    own, missed, left = min(share, found.room), 0, list[GroupPlace]()
    try:
        file = log.file(places[0].step) if places else None
        for tried, place in enumerate(places):
            assert file is not None
            if found.full or missed == MISSES_OF_STEP or own < SMALLEST:
                return [*left, *places[tried:]]
            group = encoded(group_data(file, place, pieces, longest=LONGEST))
            found.seen(place, len(group))
            if len(group) <= own:
                own -= len(group)
                missed = 0
                found.take(place, group)
            else:
                missed += 1
                left.append(place)
    except DataError as error:
        found.notes.append(f"step {places[0].step} is left out in part: {error}")
        return []
    return left


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
