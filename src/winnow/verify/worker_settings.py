"""The settings of a supervisor and its workers, as one JSON text; a reward's name, and whether it can be sent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from winnow.environments.judging import JudgeSpec, named_members
from winnow.errors import ConfigError
from winnow.registry import resolve

WARM_UP_LIMITS = 10  # additional time of a reward's very first verdict, in units of timeout_seconds


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    reward: JudgeSpec
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


def reward_name(reward: JudgeSpec) -> str:
    """The name of the reward or environment in messages: "r1_zero", or "math + format" for a sum."""
    uses = (use for _, use in named_members(reward))
    return " + ".join(use if isinstance(use, str) else getattr(use, "__name__", repr(use)) for use in uses)


def can_be_sent(reward: JudgeSpec) -> bool:
    """Whether another process can import every part: a function of a file, or a member of winnow or of a package.

    It cannot import a function object, nor a member that only this process has registered. Raises ConfigError for a
    name that is not registered.
    """
    return all(
        isinstance(use, str) and (".py:" in use or resolve(family, use).package is not None)
        for family, use in named_members(reward)
    )
