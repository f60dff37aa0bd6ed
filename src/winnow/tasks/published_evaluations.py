"""Prompts, limits and rewards of published evaluations of mathematics: the values of a task's trait `evaluation`.

The texts are winnow's; they have the meaning of the published messages (docs/published.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# GVM (Yao et al. 2025, arXiv 2505.02391): competition problems; the answer is in the last box.
BOXED: Mapping[str, Any] = MappingProxyType(
    {
        "prompt": {
            "template": "chat",
            "system": r"Reason step by step and put the final answer within \boxed{}.",
            "suffix": r" Think step by step and write the final answer within \boxed{}.",
            "max_prompt_tokens": 1024,
        },
        "rollout": {"max_new_tokens": 3072},
        "reward": {"use": "boxed"},
    }
)

# PODS (Xu et al. 2025, arXiv 2504.13818): word problems; answer and format are separate parts of the reward.
TAGGED: Mapping[str, Any] = MappingProxyType(
    {
        "prompt": {
            "template": "chat",
            "system": "A mathematics question follows. Reason step by step between <think> and </think>, checking and "
            "correcting yourself; then write the final answer between <answer> and </answer>. The length of the "
            "response is limited.",
            "max_prompt_tokens": 512,
        },
        "rollout": {"max_new_tokens": 512},
        "reward": {"parts": ({"use": "numeric"}, {"use": "format", "weight": 0.1}), "shaping": "if_wrong"},
    }
)
