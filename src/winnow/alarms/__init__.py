"""Alarms: symptoms in the rows of metrics.jsonl, their likely causes, and the keys that change them."""

from winnow.alarms.kinds import Alarm, Evidence, Kind
from winnow.alarms.rules import ALARMS
from winnow.alarms.watch import PREFIX, Alarms, alarms_of_run, check

__all__ = ["ALARMS", "PREFIX", "Alarm", "Alarms", "Evidence", "Kind", "alarms_of_run", "check"]
