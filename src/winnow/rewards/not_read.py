"""What a reward finds where log-probs would be, unless it has said that it reads them."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np

from winnow.errors import ConfigError
from winnow.records import FloatArray, Rollout

_REMEDY = (
    "this reward has not said that it reads rollout.logprobs, so they are not sent to it; register it with "
    '@winnow.register("reward", reads=("logprobs",))'
)
_ALLOWED = {"__new__", "__repr__", "__str__", "__format__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"}


class NotRead:
    """In the place of log-probs that nobody asked for: any use of it but showing it raises ConfigError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copy, pickle and the like look for and can do without
            raise AttributeError(name)
        raise ConfigError(_REMEDY)

    def __repr__(self) -> str:
        return "<log-probs that were not asked for>"


def _refuse(self: NotRead, *_: object, **__: object) -> Any:
    raise ConfigError(_REMEDY)


for _name, _method in vars(np.ndarray).items():
    if _name.startswith("__") and callable(_method) and _name not in _ALLOWED:
        setattr(NotRead, _name, _refuse)

NOT_READ = cast(FloatArray, NotRead())


def without_logprobs(rollout: Rollout) -> Rollout:
    """The rollout as a reward sees it that does not read them."""
    return rollout if rollout.logprobs is NOT_READ else dataclasses.replace(rollout, logprobs=NOT_READ)
