"""The work of the commands: check, eval, sweep, score, audit, list, fetch, and others."""
