"""The native engine samples on the policy's module, one token per step for every running rollout."""
