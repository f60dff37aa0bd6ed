"""What samplers, allocators, rounds and cuts spend where the policy does not change: docs/budget.md.

    python benchmarks/budget_signal.py

No model: the rollouts of a prompt are drawn from the 32 that configs/policies/mixture_qwen2 has sampled for it, which
are in configs/claims/mixture/rollouts.jsonl with lengths and verdicts. A third of the 48 prompts has no correct one, a
third only correct ones. Members, history and plan are those of a run, so that each candidate plans from what it has
sampled. The candidates are those of configs/sweeps/budget_screen.toml and budget_cuts.toml. Gradient norms are not
measured (each counts as 1), as there is no gradient.

The measure is the number of rollouts with a signal: trained ones whose kept group has both kinds of verdicts. Their
`information` is the sum of p (1 - p) over them, with the pass rate p of the bank. Log-probs are not in the bank, so
`unlikely` is omitted. Writes benchmarks/results/<date>_budget_signal.json.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import frame
import numpy as np

from winnow.algos.intervals import over_seeds
from winnow.algos.selectors import keep_verified
from winnow.budget.cuts import SampledRound
from winnow.budget.pass_rates import brier_score
from winnow.budget.rounds import Counts
from winnow.config_file import validate
from winnow.core.draw import PromptPool, draw, make_history
from winnow.core.members import Members
from winnow.core.plan import allocate
from winnow.records import Group, IntArray, Outcome, Prompt, Rollout
from winnow.rewards.outcomes import cut
from winnow.seeds import Rng, generator
from winnow.training.resolve import resolve_members

ROOT = frame.HERE.parent
BANK = ROOT / "configs/claims/mixture/rollouts.jsonl"
SWEEPS = ("budget_screen", "budget_cuts")


@dataclass
class Bank:
    """The recorded rollouts of each prompt, by its id."""

    lengths: dict[str, IntArray] = field(default_factory=dict)
    correct: dict[str, IntArray] = field(default_factory=dict)

    def groups(self, prompts: Sequence[Prompt], counts: IntArray, rng: np.random.Generator) -> list[Group]:
        return [self._group(prompt, int(count), rng) for prompt, count in zip(prompts, counts, strict=True)]

    def _group(self, prompt: Prompt, count: int, rng: np.random.Generator) -> Group:
        places = rng.integers(0, len(self.lengths[prompt.id]), count)
        lengths, correct = self.lengths[prompt.id][places], self.correct[prompt.id][places]
        return Group(
            prompt=prompt,
            rollouts=tuple(_rollout(index, length) for index, length in enumerate(lengths.tolist())),
            outcomes=tuple(_outcome(bool(right)) for right in correct.tolist()),
        )


def main() -> None:
    parser = frame.parser(__doc__, steps=60, seeds=10)
    options = frame.parse(parser)
    prompts, bank = read_bank()
    report = {label: measured(keys, prompts, bank, options) for label, keys in candidates().items()}
    for label, numbers in report.items():
        print(label, {name: value["mean"] for name, value in numbers.items() if value is not None})
    frame.finish("budget_signal", {"candidates": report}, options)


def candidates() -> dict[str, dict[str, Any]]:
    """Label -> keys, of both sweeps."""
    found: dict[str, dict[str, Any]] = {}
    for sweep in SWEEPS:
        found |= tomllib.loads((ROOT / f"configs/sweeps/{sweep}.toml").read_text())["variants"]
    return {label: nested(keys) for label, keys in found.items() if label != "unlikely"}


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as tables."""
    table: dict[str, Any] = {}
    for name, value in keys.items():
        *sections, last = name.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return table


def read_bank() -> tuple[list[Prompt], Bank]:
    prompts, bank = list[Prompt](), Bank()
    for line in BANK.read_text().splitlines():
        row = json.loads(line)
        meta = {"level": row["level"]}
        prompts.append(Prompt(id=row["id"], tokens=np.array([1]), text="", answer="", task="jsonl", meta=meta))
        bank.lengths[row["id"]] = np.array(row["lengths"])
        bank.correct[row["id"]] = np.array(row["correct"])
    return prompts, bank


def measured(
    keys: Mapping[str, Any], prompts: Sequence[Prompt], bank: Bank, options: argparse.Namespace
) -> dict[str, Any]:
    """Means per step over seeds, with 95% intervals; None where a candidate has no such number."""
    runs = [one_run(keys, prompts, bank, seed, options.steps) for seed in range(options.seeds)]
    return {name: _over_seeds(np.array([run[name] for run in runs])) for name in runs[0]}


def _over_seeds(values: np.ndarray) -> dict[str, float] | None:
    if np.isnan(values).any():
        return None
    low, high = over_seeds(values)
    return {name: float(f"{x:.5g}") for name, x in (("mean", values.mean()), ("low", low), ("high", high))}


def one_run(keys: Mapping[str, Any], prompts: Sequence[Prompt], bank: Bank, seed: int, steps: int) -> dict[str, float]:
    """Means over the steps of one run."""
    base = tomllib.loads((ROOT / "configs/claims/mixture.toml").read_text())
    rollout = {**base["rollout"], **keys.get("rollout", {})}
    laws = {name: base[name] for name in ("select", "advantage", "weighting")}
    config = validate({**laws, **keys, "rollout": {**rollout, "engine": "native"}, "seed": seed})
    members = resolve_members(config, base=ROOT)
    pool = PromptPool(prompts, per_step=config.rollout.prompts_per_step, seed=(seed, "prompts"))
    history, rows, probed = make_history(members, pool), [], 0.0
    for step in range(steps):
        rng = generator("budget signal", seed, step)
        if members.source == "probe":
            if step % config.probe.every == 0:
                window = range(step, min(step + config.probe.every, steps))
                draw(members, history, pool, window)
                drawn = [prompt for s in window for prompt in pool.take(history.drawn(s))]
                groups = bank.groups(drawn, np.full(len(drawn), config.probe.rollouts_per_prompt), rng)
                history.record_probe(groups)
                allocate(members, history, drawn, history.probed(drawn), steps=len(window))
                probed += _tokens(groups)
        else:
            draw(members, history, pool, range(step, step + 1))
            drawn = pool.take(history.drawn(step))
            allocate(members, history, drawn, history.stats(drawn), steps=1)
        rows.append(one_step(members, history, pool, bank, step, rng))
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "brier"}
    known = [row["brier"] for row in rows if not np.isnan(row["brier"])]
    means |= {"brier": float(np.mean(known)) if known else np.nan, "probe": probed / steps}
    tokens = means["tokens"] + means["probe"]
    per = {f"{name} per 1000 tokens": 1000 * means[name] / tokens for name in ("signal", "information")}
    shares = {"flat share": means["flat"] / means["groups"], "probe share": means["probe"] / tokens}
    return {**means, **shares, "flat token share": means["flat tokens"] / means["tokens"], **per}


def one_step(
    members: Members, history: Any, pool: PromptPool, bank: Bank, step: int, rng: np.random.Generator
) -> dict[str, float]:
    prompts = pool.take(history.drawn(step))
    counts, rates = history.plan(prompts, step), history.planned_pass_rates(prompts)
    groups = in_rounds(members, bank, prompts, counts, rng, spent=0)
    right = np.array([group.correct.sum() for group in groups], dtype=np.float64)
    brier = brier_score(rates, right, np.array([group.valid.sum() for group in groups], dtype=np.float64))
    planned, newest = len(groups), groups
    for number in range(1, members.config.rollout.dynamic_sampling_rounds + 1):
        further = pool.take(history.drawn(step, extra=number))
        if sum(_has_both(group) for group in groups) >= planned or not further:
            break
        each = np.full(len(further), members.config.rollout.rollouts_per_prompt)
        newest = in_rounds(members, bank, further, each, rng, spent=_tokens(groups))
        groups = [*groups, *newest]
    history.observe(groups)
    kept = [keep_verified(members.select, group, Rng((step, "select"))) for group in groups]
    trained = [
        int(keep.sum()) if len(set(g.rewards[keep].tolist())) > 1 else 0 for g, keep in zip(groups, kept, strict=True)
    ]
    rate = [float(bank.correct[group.prompt.id].mean()) for group in groups]
    return {
        "tokens": float(_tokens(groups)),
        "rollouts": float(sum(len(group.rollouts) for group in groups)),
        "groups": float(sum(bool(group.rollouts) for group in groups)),
        "flat": float(sum(bool(group.rollouts) and not _has_both(group) for group in groups)),
        "flat tokens": float(sum(int(group.lengths.sum()) for group in groups if not _has_both(group))),
        "signal": float(sum(trained)),
        "information": float(sum(n * p * (1 - p) for n, p in zip(trained, rate, strict=True))),
        "cut": float(sum(int((~group.valid).sum()) for group in groups)),
        "brier": brier,
    }


def in_rounds(
    members: Members, bank: Bank, prompts: Sequence[Prompt], counts: IntArray, rng: np.random.Generator, *, spent: int
) -> list[Group]:
    """As `winnow.core.sample.sample_in_rounds`, from the bank."""
    groups = [Group(prompt=prompt, rollouts=(), outcomes=()) for prompt in prompts]
    while True:
        sampled, valid, right = (
            np.array([of(group) for group in groups], dtype=np.int64)
            for of in (lambda g: len(g.rollouts), lambda g: g.valid.sum(), lambda g: g.correct.sum())
        )
        more = members.rounds(Counts(planned=counts, sampled=sampled, correct=right, wrong=valid - right))
        if not more.any():
            return groups
        added = cut_groups(members, bank.groups(prompts, more, rng), spent + _tokens(groups))
        groups = [
            Group(prompt=a.prompt, rollouts=(*a.rollouts, *b.rollouts), outcomes=(*a.outcomes, *b.outcomes))
            for a, b in zip(groups, added, strict=True)
        ]


def cut_groups(members: Members, groups: Sequence[Group], spent: int) -> Sequence[Group]:
    sizes = [len(group.rollouts) for group in groups]
    lengths = np.array([len(r.tokens) for group in groups for r in group.rollouts], dtype=np.int64)
    owners = np.repeat(np.arange(len(groups)), sizes)
    ends = members.cut(SampledRound(lengths=lengths, group=owners, spent=spent))
    outcomes = [outcome for group in groups for outcome in group.outcomes or ()]
    pairs = [
        (_rollout(0, end), outcome if end == length else cut())
        for end, length, outcome in zip(ends.tolist(), lengths.tolist(), outcomes, strict=True)
    ]
    of_group = iter(pairs)
    made = []
    for group, size in zip(groups, sizes, strict=True):
        mine = [next(of_group) for _ in range(size)]
        made.append(Group(prompt=group.prompt, rollouts=tuple(r for r, _ in mine), outcomes=tuple(o for _, o in mine)))
    return made


def _rollout(index: int, length: int) -> Rollout:
    tokens = np.zeros(length, dtype=np.int64)
    return Rollout(index=index, tokens=tokens, logprobs=np.zeros(length), text="", finish="stop", version=0)


def _outcome(right: bool) -> Outcome:
    return Outcome(reward=float(right), correct=right, kind="correct" if right else "wrong")


def _has_both(group: Group) -> bool:
    return len(set(group.rewards[group.valid].tolist())) > 1


def _tokens(groups: Sequence[Group]) -> int:
    return int(sum(group.lengths.sum() for group in groups))


if __name__ == "__main__":
    main()
