"""The learner turns groups into batches, gradients and new weights."""
