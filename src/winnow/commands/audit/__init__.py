"""`winnow audit`."""
