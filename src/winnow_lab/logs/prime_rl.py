"""The log of a prime-rl run: the episodes that its file monitor writes, and its metrics.

    RUN/rollouts/step_5/train/all/traces.jsonl         every episode that arrived while step 5 collected its batch
    RUN/rollouts/step_5/train/effective/traces.jsonl   the traces that step 5 trained on, with their advantages
    RUN/metrics.jsonl                                  of the same monitor; rows of a step are merged

A line is an episode of verifiers: its task, its group, and a trace per agent, with messages, rewards and their weights,
and calls with counts of tokens. The members of a group may arrive during different steps. They are read as one group,
of the step that trained on the first of them, or else of the last step in which one arrived.

Read as the code of prime-rl 0.8.1.dev (commit 559b4477) writes it, with verifiers at commit a60a606e.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from winnow.metrics import distinct
from winnow.state.foreign_log import ForeignGroup, ForeignLog
from winnow_lab.logs.reading import digest_of, json_lines, malformed, metric, written

ROLLOUTS, METRICS_FILE, TRACES = "rollouts", "metrics.jsonl", "traces.jsonl"
ALL, TRAINED = "train/all", "train/effective"
METRICS = {  # of a step -> winnow's
    "loss/mean": "policy/loss",
    "entropy/all/mean": "policy/entropy",
    "optim/grad_norm": "policy/grad_norm",
    "optim/lr": "policy/learning_rate",
}
_STEP = re.compile(r"step_(\d{1,15})")
_ALL = re.compile(rf"(?:.*/)?{ROLLOUTS}/step_(\d{{1,15}})/{ALL}/{re.escape(TRACES)}")
_EVALUATED = re.compile(r"eval/(.+)/effective/([^/]+)/avg@\d+")
_HASH = re.compile(r"[0-9a-f]{32,}")  # the key of a task that defines none
_ORCHESTRATOR = "progress/rollouts"  # in its row; the trainer's row has a time/step of its own
Files = tuple[tuple[int, Path, tuple[int, ...]], ...]  # prime-rl's step, its file, and when it was written


class _Rollout(NamedTuple):
    """A trace of an episode without its tokens, or an episode that failed before it had one."""

    group: str
    id: str
    prompt_id: str
    prompt: str
    answer: Any
    text: str
    reward: float
    parts: Mapping[str, float]
    advantage: float
    length: float


class PrimeRlLog(ForeignLog):
    """A folder with `rollouts/step_N`. A step is there from its first training episode on."""

    program = "prime-rl"
    names = "rollouts/step_5/train/all/traces.jsonl"
    above = 4

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return any((folder / ALL / TRACES).is_file() for _, folder in _steps(path))

    @classmethod
    def step_of(cls, path: Path) -> int | None:
        """Of the file of all episodes, which stands for its step."""
        match = _ALL.fullmatch(path.as_posix())
        return int(match[1]) - 1 if match and int(match[1]) > 0 else None

    def files(self) -> dict[int, Path]:
        wanted = set(self._steps_of_groups().values())
        return {step - 1: path for step, path, _ in self._found(ALL) if step in wanted}

    def read(self, step: int) -> list[ForeignGroup]:
        own = {group for group, of in self._steps_of_groups().items() if of == step + 1}
        trained = {one.id: one for one in self._members(TRAINED, own)}
        members: dict[str, dict[str, _Rollout]] = {}
        for one in (*self._members(ALL, own), *trained.values()):
            members.setdefault(one.group, {})[one.id] = one  # that of train/effective has its advantage
        return [_group(list(of.values()), trained) for of in members.values()]

    def measured(self) -> dict[int, dict[str, float]]:
        steps = self.files()
        logged = self._metrics()
        names = [match[1] for row in logged.values() for name in row if (match := _EVALUATED.fullmatch(name))]
        sets = list(dict.fromkeys(names))
        tasks = dict(zip(sets, distinct(sets), strict=True)) if len(sets) > 1 else {}
        measured: dict[int, dict[str, float]] = {}
        for step, row in logged.items():
            own = {new: row[name] for name, new in METRICS.items() if name in row} if step - 1 in steps else {}
            if _ORCHESTRATOR in row and "time/step" in row and step - 1 in steps:
                own["seconds/step"] = row["time/step"]
            for name, value in row.items():
                if match := _EVALUATED.fullmatch(name):
                    own[f"eval/{tasks[match[1]]}/reward_mean" if tasks else "eval/reward_mean"] = value
            if own:
                measured[step - 1] = own
        return measured

    def notes(self) -> list[str]:
        first = min(self.files(), default=0)
        notes = [
            f"a log of prime-rl: step {first} here is its step {first + 1}. An evaluation of its step k is one after "
            f"k - 1 updates",
            "a rollout is trained on if it is among the traces of train/effective; a group counts for the step that "
            "trained on it, though its members may have arrived earlier",
        ]
        if not self._metrics():
            notes.append(f"it has no {METRICS_FILE}: neither losses nor seconds")
        return notes

    def restoring(self, step: int) -> str:
        return f"put {self.path / ROLLOUTS / f'step_{step + 1}' / ALL / TRACES} back"

    def _found(self, kind: str) -> Files:
        paths = [(step, folder / kind / TRACES) for step, folder in _steps(self.path) if step > 0]
        return tuple((step, path, written(path)) for step, path in paths if path.is_file())

    def _members(self, kind: str, groups: set[str]) -> Iterator[_Rollout]:
        for _, path, when in self._found(kind):
            if not groups.isdisjoint(_groups_in(path, when)):
                yield from (one for one in _rollouts(path, when) if one.group in groups)

    def _steps_of_groups(self) -> Mapping[str, int]:
        """The id of every group -> its step of prime-rl."""
        return _placed(self._found(ALL), self._found(TRAINED))

    def _metrics(self) -> Mapping[int, Mapping[str, float]]:
        merged: dict[int, dict[str, float]] = {}
        for path in sorted({*self.path.glob(METRICS_FILE), *self.path.glob(f"*/{METRICS_FILE}")}):
            for number, row in json_lines(path, may_be_cut=True):
                step = row.pop("step", None)
                if not isinstance(step, (int, float)) or not float(step).is_integer():  # NaN and infinity neither
                    raise malformed(path, f"line {number}: has no step")
                of_step = merged.setdefault(int(step), {})
                if _ORCHESTRATOR not in row:
                    row.pop("time/step", None)
                known = {*METRICS, "time/step", _ORCHESTRATOR}
                for name in row:
                    if name in known or _EVALUATED.fullmatch(name):
                        of_step[name] = metric(path, f"line {number}", name, row[name])
        return merged


def _steps(path: Path) -> list[tuple[int, Path]]:
    """prime-rl's step -> its folder, in step order."""
    try:
        inner = [own for own in (path / ROLLOUTS).iterdir() if _STEP.fullmatch(own.name)]
    except OSError:
        return []
    return sorted((int(own.name.removeprefix("step_")), own) for own in inner)


@functools.lru_cache(maxsize=4)
def _placed(arrived: Files, trained: Files) -> Mapping[str, int]:
    steps: dict[str, int] = {}
    for step, path, when in arrived:
        steps |= dict.fromkeys(_groups_in(path, when), step)
    for step, path, when in reversed(trained):
        steps |= dict.fromkeys(_groups_in(path, when), step)
    return steps


@functools.lru_cache(maxsize=4096)
def _groups_in(path: Path, when: tuple[int, ...]) -> frozenset[str]:
    return frozenset(one.group for one in _rollouts(path, when))


@functools.lru_cache(maxsize=8)
def _rollouts(path: Path, when: tuple[int, ...]) -> tuple[_Rollout, ...]:
    rows = json_lines(path, may_be_cut=True)
    return tuple(one for number, episode in rows for one in _of_episode(path, number, episode))


def _of_episode(path: Path, number: int, episode: Mapping[str, Any]) -> Iterator[_Rollout]:
    """The trainable traces of an episode; one without a trace where there is none, as it failed before."""
    group, traces, task = episode.get("group"), episode.get("traces"), episode.get("task")
    if not isinstance(group, dict) or not isinstance(traces, list) or not isinstance(task, dict):
        raise malformed(path, f"line {number}: is no episode of verifiers, with 'group', 'task' and 'traces'")
    try:
        for trace in traces:
            if trace["agent"].get("trainable", True):
                yield _rollout(str(group["id"]), str(trace["id"]), task, trace)
        if not traces:
            yield _rollout(str(group["id"]), str(episode["id"]), task, {})
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise malformed(path, f"line {number}: is no episode of verifiers ({error!r:.80})") from error


def _rollout(group: str, own: str, task: Mapping[str, Any], trace: Mapping[str, Any]) -> _Rollout:
    prompt, text = _texts(trace)
    given = {name: part for name, part in (trace.get("rewards") or {}).items() if part is not None}
    reward = math.nan  # of a trace that failed, or has no reward
    if trace.get("ok") and given:
        reward = math.fsum(part["score"] * part.get("weight", 1.0) for part in given.values())
    # The mean of the token advantages that are not 0, as prime-rl reports it; NaN where none is assigned.
    values = [value for node in trace.get("nodes") or () for value in node.get("advantages") or ()]
    some = [value for value in values if value != 0.0]
    return _Rollout(
        group=group,
        id=own,
        prompt_id=_short(str(task.get("key") or task.get("hash") or group)),
        prompt=prompt,
        answer=(task.get("data") or {}).get("answer"),
        text=text,
        reward=reward,
        parts={name: float(part["score"]) for name, part in given.items()},
        advantage=math.nan if not values else sum(some) / len(some) if some else 0.0,
        length=_length(trace),
    )


def _short(key: str) -> str:
    """Up to 16 characters: the key, the beginning of a hash, or a digest, as many names may begin alike."""
    return key[:16] if len(key) <= 16 or _HASH.fullmatch(key) else digest_of(key)


def _group(rollouts: Sequence[_Rollout], trained: Collection[str]) -> ForeignGroup:
    credit = np.array([one.advantage for one in rollouts], dtype=np.float64)
    return ForeignGroup(
        prompt_id=rollouts[0].prompt_id,
        prompt=next((one.prompt for one in rollouts if one.prompt), ""),
        answer=rollouts[0].answer,
        texts=[one.text for one in rollouts],
        rewards=np.array([one.reward for one in rollouts], dtype=np.float64),
        parts=[one.parts for one in rollouts],
        kept=np.array([one.id in trained for one in rollouts], dtype=np.bool_),
        advantages=None if np.isnan(credit).all() else credit,
        lengths=np.array([one.length for one in rollouts], dtype=np.float64),
    )


def _length(trace: Mapping[str, Any]) -> float:
    """The tokens that the model generated, by the provider's counts; NaN where a call has none."""
    usage = [call.get("usage") for call in trace.get("calls") or () if call.get("error") is None]
    return math.nan if None in usage else float(sum(own["completion_tokens"] for own in usage))


def _texts(trace: Mapping[str, Any]) -> tuple[str, str]:
    """(prompt, completion) of the last branch: the messages before the first that was sampled, and the others."""
    nodes = trace.get("nodes") or []
    path: list[Mapping[str, Any]] = []
    at = len(nodes) - 1 if nodes else None
    while isinstance(at, int) and 0 <= at < len(nodes) and len(path) < len(nodes):
        path.insert(0, nodes[at])
        at = nodes[at].get("parent")
    first = next((place for place, node in enumerate(path) if node.get("sampled")), len(path))
    return _joined(path[:first]), _joined(path[first:])


def _joined(nodes: list[Mapping[str, Any]]) -> str:
    messages = [node.get("message") or {} for node in nodes]
    texts = [(message.get("role"), _content(message)) for message in messages]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{role}: {text}" for role, text in texts)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = "".join(f"\n{call.get('name')}({call.get('arguments')})" for call in message.get("tool_calls") or ())
    return str(message.get("reasoning_content") or "") + content + calls
