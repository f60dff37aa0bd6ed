"""bitsandbytes, an extra: 8-bit moments, and weights of 4 bits."""

from __future__ import annotations

import logging
from typing import Any

LEAST_8BIT = 4096  # numbers of a tensor that gets 8-bit moments; smaller ones keep float32
MOMENT_BLOCK = 256  # numbers of an 8-bit moment that share a float32 scale


def bitsandbytes() -> Any:
    """The package. It is imported late, as it takes seconds."""
    # It says at its import which kernel for a CPU it would rather have.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    import bitsandbytes

    return bitsandbytes
