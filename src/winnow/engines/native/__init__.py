"""The native engine samples with the policy's module or a copy of it, one token per pass for every running rollout."""
