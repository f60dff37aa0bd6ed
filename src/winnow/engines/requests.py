"""A request for rollouts, in the form that all engines use: the rollouts to sample, and the groups of finished ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from winnow.engines.base import OnRollout, PendingRollout
from winnow.engines.stopping import StopRule
from winnow.errors import EngineError
from winnow.records import FloatArray, Group, IntArray, Prompt, Rollout, rollout_id
from winnow.seeds import SeedName

SHORT = 1024  # tokens; decoding such a text takes less time than passing it to the thread


def turn_seed(seed: tuple[SeedName, ...], turn: int) -> tuple[SeedName, ...]:
    """The seed of a later turn's request, turn >= 1; the first turn's is `seed`."""
    return (*seed, "turn", turn)


def turn_key(seed: tuple[SeedName, ...], prompt_id: str, index: int, turn: int) -> tuple[SeedName, ...]:
    """The key of a turn's random numbers: those that a request for this turn alone would have."""
    return (*seed, prompt_id, index) if turn == 0 else (*turn_seed(seed, turn), rollout_id(prompt_id, index), 0)


def pending_rollouts(prompts: Sequence[Prompt], counts: Sequence[int]) -> list[PendingRollout]:
    """Every rollout of a request, in order. Raises EngineError for an inconsistent request."""
    if len(prompts) != len(counts):
        raise _contract_error(f"there are {len(prompts)} prompts but {len(counts)} counts", "pass one count per prompt")
    for prompt, count in zip(prompts, counts, strict=True):
        if count < 0:
            raise _contract_error(f"prompt {prompt.id!r}: a count of {count}", "pass counts of 0 or more")
        if len(prompt.tokens) == 0:
            raise _contract_error(f"prompt {prompt.id!r} has no tokens", "use a template that renders at least one")
    return [PendingRollout(number, prompt, i) for number, prompt in enumerate(prompts) for i in range(counts[number])]


def _contract_error(problem: str, remedy: str) -> EngineError:
    return EngineError(problem, remedy=remedy, code="engine.contract")


def waves(rollouts: Sequence[PendingRollout], at_once: int) -> list[list[PendingRollout]]:
    """Split rollouts into the fewest waves within the limit, equally full, sorted by prompt length (least padding)."""
    number = -(-len(rollouts) // at_once)
    by_length = sorted(rollouts, key=lambda rollout: len(rollout.prompt.tokens))
    edges = [len(rollouts) * i // number for i in range(number + 1)] if number else []
    return [by_length[a:b] for a, b in itertools.pairwise(edges)]


class SamplingRequest:
    """One call of `generate`: its rollouts, and the finished ones among them, in any order.

    Decoding a long text takes milliseconds, in which the sampling loop must not keep its device idle. A separate thread
    therefore decodes long texts and calls `on_rollout`, in the order in which rollouts finish. A text of at most SHORT
    tokens is decoded at once if the thread is idle. An exception in the thread is raised by the next `check` or
    `finish`, or by `groups`. The context manager ends the thread. When an exception leaves it, rollouts that wait for
    the thread are dropped, and `on_rollout` is not called afterwards.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        *,
        rule: StopRule,
        version: int,
        on_rollout: OnRollout | None,
    ) -> None:
        self.rollouts = pending_rollouts(prompts, counts)
        self._prompts = prompts
        self._finished: dict[tuple[int, int], Rollout] = {}
        self._rule = rule
        self._version = version
        self._on_rollout = on_rollout
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="winnow-texts")
        self._newest: Future[None] | None = None  # the thread's last task
        self._error: BaseException | None = None  # the first exception of decoding or `on_rollout`

    def finish(self, pending: PendingRollout, tokens: IntArray, logprobs: FloatArray) -> None:
        """Make the rollout from its tokens [L] and log-probs [L], and call `on_rollout`; possibly in the thread."""
        self.check()
        if len(tokens) <= SHORT and (self._newest is None or self._newest.done()):
            self._make(pending, tokens, logprobs)
            self.check()
        else:
            self._newest = self._thread.submit(self._make, pending, tokens, logprobs)

    def wait(self) -> None:
        """Wait until every rollout of `finish` is made."""
        if self._newest is not None:
            self._newest.result()
        self.check()

    def groups(self) -> list[Group]:
        """One group per prompt, rollouts in index order; waits until all of them are made."""
        self._thread.shutdown()
        self.check()
        by_prompt: list[list[Rollout]] = [[] for _ in self._prompts]
        for pending in self.rollouts:
            by_prompt[pending.prompt_index].append(self._finished[pending.prompt_index, pending.index])
        return [Group(prompt=p, rollouts=tuple(r)) for p, r in zip(self._prompts, by_prompt, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        try:
            self._thread.shutdown(cancel_futures=kind is not None)
        except BaseException:  # a signal arrived during the wait
            self._thread.shutdown(cancel_futures=True)
            raise

    def _make(self, pending: PendingRollout, tokens: IntArray, logprobs: FloatArray) -> None:
        if self._error is not None:
            return
        try:
            text, stopped = self._rule.read(tokens)
            rollout = Rollout(
                index=pending.index,
                tokens=tokens,
                logprobs=logprobs,
                text=text,
                finish="stop" if stopped else "length",
                version=self._version,
            )
            self._finished[pending.prompt_index, pending.index] = rollout
            if self._on_rollout is not None:
                self._on_rollout(pending.prompt, rollout)
        except BaseException as raised:
            self._error = raised

    def check(self) -> None:
        """Raise the thread's exception, if any. Engines call it at every token: the next rollout may take minutes."""
        if self._error is not None:
            raise self._error
