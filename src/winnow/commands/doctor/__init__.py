"""`winnow doctor`: describes this machine, the defaults of a run on it, and what is missing."""
