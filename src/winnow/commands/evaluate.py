"""A model folder against a task: the prompts, engine and verifiers of training, and no learner."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from winnow.algos.estimators import pass_at_k
from winnow.commands.run_settings import settings_for
from winnow.config import Config, EvaluateSection, Member, dump
from winnow.config_file import merge
from winnow.engines.base import make_engine
from winnow.errors import ConfigError
from winnow.families import FAMILIES
from winnow.models.device import resolve_device
from winnow.models.precision import set_deterministic, set_matrix_products
from winnow.records import Group, Kind, Outcome, Prompt, Rollout
from winnow.registry import resolve
from winnow.report.text import accuracies, duration, percent, quoted, safe
from winnow.state.log_rows import encode
from winnow.training.advice import unasked
from winnow.training.build import engine_context, load_model
from winnow.training.evaluation import Evaluation, evaluate
from winnow.training.first_prompt import FirstPrompt
from winnow.training.prompts import evaluation_sampling, held_out_problems, prompt_tokenizer, rendered
from winnow.training.resolve import check_installed, resolve_members
from winnow.verify import Verifiers
from winnow.version import __version__

EXAMPLES = 5
SAMPLING = ("top_p", "top_k", "min_p")  # of `evaluate`, said where they are not at their defaults
KINDS: dict[Kind, str] = {
    "correct": "correct",
    "wrong": "readable but wrong",
    "unparsable": "no readable answer",
    "failed": "verifier failed",
}


@dataclass(frozen=True, kw_only=True)
class Measured(Evaluation):
    """A model on a task: what was asked, how, and what came of it."""

    config: Config
    dropped: int  # problems whose prompt is longer than prompt.max_prompt_tokens
    warnings: tuple[str, ...] = ()  # why the numbers may say little of the model

    def asked(self) -> dict[str, Any]:
        """What the numbers are of, as JSON."""
        config, sampling = self.config, evaluation_sampling(self.config)
        return {
            "model": config.model.path,
            "task": config.task.label,
            "task_options": {name: str(value) for name, value in config.task.options.items()},
            "split": config.evaluate.split,
            "problems": len(self.sampled),
            "dropped": self.dropped,
            "rollouts_per_prompt": config.evaluate.rollouts_per_prompt,
            "greedy": config.evaluate.greedy,
            **config.prompt.model_dump(exclude={"max_prompt_tokens"}),
            "reward": _reward(config),
            "temperature": sampling.temperature,
            **{name: getattr(sampling, name) for name in SAMPLING},
            "max_new_tokens": sampling.max_new_tokens,
            "engine": config.rollout.engine.label,
            "seed": config.seed,
        }


EVALUATE = ("problems", "rollouts_per_prompt", "greedy", "split", "temperature")


def evaluated(
    model: str,
    config: Path | None = None,
    *,
    sets: Sequence[str] = (),
    trust_run: bool = False,
    **keys: Any,
) -> Measured:
    """`winnow eval` and `winnow.evaluate`: find the settings (see `settings_for`), check them, evaluate.

    `keys` are those of a configuration, and of its table `evaluate` by their own names; None leaves one out.
    """
    given = {name: value for name, value in keys.items() if value is not None}
    inner = {name: given.pop(name) for name in EVALUATE if name in given}
    merge(given, {"evaluate": inner})
    settings, base = settings_for(model, config, given, sets, trust_run=trust_run)
    if config is None:
        check_found(settings, base)
    return evaluate_model(settings, base)


def evaluate_model(config: Config, base: Path) -> Measured:
    """Evaluate `config.model.path` on `config.evaluate.split`, as a training run with this configuration would.

    Raises ConfigError or DataError before any weight is read.
    """
    members = resolve_members(config, base)
    config = members.config
    torch.set_num_threads(config.threads or torch.get_num_threads())
    set_matrix_products(tf32=config.model.tf32)
    device = resolve_device(config.device)
    set_deterministic(device, deterministic=config.deterministic)
    check_installed(members)
    problems, tokenizer = held_out_problems(members), prompt_tokenizer(config)
    held_out = rendered(members, problems, tokenizer)
    loaded = load_model(config, device, None, tokenizer)
    with contextlib.ExitStack() as stack:
        verifiers = stack.enter_context(Verifiers(members.reward, **config.verify.model_dump(), base=base))
        engine = make_engine(members.engine, engine_context(config, loaded), name=config.rollout.engine.label)
        stack.callback(engine.close)
        found = evaluate(
            engine,
            verifiers,
            held_out.prompts,
            evaluation_sampling(config),
            rollouts_per_prompt=config.evaluate.rollouts_per_prompt,
            greedy=config.evaluate.greedy,
            seed=(config.seed, "evaluate"),
        )
    asked = config.evaluate.model_copy(update={"problems": len(held_out.prompts) + held_out.dropped})
    return Measured(
        metrics=found.metrics,
        sampled=found.sampled,
        greedy=found.greedy,
        config=config.model_copy(update={"evaluate": asked}),
        dropped=held_out.dropped,
        warnings=tuple(unasked(members, FirstPrompt.of(held_out.prompts[0], loaded.tokenizer, config))),
    )


def headline(measured: Measured) -> str:
    """What was measured, and the numbers, in a few lines."""
    m = measured.metrics
    passes = ", ".join(f"@{k} {percent(share)}" for k, share in pass_at(measured).items())
    lines = [
        *_asked(measured),
        f"accuracy   {accuracies(m)}",
        *([f"pass       {passes}"] if passes else []),
        f"length     {m['eval/length_mean']:.1f} tokens on average, {percent(m['eval/truncated'])} cut off",
        f"sampled    {_shares(measured.sampled)}",
        *([f"greedy     {_shares(measured.greedy)}"] if measured.greedy else []),
        f"time       {duration(m['eval/seconds'])}",
    ]
    return "\n".join(lines)


def _asked(measured: Measured) -> Iterator[str]:
    a = measured.asked()
    greedy = ", and once greedily" if a["greedy"] else ""
    yield safe(f"model      {a['model']}")
    options = ", ".join(f"{name} = {value}" for name, value in a["task_options"].items())
    named = f"{a['task']} ({options})" if options else a["task"]
    yield safe(f"task       {named}, {a['problems']:,} {a['split']} problems, x {a['rollouts_per_prompt']}{greedy}")
    if measured.dropped:
        yield (
            f"dropped    {measured.dropped:,} more, whose prompts are longer than prompt.max_prompt_tokens = "
            f"{measured.config.prompt.max_prompt_tokens}"
        )
    cut = "".join(f", {name} {a[name]:g}" for name in SAMPLING if a[name] != EvaluateSection.model_fields[name].default)
    yield safe(f"prompts    template {a['template']}, at most {a['max_new_tokens']} new tokens")
    yield safe(f"reward     {a['reward']}")
    yield f"sampling   temperature {a['temperature']:g}{cut}, engine {a['engine']}, seed {a['seed']}"
    yield from (safe(f"warning    {text}") for text in measured.warnings)


def _reward(config: Config) -> str:
    """A name, or a sum: "r1_zero + 0.5 format"."""
    reward = config.reward
    if reward.use is not None:
        return Member(use=reward.use).label
    return " + ".join(f"{'' if part.weight == 1 else f'{part.weight:g} '}{part.label}" for part in reward.parts)


def analysis(measured: Measured) -> str:
    """The headline, then up to five rollouts of each kind, of different problems as far as there are enough."""
    return "\n".join([headline(measured), "", *_examples(measured.sampled)])


def check_found(config: Config, base: Path) -> None:
    """Are a run's task, reward and engine still to be found? Those given from Python left only a name.

    Raises ConfigError.
    """
    rewards = [part.use for part in config.reward.parts] if config.reward.use is None else [config.reward.use]
    named = [("task", config.task.use), ("engine", config.rollout.engine.use), *(("reward", use) for use in rewards)]
    for family, use in named:
        if (family, use) == ("engine", "auto"):
            continue
        try:
            resolve(family, use, base=base)
        except ConfigError as error:
            key = FAMILIES[family].key
            raise ConfigError(
                f"{key}: {error}. If that of the run was a function given from Python, only its name was saved: name "
                f'it anew, {key} = "file.py:function", or give a configuration'
            ) from error


def write(measured: Measured, output: Path) -> None:
    """Every rollout as a line of JSON, and the analysis as text beside it."""
    modes = (("sampled", measured.sampled), ("greedy", measured.greedy))
    rows = (_row(mode, *judged) for mode, groups in modes for judged in _judged(groups))
    output.write_bytes(b"".join(encode(row) + b"\n" for row in rows))
    beside(output, ".txt").write_text(analysis(measured) + "\n", encoding="utf-8")


def write_metrics(measured: Measured, output: Path) -> None:
    """What was measured, its metrics (null where there is no number), and the whole configuration, as JSON."""
    metrics = {name: value if math.isfinite(value) else None for name, value in measured.metrics.items()}
    found = {
        **measured.asked(),
        "metrics": metrics,
        "pass_at": pass_at(measured),
        "winnow": __version__,
        "config": dump(measured.config),
    }
    output.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="ascii")


def beside(output: Path, suffix: str) -> Path:
    """Where the text report (.txt) and the metrics (.json) of a file of rollouts go, whatever that file is called."""
    return output.with_name(f"{output.name}{suffix}") if output.suffix == suffix else output.with_suffix(suffix)


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


def pass_at(evaluation: Evaluation) -> dict[int, float]:
    """pass@1, 2, 4, ... up to the rollouts of a problem, over the problems that have that many verdicts."""
    groups = evaluation.sampled
    correct = np.array([group.correct.sum() for group in groups], dtype=np.int64)
    verified = np.array([group.valid.sum() for group in groups], dtype=np.int64)
    sizes = itertools.takewhile(lambda k: k <= verified.max(initial=0), (2**i for i in itertools.count()))
    return {k: float(np.nanmean(pass_at_k(correct, verified, k))) for k in sizes}


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
            f"{safe(prompt.id)} #{rollout.index}",
            quoted(prompt.text, limit=None, indent="  "),
            quoted(rollout.text, limit=None, indent="    "),
            f"    answer read: {read}; gold: {safe(str(prompt.answer))}"
            + (f"; {safe(outcome.detail)}" if outcome.detail else ""),
            "",
        ]
    )
