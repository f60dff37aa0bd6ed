"""The rollout budget as functions of numpy arrays: sampling of prompts."""
