"""Alarms: what looks wrong in the rows of metrics.jsonl, why it is likely so, and which key changes it."""

from winnow.alarms.alarm import Alarm, Evidence, Kind
from winnow.alarms.table import ALARMS
from winnow.alarms.watching import PREFIX, Alarms, check, of_run

__all__ = ["ALARMS", "PREFIX", "Alarm", "Alarms", "Evidence", "Kind", "check", "of_run"]
