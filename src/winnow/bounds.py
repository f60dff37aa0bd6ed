"""Ranges of options as types: annotations that do not import pydantic.

A function of arrays declares the range of an option in its signature. The function itself reads it there
(`budget.arguments.ranged`), and so does the configuration (options.py). So a function of `winnow.budget` is itself a
member, and its options, defaults and ranges are written once.
"""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Interval

Natural = Annotated[int, Interval(ge=0)]
AtLeastOne = Annotated[int, Interval(ge=1)]
AtLeastTwo = Annotated[int, Interval(ge=2)]
AtLeastThree = Annotated[int, Interval(ge=3)]
Finite = Annotated[float, Interval(gt=-math.inf, lt=math.inf)]
NotNegative = Annotated[float, Interval(ge=0)]
Positive = Annotated[float, Interval(gt=0)]
ZeroToOne = Annotated[float, Interval(ge=0, le=1)]
BelowOne = Annotated[float, Interval(ge=0, lt=1)]
AboveZeroToOne = Annotated[float, Interval(gt=0, le=1)]
LARGEST_REWARD = 1e6  # a larger number is a bug of the reward (a float32 infinity becomes 3e38)
RewardWeight = Annotated[float, Interval(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
LogProb = Annotated[float, Interval(le=0)]  # nats
Keep = AtLeastOne | AboveZeroToOne  # a number of rollouts, or a share of them: 1 is one, and 1.0 all of them
