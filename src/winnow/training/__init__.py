"""Resolves a configuration into members and a run, and trains it: start reading at step.py."""
