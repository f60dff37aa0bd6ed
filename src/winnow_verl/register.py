"""Registers the trainer with verl when it is imported, which VERL_USE_EXTERNAL_MODULES=winnow_verl.register does."""

from winnow_verl.trainer import PODSTrainer

__all__ = ["PODSTrainer"]
