"""What people read: progress, budgets, rollouts, plots. Nothing here changes a run."""
