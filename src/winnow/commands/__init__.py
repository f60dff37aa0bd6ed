"""What the commands do: check, eval, score, audit, list, fetch."""
