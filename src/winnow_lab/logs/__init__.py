"""Readers of the logs of other trainers, a module for each: they make winnow's rows and metrics of its files."""
