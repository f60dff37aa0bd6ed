"""The work of a point, measured in its process: load the policy as a run does, warm up, repeat the work, and time it.

Only memory allocated after the creation of `DeviceMemory` counts: weights, moments, gradients, activations, keys and
values. Python, its packages and mapped files do not count. On CUDA torch counts its allocations. On a CPU, Linux counts
the peak resident size (VmHWM), which can be reset; on other systems there is no such count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from winnow.algos.advantage import check_credits
from winnow.config import Config
from winnow.core.batches import make_batches
from winnow.core.members import Members
from winnow.core.run import training_sampling
from winnow.engines.base import make_engine
from winnow.errors import ConfigError, UpdateError
from winnow.learner.learner import make_learner
from winnow.memory.usage import process_memory, reset_peak
from winnow.models.device import keeps_masters, resolve_device, set_deterministic, set_matrix_products
from winnow.models.load import Loaded
from winnow.records import Batch, Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng, generator
from winnow.training.build import threads_of_rank
from winnow.training.load import engine_context, load_model
from winnow.training.prompts import prompt_tokenizer
from winnow.training.resolve import resolve_members
from winnow_lab.profile.points import Job, Point, PointResult, Work, split_evenly

OUT_OF_MEMORY = (  # in messages of torch, its libraries, numpy and the C++ runtime
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "unable to allocate",
    "bad_alloc",
)
NO_STACK = "can't start new thread"  # under a limit, because its stack does not fit
NO_BOUND = 2**50  # bytes of keys and values, more than any machine has


def check_limit(device: torch.device, limit: int | None) -> None:
    """Raise ConfigError if a limit cannot be set."""
    if limit is not None and device.type == "cpu" and sys.platform != "linux":
        raise ConfigError(
            "a memory limit on a CPU needs Linux: other systems neither count nor limit it",
            remedy="omit the limit",
            code="config.unsupported",
        )


class DeviceMemory:
    """Counts the memory that this process allocates on a device after the creation of this object."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cpu":
            torch.ones(2**20).sum()  # starts torch's threads, whose stacks are no part of the model
        self._before = process_memory() if device.type == "cpu" else {}

    def limit(self, size: int | None) -> None:
        """Make allocations beyond `size` bytes fail with MemoryError or torch's error; current use counts."""
        if size is not None and self._device.type == "cuda":
            total = torch.cuda.mem_get_info(self._device)[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), self._device)
        elif size is not None and self._before:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (self._before["VmData"] + size, hard))

    def copy_weights(self, model: torch.nn.Module) -> None:
        """Copy the weights into memory of this process, because mapped files are not counted."""
        if self._device.type == "cpu":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()

    def begin(self) -> int | None:
        """Return the bytes in use, and reset the peak."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        reset_peak()
        numbers = process_memory()
        return numbers["RssAnon"] - self._before["RssAnon"] if numbers else None

    def peak(self) -> int | None:
        """The most bytes in use since `begin`."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        numbers = process_memory()
        return numbers["VmHWM"] - numbers["RssFile"] - self._before["RssAnon"] if numbers else None


def lift_limit() -> None:
    """Remove the limit after an error, so that there is memory to report it."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def is_out_of_memory(error: BaseException, *, limited: bool) -> bool:
    """Return whether an error means that memory ran out; `limited`: whether a limit was set."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or mentions_out_of_memory(
        str(error), limited=limited
    )


def mentions_out_of_memory(text: str, *, limited: bool) -> bool:
    """Return whether a message means that memory ran out; `limited`: whether a limit was set."""
    lower = text.lower()
    return any(words in lower for words in OUT_OF_MEMORY) or (limited and NO_STACK in lower)


def prefer_for_oom_kill() -> None:
    """On Linux: if the machine runs out of memory, the kernel kills this process first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextmanager
def sampling_work(
    members: Members, policy: Loaded, prompts: Sequence[Prompt], rollouts: int
) -> Iterator[Callable[[int], Work]]:
    """A function that calls the engine once; its argument is part of the seed.

    Every rollout has `rollout.max_new_tokens` tokens, so that points differ only in the number of rollouts. Keys and
    values are not bounded: all rollouts run concurrently, or the point runs out of memory.
    """
    config = members.config
    counts = split_evenly(rollouts, per_prompt=config.rollout.rollouts_per_prompt, prompts=len(prompts))
    context = dataclasses.replace(
        engine_context(config, policy, NO_BOUND), stop_tokens=(), max_rollouts_at_once=rollouts
    )
    sampling = dataclasses.replace(training_sampling(config), stop=())
    engine = make_engine(members.engine, context, name=config.rollout.engine.label)

    def sample(number: int) -> Work:
        groups = engine.generate(prompts[: len(counts)], counts, sampling, seed=(config.seed, "profile", number))
        return Work(tokens=sum(int(group.lengths.sum()) for group in groups))

    try:
        yield sample
    finally:
        engine.close()


@contextmanager
def update_work(
    members: Members, policy: Loaded, prompts: Sequence[Prompt], point: Point
) -> Iterator[Callable[[int], Work]]:
    """A function that does the training half of a step on the point's rollouts. The policy changes with each call.

    The rollouts have the maximum length, random tokens and random rewards, because the time of an update does not
    depend on the tokens. For the way "selected" the configuration's selectors choose among them; otherwise all are
    kept.
    """
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    groups = chosen(members, random_groups(members.config, prompts, point.rollouts, vocabulary), point)
    batches = scheduled(members, groups)
    trained = sum(len(batch.sequences) for batch in batches)
    if not trained:
        raise ConfigError(
            f"an update of {point.rollouts} rollouts has none to train on: all advantages are zero",
            remedy="profile larger numbers of rollouts",
            code="config.value",
        )
    config = _in_one(members.config, batches) if point.way == "whole" else members.config
    learner = make_learner(config, policy, needs=members.needs, resumed=False)

    def update(number: int) -> Work:
        micro_batches = 0
        for batch in learner.compute_logprobs(batches, members.needs):
            for mb in learner.micro_batches(batch):
                value = members.objective(learner.forward(mb, members.needs), mb)
                learner.backward(value.total)
                micro_batches += 1
            if (learner.step() if batch.sequences else learner.skip()).skipped and batch.sequences:
                raise UpdateError(
                    "the gradient is not finite, and the optimizer skipped the update",
                    remedy="lower optimizer.learning_rate",
                    key="optimizer.learning_rate",
                    code="update.not_finite",
                )
        tokens = sum(len(sequence.rollout.tokens) for batch in batches for sequence in batch.sequences)
        return Work(tokens=tokens, trained=trained, micro_batches=micro_batches)

    yield update


def random_groups(config: Config, prompts: Sequence[Prompt], rollouts: int, vocabulary: int) -> list[Group]:
    """The prompts with rollouts of `rollout.max_new_tokens` random tokens and random rewards."""
    counts = split_evenly(rollouts, per_prompt=config.rollout.rollouts_per_prompt, prompts=len(prompts))
    rng = generator(config.seed, "profile", "update")
    return [
        Group(
            prompt=prompt,
            rollouts=tuple(_random_rollout(i, config.rollout.max_new_tokens, vocabulary, rng) for i in range(count)),
            outcomes=tuple(map(_outcome, rng.permutation(count), [count] * count)),
        )
        for prompt, count in zip(prompts, counts, strict=False)
    ]


def chosen(members: Members, groups: Sequence[Group], point: Point) -> list[Group]:
    """The groups with the kept rollouts marked, and the advantage of each rollout."""
    rng, every = Rng((members.config.seed, "profile", "select")), point.way != "selected"
    keep = [np.ones(len(g.rollouts), dtype=np.bool_) if every else members.select(g, rng) for g in groups]
    kept = [group.fill(keep=mask) for group, mask in zip(groups, keep, strict=True)]
    credits = check_credits(members.advantage(kept), kept)
    return [group.fill(advantages=credit) for group, credit in zip(kept, credits, strict=True)]


def scheduled(members: Members, groups: Sequence[Group]) -> list[Batch]:
    """The batches of a step, as in core/step.py."""
    config = members.config
    return make_batches(
        groups,
        members.weighting,
        epochs=config.update.epochs,
        updates_per_step=config.update.updates_per_step,
        max_new_tokens=config.rollout.max_new_tokens,
        max_trained_tokens=config.update.max_trained_tokens,
        planned=len(groups),
        pass_rates=np.array([group.correct.mean() for group in groups]),
        drop_silent=not members.terms,
        seed=(config.seed, "profile", "schedule"),
    )


def _in_one(config: Config, batches: Sequence[Batch]) -> Config:
    """The configuration with a micro-batch size that fits a whole batch."""
    tokens = max(
        len(batch.sequences) * max((len(s.prompt.tokens) + len(s.rollout.tokens) for s in batch.sequences), default=0)
        for batch in batches
    )
    update = config.update.model_copy(update={"tokens_per_micro_batch": tokens})
    return config.model_copy(update={"update": update})


def _random_rollout(index: int, tokens: int, vocabulary: int, rng: np.random.Generator) -> Rollout:
    return Rollout(
        index=index,
        tokens=rng.integers(0, vocabulary, tokens),
        logprobs=np.full(tokens, -np.log(vocabulary)),
        text="",
        finish="length",
        version=0,
    )


def _outcome(rank: int, count: int) -> Outcome:
    """The upper half of a prompt's rollouts is right; all rewards differ."""
    correct = bool(2 * rank >= count)
    return Outcome(reward=(rank + 1) / count, correct=correct, kind="correct" if correct else "wrong")


def measure(job: Job, loaded: Callable[[], None]) -> PointResult:
    """Measure the point's seconds and memory. It calls `loaded` after loading the model, when its time limit starts."""
    members = resolve_members(job.config, job.base)
    config = members.config
    torch.set_num_threads(threads_of_rank(config.threads))
    set_matrix_products(tf32=config.model.tf32)
    device = resolve_device(config.device)
    set_deterministic(device, deterministic=config.deterministic)
    tokenizer = prompt_tokenizer(config)
    memory = DeviceMemory(device)  # after the imports, which do not count
    policy = load_model(config, device, None, tokenizer, masters=keeps_masters(config))
    memory.copy_weights(policy.model)
    memory.limit(job.request.memory_limit)  # after loading, which may briefly need more
    loaded()
    began = time.perf_counter()
    if job.point.way == "sampling":
        make = sampling_work(members, policy, job.prompts, job.point.rollouts)
    else:
        make = update_work(members, policy, job.prompts, job.point)
    with make as work:
        return _repeated(job, work, device, memory, began)


def _repeated(
    job: Job, work: Callable[[int], Work], device: torch.device, memory: DeviceMemory, began: float
) -> PointResult:
    """A warm-up, then `request.repeats` repetitions, or fewer if the time is too short for them; at least one."""
    work(0)
    seconds, held, peak, done = list[float](), list[int | None](), list[int | None](), Work(0)
    for number in range(1, job.request.repeats + 1):
        held.append(memory.begin())
        _wait(device)
        start = time.perf_counter()
        done = work(number)
        _wait(device)
        duration = time.perf_counter() - start  # with its GPU kernels
        peak.append(memory.peak())
        seconds.append(duration)
        # Twice the last duration, so that a slower next repetition still ends in time
        if time.perf_counter() - began + 2 * duration > job.request.seconds:
            break
    return PointResult(job.point, "measured", tuple(seconds), done, held=most(held), peak=most(peak))


def most(numbers: list[int | None]) -> int | None:
    """The maximum; None if memory is not counted."""
    return max((number for number in numbers if number is not None), default=None)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
