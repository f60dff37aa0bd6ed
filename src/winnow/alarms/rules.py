"""The rules of the alarms, each with its symptom, likely causes and keys. Importing this declares them in `ALARMS`."""

from winnow.alarms import learning, policy, rollouts
from winnow.alarms.kinds import KINDS, Kind

__all__ = ["ALARMS", "learning", "policy", "rollouts"]

ALARMS: tuple[Kind, ...] = tuple(KINDS)
