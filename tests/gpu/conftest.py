"""Before CUDA is started: what `deterministic = true` needs from it."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
