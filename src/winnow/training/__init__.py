"""From a configuration to a run that trains: members, checks, prompts, memory, models, engine."""
