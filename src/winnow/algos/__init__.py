"""Allocation, selection, advantages, losses and estimators as pure functions of arrays. No I/O, model or logging."""
