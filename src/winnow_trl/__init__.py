"""winnow's selection of rollouts in TRL: `PODSTrainer`, a GRPOTrainer that samples n and trains on m per prompt.

    from winnow_trl import PODSTrainer
    PODSTrainer(..., args=GRPOConfig(num_generations=4, ...), rollouts_per_prompt=16, select="max_variance").train()

It needs TRL (`pip install 'winnow-rl[trl]'`), which is imported with `PODSTrainer` and not before. docs/from-trl.md
describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnow_trl.trainer import PODSTrainer

__all__ = ["PODSTrainer"]


def __getattr__(name: str) -> Any:
    if name != "PODSTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from winnow_trl.trainer import PODSTrainer

    return PODSTrainer
