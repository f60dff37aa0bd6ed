"""Displays and reports: progress, budgets, rollouts, plots. Nothing here changes a run."""
