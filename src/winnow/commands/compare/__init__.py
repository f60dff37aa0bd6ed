"""Compares groups of training runs: curves over seeds, speed-up, table, CSV and picture."""
