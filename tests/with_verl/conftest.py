"""Tests with the real verl and its TransferQueue. They are collected where verl is installed, in an environment of its
own, as it needs an older transformers than winnow's constraints:

pip install 'verl==0.9.1' 'TransferQueue==0.1.10' 'transformers<5.11' && pip install -e '.[test]' --no-deps
pytest tests/with_verl
"""

from __future__ import annotations

import warnings

from winnow.installed import is_installed

if not is_installed("verl"):
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():  # verl warns of every engine that is not installed
        warnings.simplefilter("ignore")
        import verl.trainer.ppo.v1  # noqa: F401
