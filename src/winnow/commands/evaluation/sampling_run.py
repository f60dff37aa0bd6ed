"""A model asked every problem of its questions, a part of the problems at a time.

A part is sampled in one request, so what comes of it depends on the part alone, not on what was interrupted before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from winnow.commands.evaluation.evaluation_folder import EvaluationFolder
from winnow.commands.evaluation.measured import Measured
from winnow.commands.evaluation.questions import Question
from winnow.config import Config, dump
from winnow.engines.base import Engine, make_engine
from winnow.errors import DataError
from winnow.models.device import resolve_device
from winnow.models.precision import set_deterministic, set_matrix_products
from winnow.records import Prompt, Rollout
from winnow.report.evaluation_progress import EvaluationProgress
from winnow.report.evaluations.rollout_lines import rows_of
from winnow.state.input_digests import digests
from winnow.state.log_rows import encode
from winnow.training.advice import unasked
from winnow.training.build import engine_context, load_model
from winnow.training.evaluation import answered, greedily
from winnow.training.first_prompt import FirstPrompt
from winnow.training.members import Members
from winnow.training.prompts import evaluation_sampling, held_out_problems, prompt_tokenizer, rendered
from winnow.training.resolve import check_installed, resolve_members
from winnow.verify import Verifiers
from winnow.version import __version__

PART = 4  # times rollout.max_rollouts_at_once are the rollouts of a part: few wait for the last one of a request


@dataclass(frozen=True)
class Prepared:
    """A question with its prompts; no weight is read."""

    name: str
    members: Members
    prompts: tuple[Prompt, ...]
    dropped: int  # problems whose prompt is longer than prompt.max_prompt_tokens
    warnings: tuple[str, ...]
    tokenizer: Any

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def per_problem(self) -> int:
        """Rollouts, the greedy one included."""
        return self.config.evaluate.rollouts_per_prompt + self.config.evaluate.greedy

    @property
    def parts(self) -> list[Sequence[Prompt]]:
        size = max(1, PART * self.config.rollout.max_rollouts_at_once // self.config.evaluate.rollouts_per_prompt)
        return [self.prompts[at : at + size] for at in range(0, len(self.prompts), size)]


def prepared(questions: Sequence[Question]) -> list[Prepared]:
    """Every member, problem and prompt. Raises ConfigError or DataError before any weight is read."""
    found, tokenizers = [], dict[str, Any]()
    for question in questions:
        members = resolve_members(question.config, question.base)
        config = members.config
        check_installed(members)
        problems = held_out_problems(members)
        tokenizer = prompt_tokenizer(config, tokenizers.get(config.model.path))
        tokenizers[config.model.path] = tokenizer
        held_out = rendered(members, problems, tokenizer)
        warnings = tuple(unasked(members, FirstPrompt.of(held_out.prompts[0], tokenizer, config)))
        asked = tuple(held_out.prompts)
        found.append(Prepared(question.name, members, asked, held_out.dropped, warnings, tokenizer))
    return found


def settings(asked: Sequence[Prepared]) -> dict[str, Any]:
    """What is asked of which model, as JSON: equal settings on one machine give equal files."""
    first = asked[0]
    config, base = first.config, first.members.base
    return {
        "model": digests(config, base, below="model.").get("model.path", {}),
        "tasks": {one.name: _task_settings(one) for one in asked},
        "machine": {
            "model": config.model.path,
            "winnow": __version__,
            "torch": torch.__version__,
            "threads": config.threads or torch.get_num_threads(),
            "device": str(resolve_device(config.device)),
        },
    }


def run(asked: Sequence[Prepared], folder: EvaluationFolder | None, progress: EvaluationProgress) -> Iterator[Measured]:
    """Load the model and ask, one task after the other; what the folder holds already is not asked again."""
    config = asked[0].config
    torch.set_num_threads(config.threads or torch.get_num_threads())
    set_matrix_products(tf32=config.model.tf32)
    device = resolve_device(config.device)
    set_deterministic(device, deterministic=config.deterministic)
    done = {one.name: _done(one, folder) for one in asked}
    for name, rows in done.items():
        progress.resumed(name, len(rows))
    engine: Engine | None = None
    with contextlib.ExitStack() as stack:
        for one in asked:
            if engine is None and any(len(done[each.name]) < _rows(each) for each in asked):
                progress.loading(config.model.path)
                engine = stack.enter_context(contextlib.closing(_engine(asked, device)))
            rows = [*done[one.name], *_rest(one, len(done[one.name]), engine, folder, progress)]
            config = _as_asked(one)
            yield Measured(name=one.name, config=config, rows=tuple(rows), dropped=one.dropped, warnings=one.warnings)


def rollouts(asked: Sequence[Prepared]) -> int:
    """Of all tasks, greedy ones included."""
    return sum(map(_rows, asked))


def _rest(
    one: Prepared, done: int, engine: Engine | None, folder: EvaluationFolder | None, progress: EvaluationProgress
) -> Iterator[dict[str, Any]]:
    """The rows of the parts behind the first `done` rows."""
    if done == _rows(one):
        return
    assert engine is not None
    config, behind, problems = one.config, 0, 0
    progress.asking(one.name)
    with Verifiers(one.members.reward, **config.verify.model_dump(), base=one.members.base) as verifiers:
        for part in one.parts:
            behind, problems = behind + len(part) * one.per_problem, problems + len(part)
            if behind <= done:
                continue
            rows = _asked(part, config, engine, verifiers, progress)
            if folder is not None:
                folder.append(one.name, rows)
            progress.part(problems, len(one.prompts))
            yield from rows


def _asked(
    part: Sequence[Prompt], config: Config, engine: Engine, verifiers: Verifiers, progress: EvaluationProgress
) -> list[dict[str, Any]]:
    """One part. Raises VerifierError when too many of its verdicts failed, which are then not written."""
    evaluate, sampling = config.evaluate, evaluation_sampling(config)

    def told(rollout: Rollout) -> None:
        progress.rollout(len(rollout.tokens))

    seed = (config.seed, "evaluate")
    sampled = answered(engine, verifiers, part, sampling, evaluate.rollouts_per_prompt, seed=seed, told=told)
    best = answered(engine, verifiers, part, greedily(sampling), 1, seed=seed, told=told) if evaluate.greedy else ()
    verifiers.check_evaluation([*sampled, *best])
    return [*rows_of("sampled", sampled), *rows_of("greedy", best)]


def _engine(asked: Sequence[Prepared], device: torch.device) -> Engine:
    """One engine for all tasks, which has room for the longest."""
    first = asked[0]
    loaded = load_model(first.config, device, None, first.tokenizer)
    longest = max(one.config.prompt.max_prompt_tokens + one.config.rollout.max_new_tokens for one in asked)
    context = dataclasses.replace(engine_context(first.config, loaded), context_tokens=longest)
    return make_engine(first.members.engine, context, name=first.config.rollout.engine.label)


def _done(one: Prepared, folder: EvaluationFolder | None) -> list[dict[str, Any]]:
    """The rows that the folder holds. Raises DataError where they are not of the rollouts that are asked for first."""
    if folder is None:
        return []
    rows = folder.complete_rows(one.name, [len(part) * one.per_problem for part in one.parts])
    found = [(row["mode"], row["prompt_id"], row["index"]) for row in rows]
    if found != list(itertools.islice(_identities(one), len(found))):
        raise DataError(
            f"{one.name}.jsonl contains other rollouts than this evaluation samples",
            remedy="remove it, then resume the evaluation to sample its task again",
            code="data.changed",
        )
    return rows


def _identities(one: Prepared) -> Iterator[tuple[str, str, int]]:
    """Of every rollout, in the order of the rows."""
    modes = {"sampled": one.config.evaluate.rollouts_per_prompt, "greedy": int(one.config.evaluate.greedy)}
    for part in one.parts:
        for mode, count in modes.items():
            yield from ((mode, prompt.id, index) for prompt in part for index in range(count))


def _rows(one: Prepared) -> int:
    return len(one.prompts) * one.per_problem


def _as_asked(one: Prepared) -> Config:
    """The configuration with the number of problems that there were."""
    evaluate = one.config.evaluate.model_copy(update={"problems": len(one.prompts) + one.dropped})
    return one.config.model_copy(update={"evaluate": evaluate})


def _task_settings(one: Prepared) -> dict[str, Any]:
    config = dump(_as_asked(one))
    del config["model"]["path"]
    files = digests(one.config, one.members.base, but="model.")  # which are hashed once, for all tasks
    counted = {"rows": _rows(one), "dropped": one.dropped}
    return {"config": config, "files": files, "prompts": _digest(one.prompts), **counted}


def _digest(prompts: Sequence[Prompt]) -> str:
    """Of all that a prompt is asked and judged by. Raises DataError for one whose answer or meta is no JSON."""
    whole = hashlib.sha256()
    for prompt in prompts:
        try:
            judged_by = encode([prompt.id, prompt.answer, prompt.meta])
        except TypeError as error:
            raise DataError(
                f"the problem {prompt.id!r} cannot be written as JSON: {error}",
                remedy="let the task yield plain texts, numbers, lists and tables",
                code="data.malformed",
            ) from error
        whole.update(judged_by + b"\0" + prompt.tokens.tobytes() + b"\0")
    return f"sha256:{whole.hexdigest()}"
