"""Samples the rollouts of a step: which prompts, in how many rounds and turns, and on which rank."""
