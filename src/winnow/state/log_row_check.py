"""Checks that a row of a log is one that winnow writes: a log may have been cut, edited or made by other programs.

This module imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field, InstanceOf

from winnow.records import Cause, Finish, Kind

Text = InstanceOf[str]  # not `str`: pydantic refuses lone surrogates, which a model may write
Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = float | None  # null for a number that JSON cannot represent


class _Strict(BaseModel):
    """The required keys and their types; further keys, as a later version may write them, are accepted."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, arbitrary_types_allowed=True)


class _Outcome(_Strict):
    reward: Number
    correct: bool | None
    kind: Kind
    parts: dict[Text, Number]
    answer: Text | None
    cause: Cause | None
    detail: Text
    seconds: float
    late: bool = False  # rows of earlier versions have none

    @pydantic.model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.kind == "failed") != (self.reward is None):
            raise ValueError("a failed verdict has no reward, and every other one has")
        return self


class _Rollout(_Strict):
    step: Count
    seed: int
    prompt_id: Text
    prompt: Text
    prompt_tokens: list[Count]
    answer: Any
    task: Text
    meta: dict[Text, Any]
    index: Count
    text: Text
    tokens: list[Count]
    logprobs: list[Number]
    finish: Finish
    version: Count
    trainable: list[bool] | None
    outcome: _Outcome
    keep: bool
    reason: Text
    advantage: Number | list[Number]
    weight: Number

    @pydantic.model_validator(mode="after")
    def _agrees(self) -> Self:
        for name in ("logprobs", "trainable", "advantage"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != len(self.tokens):
                raise ValueError(f"{len(self.tokens)} tokens, but {len(value)} entries of {name!r}")
        return self


def check_rollout(row: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the key, unless the row holds all that log_rows.py writes of a rollout."""
    try:
        _Rollout.model_validate(row)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())
        said = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{key}: {said}" if key else said) from None


def check_metrics(row: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the key, unless every value is a number or null."""
    for name, value in row.items():
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name}: {type(value).__name__} where a finite number or null belongs")
