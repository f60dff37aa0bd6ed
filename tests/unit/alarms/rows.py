"""Rows of metrics of a healthy run, in which tests change one number at a time."""

from __future__ import annotations

import random

from winnow.alarms.watch import alarms_of_run


def row(step, **changes):
    """A healthy step of 32 groups of 16: 40% right, and updates are taken."""
    numbers = {
        "step": step, "reward/mean": 0.4, "reward/std": 0.49, "reward/min": 0.0, "reward/max": 1.0,
        "reward/accuracy": 0.4, "outcome/unparsable": 10, "outcome/failed": 0, "group/count": 32, "group/flat": 6,
        "group/all_correct": 3, "group/all_wrong": 3, "rollout/length_mean": 200.0, "rollout/truncated": 0.05,
        "advantage/mean": 0.0, "advantage/std": 0.9, "policy/entropy": 0.4, "policy/ratio_mean": 1.0,
        "policy/clip_fraction": 0.02, "policy/grad_norm": 0.3, "policy/learning_rate": 1e-6,
        "policy/parity_alarm": 0, "policy/not_finite_updates": 0, "select/trained": 400, "budget/rollouts": 512,
        "budget/updates": 1,
    }  # fmt: skip
    return {**numbers, **{name.replace("__", "/"): value for name, value in changes.items()}}


def run(steps, **changes):
    """Rows of so many steps. Each change is a value, or a function of the step; None removes the number."""
    rows = [
        row(step, **{name: value(step) if callable(value) else value for name, value in changes.items()})
        for step in range(steps)
    ]
    return [{name: value for name, value in one.items() if value is not None} for one in rows]


def learning(steps, *, start=0.3, end=0.6, seed=0, prompts=32, every=0):
    """A run that learns slowly, with the noise of `prompts` prompts of different difficulty."""
    noise = random.Random(seed)
    rows = []
    for step in range(steps):
        chance = start + (end - start) * step / max(steps - 1, 1)
        seen = sum(noise.random() < chance for _ in range(prompts)) / prompts  # each prompt's rollouts alike: the worst
        spread = (seen * (1 - seen)) ** 0.5
        one = row(step, reward__mean=seen, reward__accuracy=seen, reward__std=spread, group__count=prompts)
        one["policy/grad_norm"] = 0.3 * noise.lognormvariate(0, 0.4)
        one["rollout/length_mean"] = 200 * noise.lognormvariate(0, 0.15)
        if every and step % every == 0:
            one |= evaluation(chance, noise)
        rows.append(one)
    return rows


def evaluation(chance, noise, problems=256):
    right = sum(noise.random() < chance for _ in range(problems)) / problems
    return {"eval/accuracy_sampled": right, "eval/accuracy_sampled_sem": (right * (1 - right) / problems) ** 0.5}


def raised(rows, **limits):
    """{name: the steps at which it was raised}"""
    steps = {}
    for alarm in alarms_of_run(rows, {"alarms": limits}):
        steps.setdefault(alarm.name, []).append(alarm.step)
    return steps


def held_out_run():
    """100 steps, evaluated every fifth: training rises above held-out, most rollouts are cut off, then a drop."""
    rows = run(
        100,
        group__count=128,
        reward__accuracy=lambda step: min(1.0, 0.4 + 0.01 * step),
        reward__mean=lambda step: 0.9 if step < 90 else 0.1,
        rollout__truncated=lambda step: 0.9 if 30 <= step < 70 else 0.1,
    )
    for row in [*rows[::5], {"step": 100}]:
        row |= {"eval/accuracy_sampled": 0.4, "eval/accuracy_sampled_sem": 0.015}
    return rows
