"""Evaluates models, and saves and compares evaluations."""
