"""Placeholders for arrays that a reward does not get: undeclared log-probs, and tokens that were not saved."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np

from winnow.errors import ConfigError
from winnow.records import FloatArray, IntArray, Rollout

_ALLOWED = {"__new__", "__repr__", "__str__", "__format__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"}


class NotRead:
    """Replaces an array: any use raises ConfigError, except printing and copying, and `len` if the length is known."""

    def __init__(self, shown: str, problem: str, remedy: str, *, code: str, length: int | None = None) -> None:
        self._shown, self._problem, self._remedy, self._code, self.length = shown, problem, remedy, code, length

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # optional attributes that copy, pickle and the like look for
            raise AttributeError(name)
        _refuse(self)

    def __repr__(self) -> str:
        return f"<{self._shown}>"


def _refuse(self: NotRead, *_: object, **__: object) -> Any:
    raise ConfigError(self._problem, remedy=self._remedy, code=self._code)


def _length(self: NotRead) -> int:
    return _refuse(self) if self.length is None else self.length


for _name, _method in vars(np.ndarray).items():
    if _name.startswith("__") and callable(_method) and _name not in _ALLOWED:
        setattr(NotRead, _name, _length if _name == "__len__" else _refuse)

NOT_READ = cast(
    FloatArray,
    NotRead(
        "log-probs that were not requested",
        "the reward reads rollout.logprobs without declaring it, so they were not sent to it",
        'register it with @winnow.register("reward", reads=("logprobs",))',
        code="config.registration",
    ),
)


def unsaved_tokens(length: int | None = None) -> IntArray:
    """Replaces the tokens of a response that was saved as text; `length` is their number, where it was saved."""
    return cast(
        IntArray,
        NotRead(
            "tokens that were not saved",
            "this row was saved without the tokens that the reward reads",
            "save them beside the text as 'tokens' (their number as 'length' is enough for len(rollout.tokens)) and "
            "those of the prompt as 'prompt_tokens', or score a run folder or a file of its rollouts, which hold them",
            code="config.member_result",
            length=length,
        ),
    )


def without_logprobs(rollout: Rollout) -> Rollout:
    """The rollout for a reward that does not declare that it reads log-probs."""
    return rollout if rollout.logprobs is NOT_READ else dataclasses.replace(rollout, logprobs=NOT_READ)
