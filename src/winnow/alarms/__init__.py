"""Alarms: symptoms in the rows of metrics.jsonl, their likely causes, and the keys that change them."""
