"""Ranges of options as types: annotations that need no library of configurations.

A function of arrays declares the range of a parameter in its signature, and the configuration reads it there
(options.py). So a function of `winnow.budget` is itself a member, and its options and defaults are written once.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

Natural = Annotated[int, Ge(0)]
AtLeastOne = Annotated[int, Ge(1)]
AtLeastTwo = Annotated[int, Ge(2)]
AtLeastThree = Annotated[int, Ge(3)]
NotNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
ZeroToOne = Annotated[float, Ge(0), Le(1)]
AboveZeroToOne = Annotated[float, Gt(0), Le(1)]
LogProb = Annotated[float, Le(0)]  # nats
Keep = AtLeastOne | AboveZeroToOne  # a number of rollouts, or a share of them: 1 is one, and 1.0 all of them
