"""Runs rewards in killable workers or in the trainer, and programs in a sandbox."""
