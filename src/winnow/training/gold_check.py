"""Some golds of the training problems, given back to the run's reward before the first step.

`winnow audit` tries every gold of a task. A run tries a sample of them, and stops where the reward refuses them all:
the policy would be paid nothing, however well it answers. Rewards that do not declare how an answer is phrased are not
tried, nor are environments.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from winnow import ranks
from winnow.core.members import Members
from winnow.errors import ConfigError, DataError
from winnow.families import RewardTraits
from winnow.options import Bound, hide_secrets
from winnow.other_names import as_toml
from winnow.records import Problem
from winnow.seeds import generator
from winnow.verify.golds import Finding, Tried, phrasing, remedy, try_golds
from winnow.verify.verifiers import Verifiers

SAMPLE = 64  # problems
SECONDS = 1.0  # after the first verdict; a slower reward is tried on fewer golds
NAMED = 3  # rows in a message
AHEAD = 4  # golds that are sent before their verdicts: they are judged even if the time is up


def sample_of(problems: Sequence[Problem], seed: int) -> tuple[Problem, ...]:
    """At most `SAMPLE` of the problems, drawn by the run's seed, in their order."""
    drawn = generator(seed, "golds").choice(len(problems), size=min(SAMPLE, len(problems)), replace=False)
    return tuple(problems[place] for place in sorted(drawn.tolist()))


def check_golds(
    members: Members, sample: Sequence[Problem], verifiers: Verifiers, now: Callable[[], float] = time.monotonic
) -> tuple[str, ...]:
    """Warnings about golds of the sample that the reward refuses. All ranks get those of the rank that writes.

    Raises DataError if it refuses those of every problem that it judged; a user's reward with other options than its
    defaults is a warning too. A gold without a verdict counts neither as refused nor as accepted.
    """
    return ranks.from_writer(lambda: tuple(_warnings(members, sample, verifiers, now)), doing="trying golds")


def _warnings(
    members: Members, sample: Sequence[Problem], verifiers: Verifiers, now: Callable[[], float]
) -> Iterator[str]:
    check_form(members, sample)
    accepted, refused = _judged(members, sample, verifiers, now)
    if not refused:
        return
    findings = list(refused.values())
    places = [finding.where or finding.problem for finding in findings]
    first = f"{places[0]}: {_short(findings[0].gold)}: {findings[0].reason}"
    others = ", ".join(places[1:NAMED])
    more = len(findings) - NAMED
    rows = f"{first}; also {others}{f' and {more} more' if more > 0 else ''}" if others else first
    cure = remedy(findings, members.task.entry, members.task.options)
    cure = cure or "correct these golds, or use a reward that accepts them"
    cure += f"; {audit} tries every gold" if (audit := audit_command(members)) else ""
    of = f"{len(findings)} of {len(findings) + accepted}" if accepted else f"all {len(findings)}"
    refuses = f"the reward {members.rewards[0].name!r} refuses the gold of {of} problems that were tried"
    problem = f"{refuses}, given as an answer: {rows}"
    if not accepted and _is_for_options(members.rewards[0]):
        raise DataError(problem, remedy=cure, key="reward", code="data.malformed")
    yield f"{problem}. No answer to them can be right: {cure}"


def check_form(members: Members, problems: Sequence[Problem]) -> None:
    """Raise DataError for a gold that a reward cannot read, by the reward's trait `check_gold`."""
    for reward in members.rewards:
        if (read := reward.traits.check_gold) is None:
            continue
        for problem in problems:
            try:
                read(problem.answer)
            except ValueError as error:
                raise DataError(
                    f"{problem.where or problem.id}: the reward {reward.name!r} cannot read its gold: {error}",
                    remedy=f"write it as {reward.name!r} reads it (docs/verifiers.md), or choose another reward",
                    key="task",
                    code="data.malformed",
                ) from error


def _judged(
    members: Members, sample: Sequence[Problem], verifiers: Verifiers, now: Callable[[], float]
) -> tuple[int, Mapping[str, Finding]]:
    """The number of problems with a gold that the reward accepts, and a finding for each with refused golds alone."""
    if not members.rewards:  # an environment
        return 0, {}
    deciding = members.rewards[0]
    try:
        phrase = phrasing(deciding.entry, deciding.options)
    except ConfigError:
        return 0, {}
    started: list[float] = []

    def is_late() -> bool:
        return bool(started) and now() > started[0] + SECONDS

    accepted, refused = set[str](), dict[str, Finding]()
    for one in try_golds(sample, phrase, verifiers, deciding.traits, ahead=AHEAD, stop=is_late):
        started = started or [now()]
        if one.finding is None:
            accepted.add(one.problem.id)
        elif not _is_unknown(one):
            refused.setdefault(one.problem.id, one.finding)
    return len(accepted), {name: finding for name, finding in refused.items() if name not in accepted}


def _is_for_options(reward: Bound[RewardTraits]) -> bool:
    """Whether the example of a reward holds for its options. That of a user's is for the default ones: another option
    may be another format.
    """
    defaults = reward.entry.defaults
    return reward.entry.origin == "winnow" or all(defaults.get(name) == of for name, of in reward.options.items())


def _is_unknown(tried: Tried) -> bool:
    """Whether nothing follows for the gold: no verdict, or an example that is not for golds of this kind. If the reward
    accepts the gold as text, it follows that it must be text.
    """
    if tried.finding is not None and tried.finding.kind == "no text":
        return False
    failed = tried.outcome is not None and tried.outcome.failed
    return failed or (tried.outcome is None and tried.finding is not None and tried.finding.kind == "example")


def audit_command(members: Members) -> str:
    """The command that tries every gold of the run's task; "" where a function has no name for it."""
    config, reward = members.config, members.config.reward
    assert reward is not None, "an environment's golds are not tried"
    deciding = reward if reward.use is not None else reward.parts[0]
    names = [_named(member, members.base) for member in (config.task.use, deciding.use)]
    if not all(names):
        return ""
    options = (("task", config.task.options), ("reward", deciding.options))
    shown = ((family, hide_secrets(of, member=True)) for family, of in options)
    sets = [f"{family}.{name}={as_toml(value)}" for family, of in shown for name, value in of.items()]
    words = ("winnow", "audit", str(names[0]), "--reward", str(names[1]), *(w for of in sets for w in ("--set", of)))
    return f"`{shlex.join(words)}`"


def _named(use: object, base: Path) -> str | None:
    """A member by its name, a file relative to this folder; None for a function."""
    if not isinstance(use, str):
        return None
    file, separator, function = use.rpartition(":")
    return f"{os.path.relpath(base / file)}{separator}{function}" if file.endswith(".py") else use


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:40]} ... {line[-36:]}"
