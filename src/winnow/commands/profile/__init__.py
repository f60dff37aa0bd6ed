"""`winnow profile`: time and memory of sampling and updates for different numbers of rollouts."""
