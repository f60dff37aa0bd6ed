"""Runs programs written by a model, with access to their input and a Python interpreter only. See docs/verifiers.md."""

from winnow.verify.sandbox.choice import Sandbox, SandboxError, choose
from winnow.verify.sandbox.limits import Ending, Limits, Program, RunResult

__all__ = ["Ending", "Limits", "Program", "RunResult", "Sandbox", "SandboxError", "choose"]
