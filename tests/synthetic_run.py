"""A run folder written through the logbook by plain functions: what the report tests read."""

from __future__ import annotations

import math

import numpy as np

from winnow.records import Batch, Group, Outcome, Prompt, Rollout, TrainingSequence
from winnow.state.logbook import Logbook

NASTY = "6 \x1b[31mred\x1b[0m [bold]markup[/bold] \u202e\ud800"
RIGHT = Outcome(reward=1.0, correct=True, kind="correct", answer="132")
WRONG = Outcome(reward=0.0, correct=False, kind="wrong", answer="6")
UNREAD = Outcome(reward=0.0, correct=False, kind="unparsable", detail="no tags")
FAILED = Outcome(reward=math.nan, correct=None, kind="failed", cause="timeout", detail="took 5 s")


def group(name, outcomes, *, texts=None, question="What is 47 + 85?"):
    count = len(outcomes)
    texts = texts or [f"answer {i}" for i in range(count)]
    rollouts = tuple(
        Rollout(
            index=i, tokens=np.arange(3), logprobs=np.zeros(3), text=texts[i], finish="length" if i == 1 else "stop",
            version=0,
        )
        for i in range(count)
    )  # fmt: skip
    prompt = Prompt(id=name, tokens=np.array([1]), text=question, answer="132", task="toy")
    keep = np.array([not outcome.failed for outcome in outcomes])
    keep[-1] = False
    advantages = np.where(keep, 0.5, 0.0)
    return Group(prompt=prompt, rollouts=rollouts, outcomes=tuple(outcomes)).fill(keep=keep, advantages=advantages)


def batch(groups):
    rows = tuple(
        TrainingSequence(prompt=g.prompt, rollout=r, group=place, advantage=0.5, weight=0.125)
        for place, g in enumerate(groups)
        for r, keep in zip(g.rollouts, g.keep, strict=True)
        if keep
    )
    return Batch(epoch=0, sequences=rows)


def metrics(step, **changes):
    """A healthy step: the reward climbs by 0.1 per step."""
    reward = min(1.0, 0.1 * (step + 1))
    return {
        "reward/mean": reward, "reward/std": 0.4, "reward/min": 0.0, "reward/max": 1.0, "reward/accuracy": reward,
        "group/count": 4, "group/flat": 1, "group/all_correct": 1, "group/all_wrong": 0,
        "outcome/failed": 0, "outcome/unparsable": 2, "rollout/truncated": 0.1, "policy/entropy": 0.7,
        "advantage/mean": 0.0, "advantage/std": 0.9, "policy/loss": -0.01 * step, "policy/grad_norm": 0.3,
        "policy/skipped_updates": 0,
        "budget/rollouts": 16, "budget/updates": 1, "budget/tokens_generated": 1000, "budget/tokens_trained": 250,
        "seconds/generate": 3.0, "seconds/update": 1.0, "seconds/step": 4.0,
        **changes,
    }  # fmt: skip


def evaluation(sampled, greedy):
    return {
        "eval/accuracy_sampled": sampled,
        "eval/accuracy_sampled_sem": 0.02,
        "eval/accuracy_greedy": greedy,
        "eval/seconds": 6.0,
    }


def write_run(folder, steps=10):
    """Steps 0 ... with two prompts each, "easy" and "hard", and evaluations before, halfway and after."""
    folder.mkdir(exist_ok=True)
    log = Logbook(folder, seed=3)
    log.write_between(0, evaluation(0.05, 0.04))
    for step in range(steps):
        if step == steps // 2 and step:
            log.write_between(step, evaluation(0.61, 0.7))
        easy = group("toy-easy", (RIGHT, RIGHT, WRONG))
        hard = group("toy-hard", (WRONG, UNREAD, FAILED, WRONG), texts=[NASTY, "", "x" * 5000, "6"])
        log.write(step, metrics(step), [easy, hard], [batch([easy, hard])])
    log.write_between(steps, evaluation(0.58, 0.66))
    return folder
