"""Resolves a configuration into members and a run, and trains it; step.py is the place to start reading."""
