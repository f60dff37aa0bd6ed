"""Turns groups into batches, gradients and new weights."""
