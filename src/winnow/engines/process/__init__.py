"""Any engine in a separate process."""
