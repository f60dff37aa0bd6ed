"""`winnow sweep`: train each configuration of a grid with each seed, one run or a few at a time."""
