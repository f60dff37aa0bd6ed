"""Running rewards: killable workers, or the trainer itself; and the rewards that touch the world."""

from winnow.verify import code_tests
from winnow.verify.verifiers import Verifiers

__all__ = ["Verifiers", "code_tests"]
