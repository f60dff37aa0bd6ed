"""`winnow train`: trains in this process, as one of several ranks, as their parent, or on a Ray cluster."""
