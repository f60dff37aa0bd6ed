"""winnow's budget in verl: a replay buffer that keeps m of n rollouts, and a trainer that samples n.

    VERL_USE_EXTERNAL_MODULES=winnow_verl.trainer python -m verl.trainer.main_ppo
        actor_rollout_ref.rollout.n=4 trainer.v1.trainer_mode=winnow_sync
        trainer.v1.sampler.custom_sampler.path=pkg://winnow_verl.buffer
        trainer.v1.sampler.custom_sampler.name=PODSReplayBuffer
        +trainer.v1.sampler.sampler_kwargs.rollouts_per_prompt=16

It needs verl (`pip install 'winnow-rl[verl]'`), which the modules `buffer` and `trainer` import, and this one does not.
docs/from-verl.md describes it.
"""

from __future__ import annotations
