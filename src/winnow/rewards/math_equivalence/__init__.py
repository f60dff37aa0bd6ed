"""Compares an answer with the gold mathematically: exact rules first, then computer algebra where none applies."""
