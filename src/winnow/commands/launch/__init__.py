"""`winnow train`: in this process, as one of several ranks, as the parent of several, or on a Ray cluster."""
