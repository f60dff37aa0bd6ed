"""Training: from a configuration to members, to a run, to a step; read step.py first."""
