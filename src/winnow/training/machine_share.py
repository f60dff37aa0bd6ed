"""What of a machine each of its ranks takes."""

from __future__ import annotations

import os

import torch

from winnow import ranks


def threads_of_rank(wanted: int) -> int:
    """`threads` of the configuration, which each rank takes; for 0 as many as OMP_NUM_THREADS says, which is of a
    process, or else this rank's share of those that torch would take.
    """
    if wanted or "OMP_NUM_THREADS" in os.environ:
        return wanted or torch.get_num_threads()
    return max(1, torch.get_num_threads() // ranks.local_count())


def workers_of_rank(wanted: int) -> int:
    """This rank's share of the machine's `verify.workers`: at least one, and none where there are to be none."""
    return max(1, wanted // ranks.local_count()) if wanted else 0
