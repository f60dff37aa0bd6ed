"""`winnow doctor`: describes this machine, the memory that a run needs, and missing packages."""
