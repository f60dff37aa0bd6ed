"""What of a machine each of its ranks takes."""

from __future__ import annotations

import math
import os

import torch

from winnow import ranks
from winnow.memory.control_groups import cpu_quota


def threads_of_rank(wanted: int) -> int:
    """`threads` of the configuration, which each rank takes; for 0 as many as OMP_NUM_THREADS says, which is of a
    process, or else this rank's share of those that torch would take, and of no more than the control groups of the
    process leave it cores for: torch, which does not ask them, takes 64 in a container that may use two.
    """
    if wanted or "OMP_NUM_THREADS" in os.environ:
        return wanted or torch.get_num_threads()
    quota = cpu_quota()
    cores = torch.get_num_threads() if quota is None else min(torch.get_num_threads(), math.ceil(quota))
    return max(1, cores // ranks.local_count())


def workers_of_rank(wanted: int) -> int:
    """This rank's share of the machine's `verify.workers`: at least one, and none where there are to be none."""
    return max(1, wanted // ranks.local_count()) if wanted else 0
