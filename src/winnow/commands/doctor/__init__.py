"""`winnow doctor`: what this machine is, what a run would take of it, and what is missing for what."""
