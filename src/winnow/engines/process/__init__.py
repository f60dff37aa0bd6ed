"""Runs any engine in a separate process."""
