"""The release of verl, with the queue in which its trainer stores rollouts, with which winnow_verl is tested."""

from __future__ import annotations

from winnow.installed import Release

VERL = Release("verl", tested="0.9.1", beside=("transfer_queue",))
