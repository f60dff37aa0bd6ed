"""Samples with the policy's module in this process, one token per pass for every running rollout."""
