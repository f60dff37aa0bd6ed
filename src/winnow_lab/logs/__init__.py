"""Readers of the logs of other trainers, a module for each, which convert files to winnow's rows and metrics."""
