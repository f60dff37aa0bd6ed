"""A model folder against a task: the prompts, engine and verifiers of training, and no learner."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from winnow.algos.estimators import pass_at_k
from winnow.build import close_engine, engine_context, evaluation_sampling, held_out_prompts, load_model
from winnow.config import Config
from winnow.errors import ConfigError
from winnow.evaluate import Evaluation, evaluate
from winnow.learner.device import resolve_device
from winnow.members import check_installed, resolve_members
from winnow.records import Group, Kind, Outcome, Prompt, Rollout
from winnow.registry import resolve
from winnow.report.text import accuracies, duration, percent, quoted, safe
from winnow.verify import Verifiers

EXAMPLES = 5
KINDS: dict[Kind, str] = {
    "correct": "correct",
    "wrong": "readable but wrong",
    "unparsable": "no readable answer",
    "failed": "verifier failed",
}


def evaluate_model(config: Config, base: Path) -> Evaluation:
    """Evaluate `config.model.path` on `config.evaluate.split`, as a training run with this configuration would.

    Raises ConfigError or DataError before any weight is read.
    """
    members = resolve_members(config, base)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    check_installed(members)
    prompts = held_out_prompts(members).prompts
    loaded = load_model(config, resolve_device(config.device), None)
    with contextlib.ExitStack() as stack:
        verifiers = stack.enter_context(Verifiers(members.reward, **config.verify.model_dump(), base=base))
        engine = members.engine(engine_context(config, loaded))
        stack.callback(close_engine, engine)
        return evaluate(
            engine,
            verifiers,
            prompts,
            evaluation_sampling(config),
            rollouts_per_prompt=config.evaluate.rollouts_per_prompt,
            greedy=config.evaluate.greedy,
            seed=(config.seed, "evaluate"),
        )


def headline(evaluation: Evaluation) -> str:
    """The numbers, in a few lines."""
    m = evaluation.metrics
    lines = [
        f"accuracy   {accuracies(m)}",
        *_pass_at(evaluation.sampled),
        f"length     {m['eval/length_mean']:.1f} tokens on average, {percent(m['eval/truncated'])} cut off",
        f"sampled    {_shares(evaluation.sampled)}",
        *([f"greedy     {_shares(evaluation.greedy)}"] if evaluation.greedy else []),
        f"time       {duration(m['eval/seconds'])}",
    ]
    return "\n".join(lines)


def analysis(evaluation: Evaluation) -> str:
    """The headline, then up to five rollouts of each kind, of different problems as far as there are enough."""
    return "\n".join([headline(evaluation), "", *_examples(evaluation.sampled)])


def check_reward(config: Config, base: Path) -> None:
    """Is the reward of a run still to be found? One given from Python left only its name. Raises ConfigError."""
    used = [part.use for part in config.reward.parts] if config.reward.use is None else [config.reward.use]
    for use in used:
        try:
            resolve("reward", use, base=base)
        except ConfigError as error:
            raise ConfigError(
                f"reward: {error}. If the run's reward was a function given from Python, only its name was saved: "
                f"name it with --set reward.use=file.py:function, or with a configuration (--config)"
            ) from error


def write(evaluation: Evaluation, output: Path) -> None:
    """Every rollout as a line of JSON, and the analysis as text beside it."""
    modes = (("sampled", evaluation.sampled), ("greedy", evaluation.greedy))
    rows = (_row(mode, *judged) for mode, groups in modes for judged in _judged(groups))
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
    report_path(output).write_text(analysis(evaluation) + "\n", encoding="utf-8")


def report_path(output: Path) -> Path:
    """Where the text report of a JSONL file goes, whatever that file is called."""
    return output.with_name(f"{output.name}.txt") if output.suffix == ".txt" else output.with_suffix(".txt")


def _judged(groups: Sequence[Group]) -> Iterator[tuple[Prompt, Rollout, Outcome]]:
    for group in groups:
        for rollout, outcome in zip(group.rollouts, group.outcomes or (), strict=True):
            yield group.prompt, rollout, outcome


def _row(mode: str, prompt: Prompt, rollout: Rollout, outcome: Outcome) -> dict[str, Any]:
    return {
        "mode": mode,
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "answer": prompt.answer,
        "task": prompt.task,
        "meta": prompt.meta,
        "index": rollout.index,
        "text": rollout.text,
        "length": len(rollout.tokens),
        "finish": rollout.finish,
        "kind": outcome.kind,
        "correct": outcome.correct,
        "reward": None if math.isnan(outcome.reward) else outcome.reward,
        "parts": outcome.parts,
        "answer_read": outcome.answer,
        "cause": outcome.cause,
        "detail": outcome.detail,
    }


def _pass_at(groups: Sequence[Group]) -> list[str]:
    """pass@1, 2, 4, ... up to the rollouts of a problem, over the problems that have that many verdicts."""
    correct = np.array([group.correct.sum() for group in groups], dtype=np.int64)
    verified = np.array([group.valid.sum() for group in groups], dtype=np.int64)
    sizes = itertools.takewhile(lambda k: k <= verified.max(initial=0), (2**i for i in itertools.count()))
    shown = [f"@{k} {percent(float(np.nanmean(pass_at_k(correct, verified, k))))}" for k in sizes]
    return [f"pass       {', '.join(shown)}"] if shown else []


def _shares(groups: Sequence[Group]) -> str:
    """Of all rollouts: the kinds that occur, in a fixed order."""
    kinds = Counter(outcome.kind for _, _, outcome in _judged(groups))
    return ", ".join(
        f"{label} {kinds[kind]} ({percent(kinds[kind] / kinds.total())})"
        for kind, label in KINDS.items()
        if kinds[kind] or kind != "failed"
    )


def _examples(groups: Sequence[Group]) -> Iterator[str]:
    by_index = sorted(
        _judged(groups), key=lambda judged: judged[1].index
    )  # stable: first rollouts of all problems first
    for kind, label in KINDS.items():
        found = [judged for judged in by_index if judged[2].kind == kind][:EXAMPLES]
        if found:
            yield f"== {label} =="
            yield from (_example(*judged) for judged in found)


def _example(prompt: Prompt, rollout: Rollout, outcome: Outcome) -> str:
    read = "nothing" if outcome.answer is None else safe(outcome.answer)
    return "\n".join(
        [
            f"{prompt.id} #{rollout.index}",
            quoted(prompt.text, limit=None, indent="  "),
            quoted(rollout.text, limit=None, indent="    "),
            f"    answer read: {read}; gold: {safe(str(prompt.answer))}"
            + (f"; {safe(outcome.detail)}" if outcome.detail else ""),
            "",
        ]
    )
