"""Compares an answer with the gold answer mathematically: exact rules first, then computer algebra."""
