"""winnow's filter of prompts in NeMo-RL: a sampler of prompt groups that trains on those whose rewards vary most.

    async_rl:
      sampler: {name: custom, target: "winnow_nemo.sampler:VarianceSampler", share: 0.9, decide_on: 16}

NeMo-RL imports it by its name. winnow_nemo imports nothing of NeMo-RL. docs/from-verl.md describes it.
"""

from __future__ import annotations
