"""The native engine: samples on the policy's own module, a token a step for every running rollout."""
