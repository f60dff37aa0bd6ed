"""Tests with the real libraries, offline. `scripts/test-trackers` runs them in a separate virtual environment, as
trackio requires an older pillow, and mlflow an older pyarrow, than the other tests. `scripts/test` does not collect
them.
"""

from __future__ import annotations

import os

if "WINNOW_TEST_TRACKERS" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
