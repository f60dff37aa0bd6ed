"""The functions of `winnow.budget` that are winnow's samplers, allocators, rules of rounds, and cuts.

    family `sampler`     (table of P prompts, state, rng, count) -> `count` different rows, and the next state
    family `allocator`   (statistics of G prompts, budget) -> [G] rollouts
    family `round`       (rollouts so far) -> [G] how many more each prompt gets
    family `cut`         (rollouts of a round) -> [R] tokens that each of them gets

Formulas, sources, options and their ranges are in `winnow.budget` (sampling.py, allocators.py, rounds.py, cuts.py).
Options that exclude each other are found by a call on an example, before a run.

Every sampler visits all prompts again and again: after `patience` epochs without a draw, a prompt is drawn with any
results. An epoch is as many draws of single prompts as the task has prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from winnow.budget import allocators, cuts, rounds, sampling
from winnow.options import tried
from winnow.records import PromptStats
from winnow.registry import register

NONE = np.zeros(0, dtype=np.int64)
ONE = np.ones(1)
EXAMPLES: Mapping[str, tuple[Any, ...]] = {
    "sampler": (sampling.PromptTable.empty(1, ONE), {}, lambda name, number: np.random.default_rng(number), 1),
    "allocator": (PromptStats(ids=("example",), pass_rate=ONE, gradient_norm=ONE, trials=ONE, correct=ONE), 1),
    "round": (rounds.Counts(planned=NONE, sampled=NONE, correct=NONE, wrong=NONE),),
    "cut": (cuts.SampledRound(lengths=NONE, group=NONE, logprobs=()),),
}
CENTRED = {"advantage": ("grpo", "dr_grpo", "rloo")}
EQUAL = {"select": ("all",), "weighting": ("prompt",)}  # all rollouts are trained on, and each prompt weighs the same


def _register(family: str, rule: Callable[..., Any], **traits: Any) -> None:
    register(family, check=tried(rule, *EXAMPLES[family]), **traits)(rule)


_register("sampler", sampling.uniform, source="none", probability="equal")
_register("sampler", sampling.greso, probability="known")
_register("sampler", sampling.mopps)
_register("sampler", sampling.adarft, label="field")
_register("sampler", sampling.cures, probability="known")
_register("sampler", sampling.replay)
_register("sampler", sampling.retire)

_register("allocator", allocators.uniform, source="none")
_register("allocator", allocators.gvm, source="probe")
_register("allocator", allocators.gvm_online)
_register("allocator", allocators.cures, source="probe", assumes=CENTRED | EQUAL, least="minimum")
for rule, assumed in (
    (allocators.knapsack, CENTRED | {"select": ("all", "max_variance")}),
    (allocators.vip_rloo, {"advantage": ("rloo",), **EQUAL}),
    (allocators.vip_dr_grpo, {"advantage": ("dr_grpo",), **EQUAL}),
):
    _register("allocator", rule, gradient_norms=False, assumes=assumed, least="minimum")

_register("round", rounds.single, reads_verdicts=False)
_register("round", rounds.balanced)
_register("round", rounds.positive)
_register("round", rounds.pilot_commit)
_register("round", rounds.screening)

_register("cut", cuts.none, cuts=False)
_register("cut", cuts.token_budget)
_register("cut", cuts.stragglers)
_register("cut", cuts.unlikely, reads=("logprobs",))
