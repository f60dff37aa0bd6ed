"""`winnow list`."""
