"""The interface of this package: finished rollouts are submitted, and groups are returned with their outcomes.

The reward runs in workers; or in the trainer, with verify.workers = 0 or if no other process can import it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from winnow.environments.judging import Judge, JudgeSpec, make_judge, reads
from winnow.environments.replay import NOT_REPEATED, Environment
from winnow.errors import VerifierError
from winnow.records import Group, Outcome, Prompt, Reply, Rollout
from winnow.rewards.outcomes import cut, failure
from winnow.verify.failures import RecentVerdicts
from winnow.verify.supervisor_client import SupervisorClient
from winnow.verify.worker import WorkerSettings, can_be_sent, judge, reward_name


class Inline:
    """Judges a rollout when its result is requested; a reward that hangs here hangs the run."""

    def __init__(self, reward: Judge) -> None:
        self._reward = reward
        self._numbers = itertools.count()
        self._tasks: dict[int, tuple[Prompt, Rollout, int | None]] = {}

    def submit(self, prompt: Prompt, rollout: Rollout, episode: int | None = None) -> int:
        """The ticket by which `result` returns the verdict."""
        ticket = next(self._numbers)
        self._tasks[ticket] = prompt, rollout, episode
        return ticket

    def result(self, ticket: int) -> Outcome | Reply:
        """The verdict of a ticket; each ticket is valid once."""
        return judge(self._reward, *self._tasks.pop(ticket))

    def give_up(self, episodes: Iterable[int]) -> None:
        """Close the generators of these episodes."""
        if isinstance(self._reward, Environment):
            for episode in episodes:
                self._reward.close(episode)

    def close(self) -> None:
        """Does nothing: there is no process to stop."""


class Verifiers:
    """Judges rollouts with one reward or environment, in `workers` killable processes, or in the trainer when there
    are 0.

    A rollout whose verdict takes longer than `timeout_seconds` (of an environment, each turn of a verdict) or more
    memory than `memory_mb` is failed(timeout) or failed(memory), and its worker is replaced. One that crashes a worker
    twice is failed(crash) (see failures.py). No other verdict is lost. A reward that no other process can import (a
    function object) always runs in the trainer; `notices` then describes the consequence.

    Usable from any thread and as a context manager. Raises ConfigError (from `submit` or `collect`, where the workers
    start) when a worker cannot import the reward.
    """

    def __init__(
        self,
        reward: JudgeSpec,
        *,
        workers: int,
        timeout_seconds: float,
        memory_mb: int,
        max_failure_share: float,
        base: Path | None = None,
    ) -> None:
        self.notices: tuple[str, ...] = ()
        self._reward, self._base = reward, base
        self._name = reward_name(reward)
        self._max_failure_share = max_failure_share
        self._recent = RecentVerdicts()
        self._known: dict[tuple[str, int], tuple[Rollout, int | Outcome]] = {}  # with a ticket, or settled
        self._episodes = itertools.count()
        self._runner: SupervisorClient | Inline
        if workers == 0 or not can_be_sent(reward):
            self._runner = Inline(make_judge(reward, base=base))
            why = "verify.workers = 0" if workers == 0 else "no other process can import it"
            self.notices = (
                f"the reward {self._name!r} runs in the trainer itself ({why}): if it hangs or crashes, so does the "
                "run; name it as 'file.py:function' with verify.workers > 0, and a worker that hangs is killed instead",
            )
        else:
            settings = WorkerSettings(
                reward=reward,
                base=str((base or Path.cwd()).resolve()),
                workers=workers,
                timeout_seconds=timeout_seconds,
                memory_mb=memory_mb,
            )
            self._runner = SupervisorClient(settings, name=self._name)

    @property
    def reads(self) -> frozenset[str]:
        """The fields of a rollout that the reward reads besides tokens and text. Raises ConfigError."""
        return reads(self._reward, base=self._base)

    def submit(self, prompt: Prompt, rollout: Rollout) -> None:
        """Start judging a finished rollout, unless its outcome is settled; returns at once."""
        known, verdict = self._known.get((prompt.id, rollout.index), (None, 0))
        if known is not rollout or not isinstance(verdict, Outcome):
            self._known[prompt.id, rollout.index] = rollout, self._runner.submit(prompt, rollout)

    def new_episode(self) -> int:
        """The number of a rollout that begins, for `request` and `give_up`."""
        return next(self._episodes)

    def request(self, prompt: Prompt, rollout: Rollout, episode: int | None = None) -> int:
        """Start an environment's answer to the last turn of a rollout; returns a ticket for `answer`.

        The environment's generator is kept for the next request of the same episode. Without a number, or if the
        generator is gone, it is replayed.
        """
        return self._runner.submit(prompt, rollout, episode)

    def give_up(self, episodes: Iterable[int]) -> None:
        """Close the generators of rollouts that are not continued."""
        self._runner.give_up(episodes)

    def answer(self, ticket: int) -> Outcome | Reply:
        """The environment's reply, or the outcome if the rollout has ended; each ticket is valid once."""
        return self._runner.result(ticket)

    def check_repeats(self, played: Sequence[tuple[Prompt, Rollout, Outcome]]) -> None:
        """Have an environment judge again rollouts that it has ended.

        Raises VerifierError if it returns another outcome. A timeout and the like, then or now, proves nothing.
        """
        tickets = [self.request(prompt, rollout) for prompt, rollout, _ in played]
        for (prompt, rollout, before), ticket in zip(played, tickets, strict=True):
            again = self.answer(ticket)
            differs = isinstance(again, Reply) or replace(again, seconds=before.seconds) != before
            unknown = before.failed or before.late
            if isinstance(again, Outcome):
                unknown = unknown or again.late or (again.failed and again.cause != "malformed")
            if differs and not unknown:
                raise VerifierError(
                    f"the environment {self._name!r} gave two outcomes to rollout {rollout.index} of {prompt.id!r}: "
                    f"{NOT_REPEATED}",
                    remedy="make its texts and its result depend on the prompt, the replies and `rng` alone",
                    key="environment",
                    code="verifier.not_repeatable",
                )

    def settle(self, prompt: Prompt, rollout: Rollout, outcome: Outcome) -> None:
        """Store the outcome of a finished rollout that `answer` has returned, so that it is not judged again."""
        self._known[prompt.id, rollout.index] = rollout, outcome

    def collect(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with `outcomes` filled in the order of their rollouts; waits for missing verdicts. A rollout that
        was cut is not judged.

        Failures are counted over a whole step or evaluation: see `check_step` and `check_evaluation`.
        """
        tickets = [[self._ticket(group.prompt, rollout) for rollout in group.rollouts] for group in groups]
        return [
            group.fill(outcomes=tuple(t if isinstance(t, Outcome) else self._outcome(t) for t in row))
            for group, row in zip(groups, tickets, strict=True)
        ]

    def check_step(self, groups: Sequence[Group]) -> None:
        """Count the failures in all groups of a step, rounds of dynamic sampling included, or of a probe.

        Raises VerifierError when at least 20 of training's last 1,000 verdicts, and more than `max_failure_share`, are
        failures, or when all verdicts of these groups are.
        """
        self._recent.observe(_outcomes(groups), name=self._name, max_failure_share=self._max_failure_share)

    def check_evaluation(self, groups: Sequence[Group]) -> None:
        """Count the failures in all groups of an evaluation, separately from training.

        Raises VerifierError under the same conditions as `check_step`, over the verdicts of the evaluation.
        """
        every = RecentVerdicts(most=None)
        every.observe(_outcomes(groups), name=self._name, max_failure_share=self._max_failure_share, what="evaluation")

    def stream(self, tasks: Iterable[tuple[Prompt, Rollout]], *, ahead: int = 512) -> Iterator[Outcome]:
        """The outcomes in order, failures included: for re-scoring, where failures never stop the run.

        At most `ahead` tasks are read before their verdicts, so `tasks` may be larger than memory.
        """
        tickets: deque[int] = deque()
        for prompt, rollout in tasks:
            tickets.append(self._runner.submit(prompt, rollout))
            if len(tickets) >= ahead:
                yield self._outcome(tickets.popleft())
        while tickets:
            yield self._outcome(tickets.popleft())

    def state_dict(self) -> dict[str, Any]:
        """JSON: the failures among training's last 1,000 verdicts, so that a resumed run stops at the same verdict."""
        return self._recent.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent.load_state_dict(state)

    def close(self) -> None:
        """Stop every worker; idempotent."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _outcome(self, ticket: int) -> Outcome:
        """The outcome of a finished rollout. An environment that would go on has changed since it ended the rollout."""
        verdict = self._runner.result(ticket)
        if isinstance(verdict, Reply):
            return failure("malformed", f"{self._name!r} goes on where this rollout ended: it differs, or has changed")
        return verdict

    def _ticket(self, prompt: Prompt, rollout: Rollout) -> int | Outcome:
        """The ticket of exactly this rollout, not of one with the same id that an interrupted step had submitted; or
        its settled outcome, or the outcome of a cut one.
        """
        if rollout.finish == "cut":
            return cut()
        known, verdict = self._known.pop((prompt.id, rollout.index), (None, 0))
        return verdict if known is rollout else self._runner.submit(prompt, rollout)


def _outcomes(groups: Iterable[Group]) -> list[Outcome]:
    """The outcomes of all rollouts that were judged, failures included."""
    return [outcome for group in groups for outcome in group.outcomes or () if outcome.kind != "cut"]
