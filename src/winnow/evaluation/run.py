"""Sample and verify every problem of the tasks, one part of the problems at a time.

The sampled rollouts of a part are one request to the engine, and its greedy ones are another. The rollouts therefore
depend on the part alone, and not on earlier interruptions.
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

from winnow.config import Config, dump
from winnow.core.collect import Request
from winnow.core.evaluation import collect_rollouts
from winnow.core.members import Members
from winnow.core.run import evaluation_sampling
from winnow.engines.base import Engine, make_engine
from winnow.errors import DataError
from winnow.evaluation.folder import EvaluationFolder, rows_of
from winnow.evaluation.progress import EvaluationProgress
from winnow.evaluation.result import EvaluationResult
from winnow.evaluation.settings import EvaluationTask
from winnow.models.device import resolve_device, set_deterministic, set_matrix_products
from winnow.records import Prompt
from winnow.state.log import encode
from winnow.state.resume import digests
from winnow.tasks.dialogue import Dialogue
from winnow.training.advice import missing_answer_forms
from winnow.training.build import threads_of_rank, threads_set
from winnow.training.gold_check import check_form
from winnow.training.load import engine_context, load_model
from winnow.training.prompts import FirstPrompt, dialogue_of, prompt_tokenizer, render_lists, with_call_form
from winnow.training.resolve import check_installed, resolve_members
from winnow.training.turns import with_environment
from winnow.verify.verifiers import Verifiers
from winnow.version import __version__

# Most rollouts of a part, in multiples of rollout.max_rollouts_at_once. At the end of a request the engine is less
# than full, while the last rollouts finish; large parts make that a small share of the time.
PART = 4


@dataclass(frozen=True)
class PreparedTask:
    """A task with its members and rendered prompts; no weights are loaded."""

    name: str
    members: Members
    prompts: tuple[Prompt, ...]
    dropped: int  # problems whose prompt is longer than prompt.max_prompt_tokens
    warnings: tuple[str, ...]
    tokenizer: Any
    dialogue: Dialogue | None  # the form of an environment's turns

    @property
    def config(self) -> Config:
        return self.members.config

    @property
    def per_problem(self) -> int:
        """Number of rollouts per problem, including the greedy one."""
        return self.config.evaluate.rollouts_per_prompt + self.config.evaluate.greedy

    @property
    def parts(self) -> list[Sequence[Prompt]]:
        most = max(1, PART * self.config.rollout.max_rollouts_at_once // self.config.evaluate.rollouts_per_prompt)
        count = max(1, -(-len(self.prompts) // most))
        size = -(-len(self.prompts) // count)  # equal parts: in a last one of few problems, all verdicts may fail
        return [self.prompts[at : at + size] for at in range(0, len(self.prompts), size)]


def prepare(tasks: Sequence[EvaluationTask]) -> list[PreparedTask]:
    """Resolve members, read problems and render prompts. Raises ConfigError or DataError before weights are loaded."""
    prepared, tokenizers = [], dict[str, Any]()
    for task in tasks:
        members = resolve_members(task.config, task.base)
        config = members.config
        check_installed(members)
        problems = members.task(config.evaluate.split)[: config.evaluate.problems]
        check_form(members, problems)
        tokenizer = prompt_tokenizer(config, tokenizers.get(config.model.path))
        tokenizers[config.model.path] = tokenizer
        (held_out,) = render_lists(members, [problems], tokenizer)
        warnings = tuple(missing_answer_forms(members, FirstPrompt.of(held_out.prompts[0], tokenizer, config)))
        prompts = tuple(held_out.prompts)
        dialogue, fitted = dialogue_of(members, tokenizer, problems[0]), with_call_form(members, tokenizer)
        prepared.append(PreparedTask(task.name, fitted, prompts, held_out.dropped, warnings, tokenizer, dialogue))
    return prepared


def describe(tasks: Sequence[PreparedTask]) -> dict[str, Any]:
    """The settings of model, tasks and machine, as JSON. Equal settings on one machine give equal rollouts."""
    first = tasks[0]
    config, base = first.config, first.members.base
    return {
        "model": digests(config, base, below="model.").get("model.path", {}),
        "tasks": {one.name: _task_settings(one) for one in tasks},
        "machine": {
            "model": config.model.path,
            "winnow": __version__,
            "torch": torch.__version__,
            "threads": threads_of_rank(config.threads),
            "device": str(resolve_device(config.device)),
        },
    }


def evaluate_tasks(
    tasks: Sequence[PreparedTask], folder: EvaluationFolder | None, progress: EvaluationProgress
) -> Iterator[EvaluationResult]:
    """Load the model, and evaluate one task after the other. Rollouts that the folder contains are not sampled again.

    If the folder contains all of them, the model is not loaded.
    """
    config = tasks[0].config
    set_matrix_products(tf32=config.model.tf32)
    device = resolve_device(config.device)
    set_deterministic(device, deterministic=config.deterministic)
    done = {one.name: _saved_rows(one, folder) for one in tasks}
    for name, rows in done.items():
        progress.resumed(name, len(rows))
    engine: Engine | None = None
    with threads_set(config.threads), contextlib.ExitStack() as stack:
        for one in tasks:
            if engine is None and any(len(done[each.name]) < _row_count(each) for each in tasks):
                progress.loading(config.model.path)
                engine = stack.enter_context(contextlib.closing(_load_engine(tasks, device)))
            rows = [*done[one.name], *_remaining_rows(one, len(done[one.name]), engine, folder, progress)]
            config = _with_problem_count(one)
            yield EvaluationResult(
                name=one.name, config=config, rows=tuple(rows), dropped=one.dropped, warnings=one.warnings
            )


def count_rollouts(tasks: Sequence[PreparedTask]) -> int:
    """Number of rollouts of all tasks, including greedy ones."""
    return sum(map(_row_count, tasks))


def _remaining_rows(
    one: PreparedTask, done: int, engine: Engine | None, folder: EvaluationFolder | None, progress: EvaluationProgress
) -> Iterator[dict[str, Any]]:
    """Sample, verify and save the parts after the first `done` rows."""
    if done == _row_count(one):
        return
    assert engine is not None
    config, end, problems = one.config, 0, 0  # end: rows up to the end of the part
    progress.start_task(one.name)
    with Verifiers(one.members.reward, **config.verify.model_dump(), base=one.members.base) as verifiers:
        playing = with_environment(engine, verifiers, config, one.dialogue)
        for part in one.parts:
            end, problems = end + len(part) * one.per_problem, problems + len(part)
            if end <= done:
                continue
            rows = _sample_part(part, config, playing, verifiers, progress)
            if folder is not None:
                folder.append(one.name, rows)
            progress.part(problems, len(one.prompts))
            yield from rows


def _sample_part(
    part: Sequence[Prompt], config: Config, engine: Engine, verifiers: Verifiers, progress: EvaluationProgress
) -> list[dict[str, Any]]:
    """The rows of one part. Raises VerifierError if too many of its verdicts failed; nothing of it is then written."""
    request = Request(
        part,
        [config.evaluate.rollouts_per_prompt] * len(part),
        evaluation_sampling(config),
        seed=(config.seed, "evaluate"),
        on_rollout=lambda rollout: progress.rollout(rollout.length),
    )
    sampled, greedy = collect_rollouts(engine, verifiers, request, greedy=config.evaluate.greedy)
    return [*rows_of("sampled", sampled), *rows_of("greedy", greedy)]


def _load_engine(tasks: Sequence[PreparedTask], device: torch.device) -> Engine:
    """One engine for all tasks, with the context length of the longest."""
    first = tasks[0]
    loaded = load_model(first.config, device, None, first.tokenizer)
    longest = max(one.config.prompt.max_prompt_tokens + one.config.rollout.max_new_tokens for one in tasks)
    context = dataclasses.replace(engine_context(first.config, loaded), context_tokens=longest)
    return make_engine(first.members.engine, context, name=first.config.rollout.engine.label)


def _saved_rows(one: PreparedTask, folder: EvaluationFolder | None) -> list[dict[str, Any]]:
    """The rows that the folder contains. Raises DataError if they are not the first rows of this evaluation."""
    if folder is None:
        return []
    rows = folder.complete_rows(one.name, [len(part) * one.per_problem for part in one.parts])
    saved = [(row["mode"], row["prompt_id"], row["index"]) for row in rows]
    if saved != list(itertools.islice(_identities(one), len(saved))):
        raise DataError(
            f"{one.name}.jsonl contains other rollouts than this evaluation samples",
            remedy="remove it, then resume the evaluation to sample its task again",
            code="data.changed",
        )
    return rows


def _identities(one: PreparedTask) -> Iterator[tuple[str, str, int]]:
    """(mode, prompt id, index) of every rollout, in the order of the rows."""
    modes = {"sampled": one.config.evaluate.rollouts_per_prompt, "greedy": int(one.config.evaluate.greedy)}
    for part in one.parts:
        for mode, count in modes.items():
            yield from ((mode, prompt.id, index) for prompt in part for index in range(count))


def _row_count(one: PreparedTask) -> int:
    return len(one.prompts) * one.per_problem


def _with_problem_count(one: PreparedTask) -> Config:
    """The configuration with the actual number of problems, which may be smaller than the configured one."""
    evaluate = one.config.evaluate.model_copy(update={"problems": len(one.prompts) + one.dropped})
    return one.config.model_copy(update={"evaluate": evaluate})


def _task_settings(one: PreparedTask) -> dict[str, Any]:
    config = dump(_with_problem_count(one))
    del config["model"]["path"]
    for key in ("steps", "max_hours", "output", "checkpoint", "log", "alarms"):  # a run may change them meanwhile
        del config[key]
    files = digests(one.config, one.members.base, but="model.")  # the model is hashed once, for all tasks
    counts = {"rows": _row_count(one), "dropped": one.dropped}
    return {"config": config, "files": files, "prompts": _digest(one.prompts), **counts}


def _digest(prompts: Sequence[Prompt]) -> str:
    """A digest of the prompts' tokens, ids, answers and meta. Raises DataError if answer or meta is not JSON."""
    whole = hashlib.sha256()
    for prompt in prompts:
        try:
            reference = encode([prompt.id, prompt.answer, prompt.meta])
        except TypeError as error:
            raise DataError(
                f"the problem {prompt.id!r} cannot be written as JSON: {error}",
                remedy="let the task yield plain texts, numbers, lists and tables",
                code="data.malformed",
            ) from error
        whole.update(reference + b"\0" + prompt.tokens.tobytes() + b"\0")
    return f"sha256:{whole.hexdigest()}"
