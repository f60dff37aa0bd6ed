"""A run as text, as pictures and as data, read from its folder or from its events."""
