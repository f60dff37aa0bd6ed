"""What a zygote has to know, as one JSON text, and two questions about a reward's plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from winnow.errors import ConfigError
from winnow.registry import in_every_process, resolve

RewardSpec = Mapping[str, Any]  # what rewards.compose.make_reward reads
WARM_UP_LIMITS = 10  # times timeout_seconds that a reward's very first verdict may take longer


@dataclass(frozen=True, kw_only=True)
class Settings:
    reward: RewardSpec
    base: str  # the folder that "file.py:function" is relative to
    workers: int
    timeout_seconds: float  # for one verdict
    memory_mb: int  # for one worker, on top of what the reward's imports take

    def to_json(self) -> str:
        """Raises ConfigError when an option of the reward cannot be told to another process."""
        try:
            return json.dumps(asdict(self))
        except TypeError as error:
            raise ConfigError(
                f"an option of the reward {reward_name(self.reward)!r} is not plain data ({error}), so no worker can "
                f"be told; use numbers, texts, lists and tables, or set verify.workers = 0"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return cls(**json.loads(text))


def reward_name(reward: RewardSpec) -> str:
    """What a person calls it: "r1_zero", or "math + format" for a sum."""
    return " + ".join(use if isinstance(use, str) else getattr(use, "__name__", repr(use)) for use in _uses(reward))


def can_travel(reward: RewardSpec) -> bool:
    """True when another process can import every part: a file's function, or a member that winnow brings along.

    A function object cannot, nor can a name that only this process has registered. Raises ConfigError for a name that
    nobody has.
    """
    return all(isinstance(use, str) and (".py:" in use or _is_ours(use)) for use in _uses(reward))


def _is_ours(name: str) -> bool:
    return in_every_process(resolve("reward", name))


def _uses(reward: RewardSpec) -> list[str | Callable[..., Any]]:
    return [part["use"] for part in reward.get("parts", [reward])]
