"""Running rewards: killable workers, or the trainer itself."""

from winnow.verify.verifiers import Verifiers

__all__ = ["Verifiers"]
