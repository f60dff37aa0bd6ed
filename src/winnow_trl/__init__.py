"""winnow's selection of rollouts in TRL: `PODSTrainer`, a GRPOTrainer that samples n and trains on m per prompt.

    from winnow_trl import PODSTrainer
    PODSTrainer(..., args=GRPOConfig(num_generations=4, ...), rollouts_per_prompt=16, select="max_variance").train()

It needs TRL (`pip install 'winnow-rl[trl]'`). docs/from-trl.md describes it.
"""

from winnow_trl.trainer import PODSTrainer

__all__ = ["PODSTrainer"]
