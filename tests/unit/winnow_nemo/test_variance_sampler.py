"""The sampler of prompt groups on a stand-in for NeMo-RL, made from its public protocol.

The stand-in has the lists and methods of `TQReplayBuffer`, and the two loops of `SingleController`: a place in the
buffer is taken before a prompt is sampled, and freed once its group is evicted or selected. NeMo-RL itself is not run.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow_nemo.sampler import VarianceSampler


@runtime_checkable
class PromptGroupSampler(Protocol):
    """NeMo-RL's protocol, as its commit 7ea279a of August 2026 defines it."""

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None: ...

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[Any, int]: ...

    async def evict(self, *, current_train_weight: int) -> int: ...

    def should_abort_inflight(self, *, start_weight_version: int, current_train_weight: int) -> bool: ...

    @property
    def is_on_policy(self) -> bool: ...

    def required_buffer_capacity(self, groups_per_step: int) -> int | None: ...

    def set_dispatch_index(self, resume_from_step: int) -> None: ...


@dataclass
class Meta:
    """As NeMo-RL's KVBatchMeta: the names of rows in the data plane."""

    partition_id: str
    sample_ids: list[str]

    def concat(self, *others: Meta) -> Meta:
        return Meta(self.partition_id, [row for meta in (self, *others) for row in meta.sample_ids])


@dataclass
class Buffer:
    """As TQReplayBuffer. `pause` is called while the data plane is asked, when other groups may be committed."""

    rows: dict[str, float] = field(default_factory=dict)  # the data plane: name of a row -> its reward
    meta_list: list[Meta | None] = field(default_factory=list)
    start_weight_list: list[int] = field(default_factory=list)
    ready_list: list[bool] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    pause: Callable[[], None] = lambda: None

    def reserve(self, name: str, version: int) -> None:
        self.meta_list.append(None)
        self.start_weight_list.append(version)
        self.ready_list.append(False)
        self.names.append(name)

    def commit(self, name: str, rewards: Any) -> None:
        place = self.names.index(name)
        rows = {f"{name}_g{i}": float(reward) for i, reward in enumerate(rewards)}
        self.rows.update(rows)
        self.meta_list[place], self.ready_list[place] = Meta("train", list(rows)), True

    async def remove(self, idxs: list[int], remove_in_dp: bool) -> int:
        lost = [self.meta_list[place] for place in idxs]
        for place in sorted(idxs, reverse=True):
            for column in (self.meta_list, self.start_weight_list, self.ready_list, self.names):
                del column[place]
        await asyncio.sleep(0)
        for meta in lost:
            for row in meta.sample_ids if remove_in_dp and meta is not None else ():
                del self.rows[row]
        return len(idxs)

    async def _call_dp(self, method_name: str, *, sample_ids: Any, partition_id: str, select_fields: Any) -> Any:
        assert (method_name, partition_id, select_fields) == ("get_samples", "train", ["total_reward"])
        found = np.array([self.rows[row] for row in sample_ids], dtype=np.float32)
        await asyncio.sleep(0)
        self.pause()
        return {"total_reward": found}


def filled(*groups, version=0):
    """A buffer with committed groups named a, b, ... of these rewards."""
    buffer = Buffer()
    for name, rewards in zip("abcdefgh", groups, strict=False):
        buffer.reserve(name, version)
        buffer.commit(name, rewards)
    return buffer


MIXED, RARE, FLAT = [0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]


def run_alone(coroutine):
    """The result of a coroutine, in a thread of its own: another test of this process may have left a loop running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_it_has_the_protocol_with_its_parameters():
    sampler = VarianceSampler(Buffer())
    assert isinstance(sampler, PromptGroupSampler)
    for name in ("admit", "select", "evict", "should_abort_inflight", "required_buffer_capacity", "set_dispatch_index"):
        asked = inspect.signature(getattr(PromptGroupSampler, name)).parameters
        assert [(p.name, p.kind) for p in inspect.signature(getattr(VarianceSampler, name)).parameters.values()] == [
            (p.name, p.kind) for p in asked.values()
        ]


def test_flat_groups_leave_the_buffer_and_the_others_are_trained_on_whole():
    buffer = filled(MIXED, FLAT, RARE, FLAT)
    sampler = VarianceSampler(buffer, share=1.0, decide_on=4)

    async def run():
        assert await sampler.evict(current_train_weight=0) == 2
        assert buffer.names == ["a", "c"]
        return await sampler.select(current_train_weight=0, min_prompt_groups=1, max_prompt_groups=8)

    rows, count = run_alone(run())
    assert count == 2
    assert rows.sample_ids == [f"{name}_g{i}" for name in "ac" for i in range(4)]
    assert buffer.names == []
    assert set(buffer.rows) == set(rows.sample_ids)  # the trainer reads them, and clears them


def test_the_share_decides_by_variance():
    """Variances 1/3, 1/4, 1/3 and 1/4 (ddof 1) add up to 7/6. Two of 1/3 have 4/7 of it, and one of 1/4 more 11/14."""
    for share, left in [(0.5, "ac"), (0.57, "ac"), (0.58, "abc"), (0.78, "abc"), (0.79, "abcd")]:
        buffer = filled(MIXED, RARE, MIXED, RARE)
        run_alone(VarianceSampler(buffer, share=share, margin=0, decide_on=4).evict(current_train_weight=0))
        assert "".join(buffer.names) == left


def test_nothing_is_decided_before_there_are_enough_groups():
    buffer = filled(FLAT, MIXED, FLAT)
    sampler = VarianceSampler(buffer, decide_on=4)

    async def run():
        assert await sampler.evict(current_train_weight=0) == 0
        assert await sampler.select(current_train_weight=0, min_prompt_groups=1, max_prompt_groups=4) == (None, 0)
        buffer.reserve("d", 0)
        assert await sampler.evict(current_train_weight=0) == 0  # d is not committed yet
        buffer.commit("d", MIXED)
        assert await sampler.evict(current_train_weight=0) == 2
        assert buffer.names == ["b", "d"]
        assert await sampler.evict(current_train_weight=0) == 0  # kept groups are not compared again
        return await sampler.select(current_train_weight=0, min_prompt_groups=3, max_prompt_groups=4)

    assert run_alone(run()) == (None, 0)


def test_groups_that_are_committed_while_rewards_are_read_are_not_taken_for_others():
    buffer = filled(FLAT, MIXED, FLAT, MIXED)
    sampler = VarianceSampler(buffer, decide_on=4)

    def earlier():  # a slot in front of the others, as if it were reserved earlier
        buffer.pause = lambda: None
        for column, value in (
            (buffer.meta_list, Meta("train", ["new_g0"])),
            (buffer.start_weight_list, 0),
            (buffer.ready_list, True),
            (buffer.names, "new"),
        ):
            column.insert(0, value)

    buffer.pause = earlier
    assert run_alone(sampler.evict(current_train_weight=0)) == 2
    assert buffer.names == ["new", "b", "d"]


@pytest.mark.parametrize(("versions", "version", "evicted"), [(0, 3, 4), (1, 4, 4), (1, 3, 0), (2, 4, 0), (0, 2, 0)])
def test_groups_that_are_too_old_leave_kept_or_not(versions, version, evicted):
    buffer = filled(MIXED, MIXED, MIXED, MIXED, version=2)
    sampler = VarianceSampler(buffer, share=1.0, decide_on=4, max_staleness_versions=versions)

    async def run():
        assert await sampler.evict(current_train_weight=2) == 0
        assert await sampler.evict(current_train_weight=version) == evicted
        return await sampler.select(current_train_weight=version, min_prompt_groups=1, max_prompt_groups=9)

    assert run_alone(run())[1] == 4 - evicted
    assert sampler.should_abort_inflight(start_weight_version=2, current_train_weight=version) == (evicted == 4)
    assert sampler.is_on_policy == (versions == 0)


def test_a_group_of_a_version_that_the_policy_has_not_reached_is_not_selected():
    buffer = filled(MIXED, MIXED, version=5)
    sampler = VarianceSampler(buffer, share=1.0, decide_on=2)

    async def run():
        await sampler.evict(current_train_weight=4)
        return await sampler.select(current_train_weight=4, min_prompt_groups=1, max_prompt_groups=2)

    assert run_alone(run()) == (None, 0)


def test_rewards_that_are_not_finite_have_no_part_in_the_variance():
    buffer = filled([np.nan, 1, 1, 1], [np.nan, 0, 1, np.inf])
    run_alone(VarianceSampler(buffer, decide_on=2, margin=0).evict(current_train_weight=0))
    assert buffer.names == ["b"]


def test_bounds_that_do_not_fit_are_refused():
    sampler = VarianceSampler(filled(MIXED))
    for least, most in [(0, 1), (2, 1)]:
        with pytest.raises(ValueError, match="prompt groups"):
            run_alone(sampler.select(current_train_weight=0, min_prompt_groups=least, max_prompt_groups=most))


@pytest.mark.parametrize(
    ("options", "key"),
    [({"share": 0}, "share"), ({"margin": -1}, "margin"), ({"decide_on": 0}, "decide_on"),
     ({"max_staleness_versions": -1}, "max_staleness_versions"), ({"share": "half"}, "share")],
)  # fmt: skip
def test_values_out_of_range_are_refused(options, key):
    with refused(ConfigError, key, key=f"async_rl.sampler.{key}", code="config.value"):
        VarianceSampler(Buffer(), **options)


@pytest.mark.parametrize("name", ["meta_list", "start_weight_list", "ready_list", "remove", "_call_dp"])
def test_a_buffer_of_another_form_is_refused(name):
    parts = {part: None for part in ("meta_list", "start_weight_list", "ready_list", "remove", "_call_dp")}
    del parts[name]
    with refused(ConfigError, name, code="config.not_installed"):
        VarianceSampler(type("Other", (), parts)())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("step", "decide_on", "streamed"), [(4, 6, 1), (4, 6, 4), (1, 3, 1), (5, 2, 2)])
def test_a_run_in_the_smallest_buffer_fills_every_step(seed, step, decide_on, streamed):
    """Half of the prompts are flat, and groups are committed in any order. Every step gets its number of groups, none
    flat and none twice, and every place of the buffer is freed once.
    """
    rng, buffer, trained = np.random.default_rng(seed), Buffer(), []
    sampler = VarianceSampler(buffer, share=1.0, margin=0.0, decide_on=decide_on, max_staleness_versions=100)
    places = capacity = sampler.required_buffer_capacity(step)
    sampled, running = 0, list[str]()

    async def run():
        nonlocal places, sampled
        for version in range(5):
            groups = 0
            for _ in range(1000):
                while places > 0:
                    assert await sampler.admit(trainer_version_fn=lambda now=version: now) is None
                    buffer.reserve(f"p{sampled}", version)
                    running.append(f"p{sampled}")
                    sampled, places = sampled + 1, places - 1
                if running:
                    name = running.pop(int(rng.integers(len(running))))
                    buffer.commit(name, FLAT if int(name[1:]) % 2 else MIXED)
                places += await sampler.evict(current_train_weight=version)
                least = min(streamed, step - groups)
                rows, count = await sampler.select(
                    current_train_weight=version, min_prompt_groups=least, max_prompt_groups=step - groups
                )
                groups, places = groups + count, places + count
                trained.extend([] if rows is None else rows.sample_ids)
                if groups == step:
                    break
            assert groups == step
            assert places + len(buffer.names) == capacity

    run_alone(run())
    names = [row.rpartition("_g")[0] for row in trained[:: len(MIXED)]]
    assert len(set(names)) == len(names) == 5 * step
    assert all(int(name[1:]) % 2 == 0 for name in names)
    assert sampled > 5 * step


def test_it_imports_neither_nemo_rl_nor_torch():
    code = "import sys; sys.modules.update(torch=None, nemo_rl=None, ray=None); import winnow_nemo.sampler"
    subprocess.run([sys.executable, "-c", code], check=True)
