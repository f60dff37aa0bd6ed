"""A rank's share of its machine: CPU threads and verify workers."""

from __future__ import annotations

import math
import os

import torch

from winnow import ranks
from winnow.control_groups import cpu_quota


def threads_of_rank(wanted: int) -> int:
    """CPU threads of this rank: the key `threads`, else OMP_NUM_THREADS, both of which are per process.

    Without either, it is the rank's share of torch's default, limited by the cores of the process's control groups.
    torch does not read these limits: it starts 64 threads in a container that may use two cores.
    """
    if wanted or "OMP_NUM_THREADS" in os.environ:
        return wanted or torch.get_num_threads()
    quota = cpu_quota()
    cores = torch.get_num_threads() if quota is None else min(torch.get_num_threads(), math.ceil(quota))
    return max(1, cores // ranks.local_count())


def workers_of_rank(wanted: int) -> int:
    """This rank's share of the machine's `verify.workers`: at least one, but 0 where the key is 0."""
    return max(1, wanted // ranks.local_count()) if wanted else 0
