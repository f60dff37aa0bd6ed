"""Shared by both sides of the comparison with TRL: notes, settings, measurements of a step, the reward."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.records import Group, Prompt, Rollout

# Notes that every result of the comparison contains.
NOTES = (
    "TRL repeats each prompt n times and reads it n times in one generate() call over the whole generation batch: no "
    "shared prefix, and finished rows stay in the batch until the longest is done. winnow reads each prompt once and "
    "lets finished rows leave.",
    "TRL computes the entropy over the full vocabulary in every training forward; winnow reports the entropy from the "
    "sampled log-probs.",
    "TRL pads prompts on the left and completions on the right of one rectangle; winnow reads a prompt once for its "
    "rollouts where that saves a tenth of the tokens, under a mask by position; else it sorts rows by length and pads "
    "on the right without a mask.",
    "TRL's step holds the Hugging Face Trainer's loop; winnow's holds its logbook: a row per rollout, written to disk.",
    "winnow's engine returns the log-probs of what it sampled, TRL's generate() does not; winnow's are computed within "
    "its generation phase.",
    "Both sides: the same weights, prompts, order of prompts, threads, precision, AdamW (fused), clipping at 1, "
    "constant rate, one optimizer update per generation, no reference model. Rewards are judged in the trainer's "
    "process on both sides (verify.workers = 0), so that the trainers are measured and not the verifier.",
    "The embedding of the padding token is trained on both sides. transformers gives it no gradient (padding_idx), "
    "which is removed on TRL's side. In SmolLM2 and Qwen2.5-base it is the end token, whose row plain TRL never trains "
    "from the input.",
    "In bfloat16 TRL trains bfloat16 weights and moments, its fastest way; winnow trains float32 masters.",
    "Timed steps use a hash of the completion's tokens as reward: no group is flat, so winnow drops no row.",
    "Fixed lengths: TRL forbids the end of sequence by min_new_tokens; winnow's engine is given no stop token.",
    "TRL's micro-batch is the fastest of those tried, per point; winnow's is 4,096 tokens throughout.",
    "On a CPU the update is a far larger share of the step than on a GPU with vLLM, which flatters PODS; ratios do not "
    "transfer. Phase seconds stand beside every ratio.",
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One shape of a step. The reward is `token_hash`."""

    model: str = "bundled"
    dtype: str = "float32"  # TRL's weights and winnow's computation; in bfloat16 winnow has float32 masters
    prompts: int
    rollouts: int  # n, per prompt
    keep: int | None = None  # m of PODS, winnow's side only; None trains on all n
    max_new_tokens: int
    fixed: bool = False  # every rollout is exactly max_new_tokens long
    learning_rate: float = 1e-6  # so small that the policies of both sides barely change
    eps: float = 1e-8
    problems: int = 4096  # of the default task; if equal to `prompts`, every step has the same ones

    @property
    def total(self) -> int:
        return self.prompts * self.rollouts

    @property
    def lengths(self) -> str:
        return f"{self.max_new_tokens} exactly" if self.fixed else f"natural, at most {self.max_new_tokens}"

    def but(self, **changes: Any) -> Setting:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One training step of one side."""

    seconds: float
    phases: dict[str, float]  # seconds; they add up to `seconds`
    reward: float
    tokens: float  # completion tokens sampled
    length_mean: float
    length_max: float
    trained: int  # rollouts that reached the update


def token_hash(tokens: Sequence[int] | np.ndarray) -> float:
    """In [0, 1) by steps of 2^-16, exact in TRL's float32; it takes microseconds, and is rarely flat in a group."""
    return (zlib.crc32(np.asarray(tokens, dtype=np.int64).tobytes()) >> 16) / 2**16


def hash_reward(prompt: Prompt, rollout: Rollout) -> float:
    """`token_hash` as winnow's reward."""
    return token_hash(rollout.tokens)


def completions(groups: Sequence[Group]) -> list[list[int]]:
    """Every rollout's tokens, group after group: the order in which TRL keeps them."""
    return [rollout.tokens.tolist() for group in groups for rollout in group.rollouts]
