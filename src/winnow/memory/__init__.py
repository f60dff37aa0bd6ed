"""Memory: plan what a run needs, part by part, and measure what it uses."""
