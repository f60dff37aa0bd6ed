"""What a reward finds in the place of arrays that it was not given: log-probs that it has not said that it reads, and
tokens of a response that was saved without them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np

from winnow.errors import ConfigError
from winnow.records import FloatArray, IntArray, Rollout

_ALLOWED = {"__new__", "__repr__", "__str__", "__format__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"}


class NotRead:
    """In the place of an array: any use of it but showing it, and `len` where that is known, raises ConfigError."""

    def __init__(self, shown: str, remedy: str, length: int | None = None) -> None:
        self._shown, self._remedy, self.length = shown, remedy, length

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copy, pickle and the like look for and can do without
            raise AttributeError(name)
        raise ConfigError(self._remedy)

    def __repr__(self) -> str:
        return f"<{self._shown}>"


def _refuse(self: NotRead, *_: object, **__: object) -> Any:
    raise ConfigError(self._remedy)


def _length(self: NotRead) -> int:
    return _refuse(self) if self.length is None else self.length


for _name, _method in vars(np.ndarray).items():
    if _name.startswith("__") and callable(_method) and _name not in _ALLOWED:
        setattr(NotRead, _name, _length if _name == "__len__" else _refuse)

NOT_READ = cast(
    FloatArray,
    NotRead(
        "log-probs that were not asked for",
        "this reward has not said that it reads rollout.logprobs, so they are not sent to it; register it with "
        '@winnow.register("reward", reads=("logprobs",))',
    ),
)


def unsaved_tokens(length: int | None = None) -> IntArray:
    """In the place of the tokens of a response that was saved as text, perhaps with their number."""
    return cast(
        IntArray,
        NotRead(
            "tokens that were not saved",
            "this row was saved without the tokens that the reward reads; write them beside its text as 'tokens' "
            "('length', their number, is enough for len(rollout.tokens); those of the prompt are 'prompt_tokens'), or "
            "score a run folder or a file of its rollouts, which hold them",
            length,
        ),
    )


def without_logprobs(rollout: Rollout) -> Rollout:
    """The rollout as a reward sees it that does not read them."""
    return rollout if rollout.logprobs is NOT_READ else dataclasses.replace(rollout, logprobs=NOT_READ)
