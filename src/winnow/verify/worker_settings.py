"""The settings of a supervisor and its workers, as one JSON text; a reward's name, and whether it can be sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from winnow.errors import ConfigError
from winnow.registry import resolve

RewardSpec = Mapping[str, Any]  # the argument of rewards.compose.make_reward
WARM_UP_LIMITS = 10  # additional time of a reward's very first verdict, in units of timeout_seconds


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    reward: RewardSpec
    base: str  # the folder that "file.py:function" is relative to
    workers: int
    timeout_seconds: float  # for one verdict
    memory_mb: int  # for one worker, in addition to the reward's imports

    def to_json(self) -> str:
        """The settings as JSON. Raises ConfigError when an option of the reward cannot be sent to another process."""
        try:
            return json.dumps(asdict(self))
        except TypeError as error:
            raise ConfigError(
                f"an option of the reward {reward_name(self.reward)!r} is not plain data ({error}), so it cannot be "
                f"sent to a worker",
                remedy="use numbers, texts, lists and tables, or set verify.workers = 0",
                key="reward",
                code="config.value",
            ) from error

    @classmethod
    def from_json(cls, text: str) -> WorkerSettings:
        return cls(**json.loads(text))


def reward_name(reward: RewardSpec) -> str:
    """The reward's name in messages: "r1_zero", or "math + format" for a sum."""
    return " + ".join(use if isinstance(use, str) else getattr(use, "__name__", repr(use)) for use in _uses(reward))


def can_be_sent(reward: RewardSpec) -> bool:
    """Whether another process can import every part: a function of a file, or a reward of winnow or of a package.

    It cannot import a function object, nor a member that only this process has registered. Raises ConfigError for a
    name that is not registered.
    """
    return all(
        isinstance(use, str) and (".py:" in use or resolve("reward", use).package is not None) for use in _uses(reward)
    )


def _uses(reward: RewardSpec) -> list[str | Callable[..., Any]]:
    return [part["use"] for part in reward.get("parts", [reward])]
