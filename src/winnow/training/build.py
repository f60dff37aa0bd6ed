"""From a configuration's members to a `Run`: loads data and model, and starts engine and workers.

Only this module does so for training. The order is that of cost, so that a mistake is reported early: problems,
tokenizer, prompts, model, engine.

A rank gets its share of the machine's threads and verify workers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from winnow import ranks
from winnow.alarms.watch import Alarms
from winnow.config import dump
from winnow.control_groups import cpu_quota
from winnow.core.draw import PromptPool, make_history
from winnow.core.members import Members
from winnow.core.progress import TrainingClock
from winnow.core.run import Progress, Run, training_sampling
from winnow.core.size_plan import RunSizes, bounds_of
from winnow.core.sizes import resized
from winnow.engines.base import make_engine
from winnow.learner.learner import make_learner, shard_learner
from winnow.learner.value_model import shard_critic
from winnow.memory.usage import Gauge
from winnow.models.device import keeps_masters
from winnow.state import checkpoint
from winnow.state.checkpoint import Checkpoint
from winnow.state.cost_files import read_costs
from winnow.state.logbook import Logbook
from winnow.state.resume import digests
from winnow.tasks.problems import digest_of
from winnow.training.advice import before_training
from winnow.training.budget import plan_devices
from winnow.training.critic_checks import check_start, check_value_model
from winnow.training.gold_check import check_golds
from winnow.training.load import divides_policy, engine_context, load_model, load_start, make_separate_critic, restore
from winnow.training.prompts import omitted_tools, run_prompts, with_call_form
from winnow.training.resolve import check_installed
from winnow.training.turns import with_environment
from winnow.verify.verifiers import Verifiers


def threads_of_rank(wanted: int) -> int:
    """CPU threads of this rank: the key `threads`, else OMP_NUM_THREADS, both of which are per process.

    Without either, it is the rank's share of torch's default, limited by the cores of the process's control groups.
    torch does not read these limits: it starts 64 threads in a container that may use two cores.
    """
    if wanted or "OMP_NUM_THREADS" in os.environ:
        return wanted or torch.get_num_threads()
    quota = cpu_quota()
    cores = torch.get_num_threads() if quota is None else min(torch.get_num_threads(), math.ceil(quota))
    return max(1, cores // ranks.local_count())


@contextlib.contextmanager
def threads_set(wanted: int) -> Iterator[None]:
    """A context in which torch has this rank's threads. Afterwards it has those from before, for the next run."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of_rank(wanted))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def workers_of_rank(wanted: int) -> int:
    """This rank's share of the machine's `verify.workers`: at least one, but 0 where the key is 0."""
    return max(1, wanted // ranks.local_count()) if wanted else 0


def chosen_sizes(members: Members, problems: int) -> RunSizes | None:
    """The sizes of a run that chooses them itself, from a task with so many training problems; None for any other."""
    plan = members.config.plan
    if plan.use == "fixed":
        return None
    costs = None if plan.costs is None else read_costs(Path(os.path.expanduser(plan.costs)))
    return RunSizes(members, bounds_of(members.config, problems=problems, ranks=ranks.count()), costs)


class Built(NamedTuple):
    """A run that can take its first step, and what a person should know about it before."""

    run: Run
    progress: Progress
    devices: tuple[str, ...]  # lines: the work and the memory of each device
    notices: tuple[str, ...]

    def close(self) -> None:
        """Wait for a save in progress, remove an unfinished log, and stop the verify workers and the engine."""
        with contextlib.ExitStack() as each:  # calls the last one first
            each.callback(self.run.engine.close)
            each.callback(self.run.verifiers.close)
            each.callback(self.progress.ahead.stop, self.run.engine)
            each.callback(self.run.logbook.close)
            each.callback(self.progress.saving.wait)  # first, while this process still holds the run folder's lock


@ranks.together("loading")
def build(
    members: Members,
    *,
    folder: Path,
    device: torch.device,
    saved: Checkpoint | None = None,
    clock: TrainingClock | None = None,
) -> Built:
    """Load data, tokenizer, model and engine, with the cheapest checks first; continue from `saved` if given."""
    config = members.config
    clock = clock or TrainingClock(config)
    check_installed(members)
    rendered = run_prompts(members)
    train, held_out, tokenizer, dialogue, sample = rendered
    members = with_call_form(members, tokenizer)
    prompts = PromptPool(train.prompts, per_step=config.rollout.prompts_per_step, seed=(config.seed, "prompts"))
    history = make_history(members, prompts)
    check_value_model(config, tokenizer)
    if saved is None:
        check_start(config)
    sizes = chosen_sizes(members, len(train.prompts))
    largest = members if sizes is None else resized(members, sizes.bounds.largest)
    plan = plan_devices(largest, device, longest_prompt=rendered.longest)
    plan.check()
    marks = saved.logs if saved else {}
    logbook = Logbook(folder, seed=config.seed, marks=marks, **config.log.model_dump(), sizes=sizes)
    if ranks.is_writer():
        logbook.check(saved.path if saved else None)
        checkpoint.check(folder, plan.checkpoint if saved is None else 0)
    ranks.check_same("configuration", lambda: json.dumps(dump(config), sort_keys=True, default=str))
    ranks.check_same("set of prompts", lambda: digest_of(prompts.prompts))
    ranks.check_same("set of held-out prompts", lambda: str([digest_of(of.prompts) for of in held_out.values()]))
    devices = tuple(plan.lines())  # before the model is loaded, as the lines include the memory that is free
    with contextlib.ExitStack() as on_failure:
        verify = {**config.verify.model_dump(), "workers": workers_of_rank(config.verify.workers)}
        verifiers = Verifiers(members.reward, **verify, base=members.base)
        on_failure.callback(verifiers.close)
        doubts = () if saved else check_golds(members, sample, verifiers)
        masters, later = keeps_masters(config), divides_policy(config)
        loaded = load_model(config, device, saved, tokenizer, masters=masters, later=later)
        ranks.check_same("file", lambda: json.dumps([digests(config, members.base), saved and str(saved.path)]))
        resumed = saved is not None
        learner = make_learner(config, loaded, needs=members.needs, resumed=resumed, reference=members.reference)
        # The same on every rank, though machines may differ in memory
        exact = all(ranks.gather_from_all(plan.exact_evaluation))
        context = engine_context(config, loaded, plan.adjusted, exact_evaluation=exact)
        engine = make_engine(members.engine, context, name=config.rollout.engine.label)
        on_failure.callback(engine.close)
        engine = with_environment(engine, verifiers, config, dialogue, run=folder)
        critic_model, critic = make_separate_critic(config, learner, loaded, device)
        if context.sharded:
            # A rank that failed above raises here on all ranks; tensor collectives, which follow, would hang instead
            ranks.gather_from_all(None)
            shard_learner(learner, config, loaded)
            if critic is not None:
                shard_critic(critic, config, critic_model)
        if critic is not None and saved is None:
            load_start(critic, config)
        run = Run(
            members=members,
            folder=folder,
            sampling=training_sampling(config),
            prompts=prompts,
            held_out={task: of.prompts for task, of in held_out.items()},
            engine=engine,
            verifiers=verifiers,
            learner=learner,
            critic=critic,
            logbook=logbook,
            gauge=Gauge,
            files=loaded.files,
        )
        progress = Progress(history=history, clock=clock, alarms=Alarms(dump(config)), sizes=sizes, saved=saved)
        if saved is not None:
            restore(run, progress, saved)
        omitted = omitted_tools(members, tokenizer, sample[0]) if sample else ()
        notices = (*before_training(config, train, held_out), *verifiers.notices, *doubts, *omitted)
        built = Built(run, progress, devices, notices)
        on_failure.pop_all()
    return built
