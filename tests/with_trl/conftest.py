"""Tests with the real TRL, on the bundled policy. They are collected where TRL is installed:

pip install -c constraints.txt -e '.[test,trl]' && pytest tests/with_trl
"""

from __future__ import annotations

from typing import Any

import torch

from winnow.installed import is_installed, version_of

if not is_installed("trl"):
    collect_ignore_glob = ["test_*.py"]


class PlainLogProbs:
    """In place of the kernel for log-probs of TRL 1.15, with which TRL trains on a GPU alone."""

    @staticmethod
    def apply(hidden: Any, weight: Any, bias: Any, labels: Any, temperature: float, *rest: Any) -> tuple[Any, ...]:
        logs = (torch.nn.functional.linear(hidden, weight, bias).float() / temperature).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1).detach()
        return logs.gather(-1, labels[:, None])[:, 0], entropy, None, None, None


if (version_of("trl") or "").startswith("1.15.") and not torch.cuda.is_available():
    from trl.trainer import utils

    utils._ChunkedLogProbFunction = PlainLogProbs
