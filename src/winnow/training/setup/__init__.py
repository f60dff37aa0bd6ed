"""From a configuration to a run: resolves members, checks combinations, plans memory, and loads everything."""
