"""The learner: from groups to batches to gradients to new weights."""
