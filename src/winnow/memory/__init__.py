"""Memory: what a run will take, part by part, and what it takes."""
