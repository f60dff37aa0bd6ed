"""`winnow fetch`."""
