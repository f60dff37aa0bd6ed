"""winnow.toml in the folder of another trainer's run: values that its log does not contain, given by the user.

reward_weights = [1.0, 0.5]     # TRL: of the reward functions, in the order of the log's metrics
rollouts_per_prompt = 8         # where the log does not show where a group ends
correct_by = "accuracy_reward"  # TRL: the reward function whose 1 is a correct completion. Without it, rewards are
                                # verdicts in a step in which all of them are 0 or 1, and elsewhere there is none
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, near_miss
from winnow.state.disk import errors_as

SETTINGS = "winnow.toml"
WEIGHTS, GROUP, VERDICTS = KEYS = ("reward_weights", "rollouts_per_prompt", "correct_by")


@dataclass(frozen=True)
class ReadingSettings:
    """The values of winnow.toml; None for a key that it does not have."""

    reward_weights: tuple[float, ...] | None = None
    rollouts_per_prompt: int | None = None
    correct_by: str | None = None


def read_settings(folder: Path) -> ReadingSettings:
    """The settings in a folder; without a file, none is given. Raises ConfigError."""
    path = folder / SETTINGS
    wrong = (tomllib.TOMLDecodeError, UnicodeDecodeError)
    with (
        errors_as(ConfigError, f"cannot read {path}", "make it readable", code="config.unreadable"),
        errors_as(ConfigError, f"{path} is no TOML", "repair it", code="config.unreadable", of=wrong),
    ):
        if not path.exists():
            return ReadingSettings()
        table = tomllib.loads(path.read_bytes().decode())
    for key in table:
        if key not in KEYS:
            raise ConfigError(
                f"{path}: there is no key {key!r}",
                remedy=near_miss(key, KEYS),
                key=key,
                code="config.unknown_key",
            )
    weights, group, verdicts = map(table.get, KEYS)
    if weights is not None and not (isinstance(weights, list) and weights and all(map(_is_number, weights))):
        raise _unusable(path, WEIGHTS, weights, "a list of numbers, such as [1.0, 0.5]")
    if group is not None and (not isinstance(group, int) or isinstance(group, bool) or group < 1):
        raise _unusable(path, GROUP, group, "a number of rollouts, such as 8")
    if verdicts is not None and not isinstance(verdicts, str):
        raise _unusable(path, VERDICTS, verdicts, "the name of a reward function")
    return ReadingSettings(None if weights is None else tuple(map(float, weights)), group, verdicts)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _unusable(path: Path, key: str, value: Any, form: str) -> ConfigError:
    return ConfigError(f"{path}: {key} is {value!r}", remedy=f"write {form}", key=key, code="config.value")
