"""Runs rewards in killable workers or in the trainer, and programs in a sandbox."""

from winnow.verify import code_tests
from winnow.verify.verifiers import Verifiers

__all__ = ["Verifiers", "code_tests"]
