"""Tests with the real TRL, on the bundled policy. They are collected where TRL is installed:

pip install -c constraints.txt -e '.[test,trl]' && pytest tests/with_trl
"""

from __future__ import annotations

from winnow.installed import is_installed

if not is_installed("trl"):
    collect_ignore_glob = ["test_*.py"]
