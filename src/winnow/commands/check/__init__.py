"""`winnow check`."""
