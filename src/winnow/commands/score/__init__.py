"""`winnow score`."""
