"""Checks of arguments: each raises ValueError that begins with the argument's name. They look at an array once, so that
a call on a step's prompts takes microseconds more.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar, cast

import numpy as np
from annotated_types import Interval

from winnow.records import FloatArray, IntArray

F = TypeVar("F", bound=Callable[..., Any])

LARGEST = float(np.finfo(np.float64).max)


def ranged(function: F) -> F:
    """The function, which raises ValueError for an option outside the range in its annotation (bounds.py)."""

    @functools.cache  # at the first call: the types of a module are complete then
    def checks() -> dict[str, Callable[[Any], None]]:
        hints = typing.get_type_hints(function, include_extras=True)
        ranges = {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is Annotated}
        return {name: _check_of(name, *kind_and_range) for name, kind_and_range in ranges.items()}

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        for name, value in options.items():
            if name in checks():
                checks()[name](value)
        return function(*arguments, **options)

    return cast(F, checked)


def _check_of(name: str, kind: type, within: Interval) -> Callable[[Any], None]:
    ends: dict[str, Any] = {"least": within.ge, "above": within.gt, "most": within.le}
    check: Callable[..., None] = check_count if kind is int else check_number
    return functools.partial(check, name, **{key: end for key, end in ends.items() if end is not None})


def check_numbers(
    name: str,
    values: Any,
    *,
    least: float = -LARGEST,
    most: float = LARGEST,
    size: int | None = None,
    unknown: bool = False,
) -> None:
    """Raise unless `values` is [size] numbers in [least, most]; `unknown` allows NaN. The defaults allow any finite
    number.

    >>> check_numbers("pass_rate", np.array([0.5, 1.2]), least=0, most=1)
    Traceback (most recent call last):
    ...
    ValueError: pass_rate: 1.2 is not in [0, 1]
    """
    array = check_shape(name, values, size=size)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} has the type {array.dtype}, and numbers are needed")
    within = (array >= least) & (array <= most)
    if unknown:
        within |= np.isnan(array)
    if not within.all():
        range_ = "finite" if (least, most) == (-LARGEST, LARGEST) else f"in [{least:g}, {most:g}]"
        raise ValueError(f"{name}: {array[~within].flat[0]:g} is not {range_}")


def check_integers(name: str, values: Any, *, least: int = 0, size: int | None = None) -> None:
    """Raise unless `values` is [size] integers of at least `least`."""
    array = check_shape(name, values, size=size)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} has the type {array.dtype}, and integers are needed")
    if array.size and array.min() < least:
        raise ValueError(f"{name}: {array.min()} is below {least}")


def check_rows(name: str, rows: Any, size: int) -> None:
    """Raise unless `rows` is [K] different places in a table of `size` rows."""
    check_integers(name, rows)
    array = np.asarray(rows)
    if array.size and array.max() >= size:
        raise ValueError(f"{name}: {array.max()} is no row of a table of {size}")
    if len(np.unique(array)) < len(array):
        raise ValueError(f"{name} has a row twice: {array.tolist()[:20]}")


def check_shape(name: str, values: Any, *, size: int | None = None) -> FloatArray | IntArray:
    """`values` as an array. Raise unless it has one dimension, of this size."""
    array = np.asarray(values)
    if array.ndim != 1 or (size is not None and len(array) != size):
        raise ValueError(f"{name} has the shape {array.shape}, and [{'G' if size is None else size}] is needed")
    return array


def check_count(name: str, value: Any, *, least: int = 0) -> None:
    """Raise unless `value` is an integer of at least `least`, and fits in 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
        raise ValueError(f"{name} = {value} must be an integer of at least {least} and below 2^63")


def check_bounds(budget: int, minimum: int, maximum: int) -> None:
    """Raise unless these are integers of at least 0, and `minimum` at most `maximum` (0: no limit)."""
    for name, value in (("budget", budget), ("minimum", minimum), ("maximum", maximum)):
        check_count(name, value)
    if 0 < maximum < minimum:
        raise ValueError(f"minimum = {minimum} is above maximum = {maximum}")


def check_number(
    name: str, value: Any, *, least: float = -LARGEST, most: float = LARGEST, above: float = -math.inf
) -> None:
    """Raise unless `value` is a number in [least, most] and greater than `above`. With the defaults it is finite."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (real and least <= value <= most and above < value):
        bounds = [f"at least {least:g}"] * (least > -LARGEST) + [f"at most {most:g}"] * (most < LARGEST)
        bounds += [f"above {above:g}"] * (above > -math.inf)
        raise ValueError(f"{name} = {value} must be {' and '.join(bounds) or 'finite'}")


def check_alike(**arrays: Any) -> None:
    """Raise unless all have the same shape [G]."""
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    first: Sequence[int] = next(iter(shapes.values()))
    if len(first) != 1 or any(shape != first for shape in shapes.values()):
        raise ValueError(f"{', '.join(f'{name} of shape {shape}' for name, shape in shapes.items())} must be alike [G]")
