"""One training step and the loop around it, in the words of the papers: start reading at step.py."""
