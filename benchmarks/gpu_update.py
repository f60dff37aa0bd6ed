"""Seconds and memory of an update against its rollouts, with and without selection and gradient checkpointing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu_lab import SECONDS, Cost, Lab, cost_of, random_model, random_prompts, release

from winnow.algos.advantage import grpo
from winnow.algos.loss import clip
from winnow.algos.objective import Objective
from winnow.algos.selection import Selector, keep_all, max_variance
from winnow.algos.weighting import token
from winnow.learner.optimizer import Optimizer
from winnow.learner.policy import Policy
from winnow.learner.schedule import schedule
from winnow.memory import footprint
from winnow.records import Batch, Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng

PER_PROMPT, KEPT = 64, 16  # rollouts of a prompt, and how many of them selection keeps
SAMPLED = (64, 256)  # rollouts of an update, of which it trains on all or on the kept
FEWEST = 8  # rollouts in one micro-batch that the search begins with
BISECTIONS, REPEATS = 2, 2
ACCUMULATING = 0.75  # of the rollouts that fit alone: the gradients of the earlier micro-batches need room too
SELECTORS: dict[str, Selector] = {
    "all": keep_all,
    f"{PER_PROMPT} -> {KEPT}": functools.partial(max_variance, keep_per_prompt=KEPT),
}


@dataclass(frozen=True, slots=True)
class Learner:
    """A model with its optimizer, whose state stays in memory from one measurement to the next."""

    shape: str
    model: Any
    optimizer: Optimizer
    objective: Objective

    def update(self, policy: Policy, batch: Batch) -> None:
        """As a step of the corridor does it; an update that ran out of memory may have left gradients behind."""
        self.model.zero_grad(set_to_none=True)
        for mb in policy.micro_batches(batch.sequences):
            self.objective(policy.forward(mb), mb).total.backward()
        self.optimizer.step()


def updates(lab: Lab, shape: str, ceilings: Mapping[str, float]) -> None:
    """How many rollouts fit in one micro-batch; then whole updates, accumulated where they do not fit."""
    learner = _learner(lab, shape)
    for checkpointing in ("none", "selective", "full"):
        at_once = functools.partial(_at_once, lab, learner, checkpointing, ceilings)
        fits, fails = most_that_fit(at_once, lab.options.most_rollouts)
        point = {"shape": shape, "checkpointing": checkpointing}
        lab.record(point | {"rollouts_that_fit": fits, "rollouts_that_need_accumulation": fails})
        for sampled, (name, selector) in itertools.product(SAMPLED if fits else (), SELECTORS.items()):
            batch = _batch(lab, learner.model, sampled, selector)
            rows = len(batch.sequences)
            per_micro_batch = rows if rows <= fits else max(1, int(ACCUMULATING * fits))
            _measure(lab, learner, batch, per_micro_batch, point | {"sampled": sampled, "selection": name}, ceilings)
    del learner, at_once
    release(lab.device)


def most_that_fit(fits_at: Callable[[int], bool | None], most: int) -> tuple[int, int | None]:
    """The most rollouts known to fit, and the fewest known not to: double until they do not, then halve the gap.

    `fits_at` answers None where it cannot say, which ends the search; so does `most`.
    """
    fits, fails, rollouts = 0, None, FEWEST
    while fails is None and rollouts <= most:
        match fits_at(rollouts):
            case None:
                return fits, None
            case True:
                fits, rollouts = rollouts, 2 * rollouts
            case False:
                fails = rollouts
    for _ in range(BISECTIONS if fails is not None and fits else 0):
        middle = (fits + (fails or 0)) // 2
        answer = fits_at(middle)
        if answer is None:
            break
        fits, fails = (middle, fails) if answer else (fits, middle)
    return fits, fails


def _learner(lab: Lab, shape: str) -> Learner:
    model = random_model(shape, lab)
    optimizer = Optimizer(
        dict(model.named_parameters()),
        learning_rate=1e-6,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.0,
        max_grad_norm=1.0,
        schedule="constant",
        warmup_updates=0,
        total_updates=1,
    )
    return Learner(shape, model, optimizer, Objective(clip))


def _at_once(
    lab: Lab, learner: Learner, checkpointing: footprint.Checkpointing, ceilings: Mapping[str, float], rollouts: int
) -> bool | None:
    """Whether an update on so many rollouts fits as one micro-batch; None where that was not measured."""
    batch = _batch(lab, learner.model, rollouts, keep_all)
    point = {"shape": learner.shape, "checkpointing": checkpointing, "one_micro_batch": True}
    record = _measure(lab, learner, batch, rollouts, point, ceilings)
    return True if SECONDS in record else False if "out_of_memory" in record else None


def _measure(
    lab: Lab,
    learner: Learner,
    batch: Batch,
    per_micro_batch: int,
    point: dict[str, Any],
    ceilings: Mapping[str, float],
) -> dict[str, Any]:
    """Time the update; in its share of the matrix products' ceiling, nothing that is computed again counts."""
    length = lab.options.prompt_tokens + lab.options.tokens
    policy = Policy(
        learner.model,
        temperature=1.0,
        pad_token=0,
        tokens_per_micro_batch=per_micro_batch * length,
        gradient_checkpointing=point["checkpointing"],
    )
    rollouts = len(batch.sequences)
    point = point | {
        "rollouts": rollouts,
        "tokens": rollouts * length,
        "micro_batches": -(-rollouts // per_micro_batch),
    }
    kind = f"update {learner.shape} {point['checkpointing']}"
    record = lab.measure(kind, rollouts, point, lambda: learner.update(policy, batch), repeats=REPEATS)
    if SECONDS in record and ceilings["matmul"]:
        prompts = (
            rollouts if point["checkpointing"] != "none" else len({id(row.prompt) for row in batch.sequences})
        )  # shared, or not
        sizes = lab.options.prompt_tokens, lab.options.tokens
        operations = _operations(cost_of(learner.model), rollouts, prompts, *sizes)
        record["matmul_share"] = round(operations / record[SECONDS] / ceilings["matmul"], 4)
    lab.record(record)
    return record


def _operations(cost: Cost, rollouts: int, prompts: int, prompt: int, completion: int) -> int:
    """Of an update that reads so many prompts, forward and backward; prompts never reach the output layer."""
    read = prompts * prompt + rollouts * completion
    body = read * (cost.parameters - cost.head_parameters) + rollouts * completion * cost.head_parameters
    pairs = prompts * prompt * prompt // 2 + rollouts * completion * (prompt + completion // 2)
    return 6 * body + 3 * cost.attention_flops * pairs


def _batch(lab: Lab, model: Any, sampled: int, selector: Selector) -> Batch:
    """One update on rollouts of equal length of which every other is right, as the corridor would make it."""
    vocabulary, length = model.config.vocab_size, lab.options.tokens
    per_prompt = min(sampled, PER_PROMPT)
    prompts = random_prompts(-(-sampled // per_prompt), lab.options.prompt_tokens, vocabulary)
    groups = [_group(prompt, per_prompt, length, vocabulary) for prompt in prompts]
    groups = [group.fill(keep=selector(group, Rng(("select",)))) for group in groups]
    groups = [group.fill(advantages=credit) for group, credit in zip(groups, grpo(groups), strict=True)]
    (batch,) = schedule(
        groups,
        token,
        epochs=1,
        updates_per_step=1,
        max_new_tokens=length,
        planned=len(groups),
        pass_rates=None,
        seed=("update",),
    )
    return batch


def _group(prompt: Prompt, rollouts: int, length: int, vocabulary: int) -> Group:
    rng = np.random.default_rng(1)
    made = tuple(
        Rollout(
            index=i,
            tokens=rng.integers(0, vocabulary, length),
            logprobs=np.zeros(length),
            text="",
            finish="length",
            version=0,
        )
        for i in range(rollouts)
    )
    right = [i % 2 == 0 for i in range(rollouts)]
    outcomes = tuple(Outcome(reward=float(yes), correct=yes, kind="correct" if yes else "wrong") for yes in right)
    return Group(prompt=prompt, rollouts=made, outcomes=outcomes)
