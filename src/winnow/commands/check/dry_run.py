"""The checks that `train` makes before it reads a weight, and their report: prompt, costs, memory, advice."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from winnow import ranks as this_process
from winnow.config import Config, ModelCritic, Section, TrainedCritic, policy_steps, trained_tokens
from winnow.config_keys import changed_lines, format_toml
from winnow.core.draw import PromptPool, make_history
from winnow.core.members import Members
from winnow.core.size_plan import bounds_of, largest
from winnow.errors import ConfigError, DataError, WinnowError
from winnow.installed import is_installed
from winnow.memory.demand import Demand
from winnow.memory.plan import FreeBytes, MemoryPlan, assume_free, format_bytes, free_on_device
from winnow.models.device import planned_device
from winnow.models.folder import (
    cached_folder,
    is_hub_id,
    published_files,
    relabel_errors,
    settings_folder,
    weight_files,
)
from winnow.models.load import has_tokenizer
from winnow.models.products import measure_products
from winnow.state.cost_files import read_costs
from winnow.tasks.source import FORMS, no_hub_library
from winnow.training.advice import about_prompts, advice, missing_answer_forms, precision_on_cpu
from winnow.training.budget import Budget, budget, demand_of, log_probs_needed, plan_demand
from winnow.training.critic_checks import check_start, check_value_model
from winnow.training.gold_check import check_golds
from winnow.training.prompts import FirstPrompt, evaluated_problems, run_prompts
from winnow.training.resolve import check_installed, resolve_file
from winnow.verify.verifiers import Verifiers
from winnow.view.text import format_count, format_percent, parse_bytes, quote, sanitize, wrap

if TYPE_CHECKING:
    from winnow.commands.check.proof import Pass, Proof, ProvedPart

_NEITHER = "neither as a folder nor in the hub's cache"
NAMES, NUMBERS = 28, 12  # widths of the columns of a proof
SAME = 0.05  # a plan is confirmed within this share of what was tracked
SHOWN = 3000  # characters of the first prompt


@dataclass(frozen=True)
class DryRun:
    """The result of the checks."""

    prompts: _Prompts
    plan: MemoryPlan | None  # None where the model's settings are not on this machine
    demand: Demand | None  # what the plan is for
    room: FreeBytes  # the free memory for which the plan is checked
    notes: tuple[str, ...]  # one sentence for each check that needs the network


def dry_run(members: Members, *, memory: int | None = None, ranks: int = 1) -> DryRun:
    """Load the problems, render the prompts of both splits, and plan the devices of `ranks` processes. A model of the
    hub is read from its cache only. `memory` is the bytes of the policy's device on another machine than this one.

    Raises ConfigError or DataError as a run would. A plan that does not fit raises only in `plan.check`.
    """
    if (costs := members.config.plan.costs) is not None:
        read_costs(Path(os.path.expanduser(costs)))
    path, critic, data = members.config.model.path, members.config.critic, _hub_data(members)
    folder = _folder(path)
    readable = folder is not None and (not is_hub_id(path) or has_tokenizer(folder))
    critic_path = critic.path if isinstance(critic, ModelCritic) else None
    critic_folder = folder if critic_path is None else _critic_folder(critic_path)
    device = planned_device(members.config.device)
    plan, demand = None, None
    members = _with_folders(members, folder, critic_folder)
    if data is not None:
        found = _Prompts()
    elif readable:
        found = _check_prompts(members, values=critic_folder is not None)
    else:
        members.task("train")
        found = _Prompts(evaluated=sum(map(len, evaluated_problems(members).values())))
    if folder is not None and critic_folder is not None:
        most = largest(members, problems=found.training, ranks=ranks)
        demand = demand_of(most, device, longest_prompt=found.longest, memory=memory, planned_ranks=ranks)
        plan = plan_demand(most, demand)
    notes = []
    if data is not None:
        notes.append(f"{data[0]} = {data[1]!r} is not on this machine, so no problem was checked")
    if not readable:
        what, also = ("the tokenizer of ", "") if folder else ("", " and no memory was planned")
        notes.append(f"{what}model.path = {path!r} is not on this machine, {_NEITHER}, so no prompt was rendered{also}")
    if critic_path is not None and critic_folder is None:
        notes.append(f"critic.path = {critic_path!r} is not on this machine, {_NEITHER}, so no memory was planned")
    room = free_on_device if memory is None else assume_free(memory, device.type)
    return DryRun(found, plan, demand, room, tuple(notes))


def _folder(path: str) -> Path | None:
    """The folder with a model's settings; None where the hub's cache does not contain the model."""
    folder = cached_folder(path) if is_hub_id(path) else settings_folder(path)
    if folder is not None:
        weight_files(folder)
        published_files(folder)
    return folder


def _critic_folder(path: str) -> Path | None:
    """The critic's model folder; None where it, or the tokenizer to compare with the policy's, is not here."""
    with relabel_errors("critic.path"):
        folder = _folder(path)
    return folder if folder is None or not is_hub_id(path) or has_tokenizer(folder) else None


def _with_folders(members: Members, folder: Path | None, critic_folder: Path | None) -> Members:
    """The same members, with hub ids of models replaced by folders of the hub's cache."""
    config, changed = members.config, dict[str, Section]()
    if folder is not None and is_hub_id(config.model.path):
        changed["model"] = config.model.model_copy(update={"path": str(folder)})
    critic = config.critic
    if isinstance(critic, ModelCritic) and critic_folder is not None and critic.path and is_hub_id(critic.path):
        changed["critic"] = critic.model_copy(update={"path": str(critic_folder)})
    return dataclasses.replace(members, config=config.model_copy(update=changed))


class _Prompts(NamedTuple):
    """What is known about the prompts of a run."""

    first: FirstPrompt | None = None  # None where no prompt could be rendered
    longest: int | None = None  # tokens
    training: float = math.inf  # problems of training, infinite where they are not on this machine
    evaluated: int | None = None  # problems of an evaluation; None where they are not known
    warnings: tuple[str, ...] = ()  # about prompts, and golds that the reward refuses


def _check_prompts(members: Members, *, values: bool) -> _Prompts:
    """What is known once the prompts are rendered. With `values`, also check the value model."""
    config = members.config
    prompts = run_prompts(members)
    training, tokenizer = prompts.training, prompts.tokenizer
    if config.critic is not None and values:
        check_value_model(config, tokenizer)
        check_start(config)
    # Made only for their checks: they refuse fewer prompts than a step needs, and prompts without a label.
    pool = PromptPool(training.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    make_history(members, pool)
    with Verifiers(members.reward, **config.verify.model_dump(), base=members.base) as verifiers:
        doubts = check_golds(members, prompts.sample, verifiers)
    return _Prompts(
        first=FirstPrompt.of(training.prompts[0], tokenizer, config),
        longest=prompts.longest,
        training=len(training.prompts),
        evaluated=sum(len(of.prompts) for of in prompts.held_out.values()),
        warnings=(*about_prompts(config, training, prompts.held_out), *doubts),
    )


def _hub_data(members: Members) -> tuple[str, str] | None:
    """The first of the task's keys, given or default, whose path is a hub id, and the id. None without one."""
    entry = members.task.entry  # winnow's tasks that read the hub have an id there as their default
    names = ("path", "test_path") if entry.package == "winnow" and entry.defaults.get("path") else ()
    paths = {f"task.{name}": members.task.options.get(name) for name in names}
    on_hub = (
        (key, path)
        for key, path in paths.items()
        if isinstance(path, str) and not path.endswith(FORMS) and _on_hub(path)
    )
    return next(on_hub, None)


def _on_hub(path: str) -> bool:
    """Whether a path has the form "owner/name", and neither it nor its parent folder exists here."""
    exists = Path(path).exists() or Path(path).parent.is_dir()
    return path.count("/") == 1 and path[0] not in "./~" and not path.endswith("/") and not exists


def first_prompt_lines(first: FirstPrompt) -> Iterator[str]:
    """The prompt as the policy reads it, behind a bar, and what ends its rollouts."""
    yield f"{'prompt':<13}{first.prompt.id}, {len(first.prompt.tokens)} tokens, as the policy reads it:"
    yield quote(first.prompt.text, limit=SHOWN, indent=" " * 13)
    strings = f", or as soon as the text ends in {' or '.join(map(repr, first.strings))}" if first.strings else ""
    yield f"{'stop':<13}at {' or '.join(first.stops)}{strings}"


def describe(config: Config, b: Budget, *, problems: float = math.inf, ranks: int = 1) -> Iterator[str]:
    """The budget as text, in the order of a step, for a number of training problems and of processes.

    Numbers are limits where every prompt gets the same number of rollouts; otherwise they are averages. Several updates
    divide the prompts by their tokens, and dynamic sampling adds prompts, so those of an update are then averages too.
    """
    uniform, refills = config.allocate.label == "uniform", config.rollout.dynamic_sampling_rounds > 0
    bounded = uniform and not refills and config.update.updates_per_step == 1
    yield from _about_probe(config, b)
    yield from _about_sizes(config, problems, ranks)
    yield _about_rollouts(config, b, uniform)
    bound = "at most" if uniform else "on average"
    bound += ", and fewer than twice as many with dynamic sampling" * refills
    yield f"kept         {b.kept} per prompt{_chunks(config)} = {b.prompts * b.kept} rows per step, {bound}"
    if trained_tokens(config) < config.rollout.max_new_tokens:
        first, most = trained_tokens(config), config.rollout.max_new_tokens
        yield f"trained      the first {first} tokens of a rollout, which may have {most}"
    yield from _about_values(config)
    yield _per_step(config, b, f"at most {b.rows} rows" if bounded else f"{b.rows} rows on average")
    yield (
        f"micro-batch  {config.update.tokens_per_micro_batch} tokens: {b.rows_at_once} rows of {b.longest_row} "
        f"(the longest), so {'at most' if bounded else 'about'} {b.micro_batches} per update"
    )
    hours = config.max_hours
    times = f"{'at most ' if config.evaluate.every_minutes else ''}{b.evaluations} times"
    ends = f", and stops after {hours:g} hours of training" if hours else ""
    training = f"{'at most ' if hours else ''}{b.rollouts * config.steps}"
    each = f"{b.problems} problem{'s' * (b.problems != 1)}, {b.evaluation} rollouts"
    yield f"evaluation   {each} x {times}; training samples {training}{ends}"


def _about_values(config: Config) -> Iterator[str]:
    """The rollouts for which a value model returns values, and the updates that train it."""
    critic = config.critic
    if critic is None:
        return
    if not isinstance(critic, TrainedCritic):
        how = ", trained in the policy's updates" if critic.policy_head == "trained" else ""
        yield f"values       of the kept rollouts, by {critic.description}{how}"
        return
    read = f"values       of {'all verified' if critic.train_on == 'all' else 'the kept'} rollouts, by"
    epochs, each, steps = critic.epochs, critic.epochs * critic.updates_per_step, critic.pretraining_steps
    alone = f"; in the first {'step' if steps == 1 else f'{steps} steps'} only it is trained" if steps else ""
    yield (
        f"{read} {critic.description}: {epochs} epoch{'s' * (epochs > 1)} x {critic.updates_per_step} = {each} per "
        f"step, before the policy's{alone}"
    )


def _chunks(config: Config) -> str:
    """What selectors with a chunk keep of each chunk: ", 32 of each 128"."""
    chunks = [(s.options.get("keep_per_prompt", "a number"), s.chunk) for s in config.select if s.chunk]
    return "".join(f", {keep} of each {chunk}" for keep, chunk in chunks)


def _about_probe(config: Config, b: Budget) -> Iterator[str]:
    if b.probe:
        probe, rollout = config.probe, config.rollout
        # The last window is probed whole, even if the run has fewer steps left.
        windows = math.ceil(config.steps / probe.every)
        share = windows * b.probe / (config.steps * b.rollouts)
        yield (
            f"probe        {b.prompts * probe.every} prompts x {probe.rollouts_per_prompt} = {b.probe} rollouts per "
            f"window of {probe.every} steps, {format_percent(share)} on top of the run's own; "
            f"up to {format_count(b.probe * rollout.max_new_tokens)} tokens"
        )


def _about_sizes(config: Config, problems: float, ranks: int) -> Iterator[str]:
    """What a run may choose that chooses its sizes itself."""
    if config.plan.use == "auto":
        bounds = bounds_of(config, problems=problems, ranks=ranks)
        (n, many), (m, most), (few, prompts) = bounds.rollouts, bounds.kept, bounds.prompts
        kept = "m = n" if bounds.keeps_all else f"m from {m} to {most}"
        yield (
            f"sizes        the run starts with those below, and chooses others every {config.plan.every} steps: "
            f"n from {n} to {many}, {kept}, {few} to {prompts} prompts; the memory is that of the largest"
        )


def _about_rollouts(config: Config, b: Budget, uniform: bool) -> str:
    rollout = config.rollout
    each = "" if uniform else f" on average, as {config.allocate.label} decides"
    rounds = rollout.dynamic_sampling_rounds
    plural = "s" * (rounds > 1)
    more = f", and at most as many again in each of {rounds} round{plural} of dynamic sampling" if rounds else ""
    return (
        f"rollouts     {b.prompts} prompts x {rollout.rollouts_per_prompt}{each} = {b.rollouts} per step{more}, "
        f"up to {format_count(b.rollouts * (1 + rounds) * rollout.max_new_tokens)} tokens"
    )


def _per_step(config: Config, b: Budget, rows: str) -> str:
    update = config.update
    prompts = round(b.prompts / update.updates_per_step, 1)
    return (
        f"updates      {update.epochs} epoch{'s' * (update.epochs > 1)} x {update.updates_per_step} = {b.updates} per "
        f"step, each {prompts:g} prompts and {rows}; {b.updates * policy_steps(config)} in the run"
    )


def check_lines(
    config: Path,
    sets: Sequence[str],
    memory: str | None,
    ranks: int = 1,
    *,
    unset: Sequence[str] = (),
    prove: float | None = None,
    whole: bool = False,
) -> Iterator[str]:
    """The report, line by line. It begins with the keys that are not at their defaults, or with all keys if `whole`.

    `memory` ("80GiB") is that of the policy's device on another machine than this one;
    `ranks` is the number of processes of the run, all on one machine. `prove` is the limit of a proof in seconds.

    Raises WinnowError if a run would. Last, it raises where a package is missing and where the run does not fit.
    With `memory`, a missing package is only a note, as the run is for another machine.
    """
    with this_process.assumed(ranks):
        members = resolve_file(config, sets, unset)
    settings = members.config
    result = dry_run(members, memory=None if memory is None else parse_bytes(memory), ranks=ranks)
    found, plan = result.prompts, result.plan
    counts, first = budget(members, found.evaluated), found.first
    yield from (format_toml(settings), "") if whole else (*keys_lines(settings), "")
    if first is not None:
        yield from map(sanitize, first_prompt_lines(first))
    yield from describe(settings, counts, problems=found.training, ranks=ranks)
    if plan is not None:
        yield from map(sanitize, plan.lines(result.room))
    if result.demand is not None and memory is None:
        yield from product_lines(result.demand)
    if prove is not None:
        yield from proof_lines(members, result.demand, prove)
    planned = precision_on_cpu(members, plan) if plan is not None else ()
    unfit = advice(members, counts, ranks)
    forms = missing_answer_forms(members, first) if first else ()
    for sentence in (*found.warnings, *forms, *unfit, *planned):
        yield wrap(f"! {sentence}")
    lacking = _lacking(members)
    elsewhere = () if lacking is None or memory is None else (f"on this machine: {lacking}",)
    yield from (wrap(f"note: {note}") for note in (*result.notes, *elsewhere))
    if lacking is not None and memory is None:
        raise lacking
    if plan is not None:
        plan.check(result.room)
    elif memory is not None:
        raise _no_plan(f"--memory {memory}: there is no plan to compare it with")


def _no_plan(problem: str) -> DataError:
    return DataError(
        f"{problem}, as the model is not on this machine",
        remedy="download the model (winnow fetch)",
        key="model.path",
        code="data.missing",
    )


def keys_lines(config: Config) -> Iterator[str]:
    """The keys that are not at their defaults, as TOML, and a comment on the rest."""
    changed, others = changed_lines(config)
    yield from changed
    yield f"# {others} keys are at their defaults: --all prints them, and `winnow list keys` has their meanings"


def product_lines(demand: Demand) -> Iterator[str]:
    """How fast this CPU multiplies in both precisions, in the shape of the policy's MLP; nothing for another device."""
    sizes = demand.model.config.get_text_config()
    width = getattr(sizes, "intermediate_size", None)
    if not str(demand.device).startswith("cpu") or not isinstance(width, int):
        return
    yield f"{'products':<13}{measure_products(sizes.hidden_size, width)}"


def proof_lines(members: Members, demand: Demand | None, limit: float) -> Iterator[str]:
    """The plan beside what torch's instruments find in a rehearsed update, and the operations and exchanged bytes of
    each pass. `limit` is in seconds.

    Raises DataError without a plan, and ConfigError as `prove` does.
    """
    if demand is None:
        raise _no_plan("--prove: there is no plan to prove")
    from winnow.commands.check.proof import prove  # imports transformers' modelling code

    found = prove(demand, needs=log_probs_needed(members), limit=limit)
    ranks = f", rank 0 of {demand.ranks}" if demand.ranks > 1 else ""
    yield f"{'proof':<13}an update without numbers, by torch's {found.tracker}{ranks}, in {found.seconds:.0f} s"
    yield _line("", "plan", "tracker", "plan / tracker")
    yield from map(_row, found.rows)
    yield from _passes(found)


def _row(row: ProvedPart) -> str:
    sign = "" if abs(row.ratio - 1) <= SAME else "  !"
    return _line(row.name, format_bytes(row.planned), format_bytes(row.tracked), f"{row.ratio:.3f}{sign}")


def _passes(found: Proof) -> Iterator[str]:
    yield _line("of a micro-batch", "tokens", "operations", "per token", "exchanged")
    for each in found.passes:
        per_token = each.operations / each.tokens
        yield _line(
            each.name, format_count(each.tokens), f"{each.operations:.3g}", f"{per_token:.3g}", _exchanged(each)
        )


def _exchanged(each: Pass) -> str:
    parts = {"gathered": each.gathered, "scattered": each.scattered, "reduced": each.reduced}
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size) or "nothing"


def _line(name: str, *columns: str) -> str:
    return f"{'':<13}{name:<{NAMES}}{''.join(f'{column:>{NUMBERS}}  ' for column in columns)}".rstrip()


def _lacking(members: Members) -> WinnowError | None:
    """The error about a package that is not installed, or has an unfit version; None without one."""
    try:
        check_installed(members)
    except ConfigError as error:
        return error
    data = _hub_data(members)
    return no_hub_library(data[1]) if data is not None and not is_installed("datasets") else None
