"""Engines sample rollouts."""
