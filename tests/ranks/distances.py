"""How far what N ranks compute is from what one does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def relative(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """|| found - expected ||_2 / || expected ||_2 over all arrays, which have the same names."""
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    if not expected:
        return 0.0
    ours, theirs = (np.concatenate([np.ravel(of[name]) for name in sorted(of)]) for of in (found, expected))
    assert np.linalg.norm(theirs) > 0
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
