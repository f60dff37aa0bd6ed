"""Compares an answer with the gold answer: by exact rules, and by computer algebra if none of them decides."""
