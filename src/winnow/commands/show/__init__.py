"""`winnow show`."""
