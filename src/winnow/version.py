"""The version of the package, and of nothing else."""

__version__ = "0.2.0"
