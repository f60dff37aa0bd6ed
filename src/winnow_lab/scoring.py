"""Verifies saved responses again, from JSON lines or Parquet with texts and golds, or from a run's rollouts."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np

from winnow.config import Config
from winnow.config_file import override, validate
from winnow.environments.judging import make_judge
from winnow.errors import DataError
from winnow.records import Cause, Finish, IntArray, Kind, Outcome, Prompt, Rollout
from winnow.rewards.compose import NOT_READ, unsaved_tokens
from winnow.rewards.outcomes import reason
from winnow.state.disk import check_kind, errors_as
from winnow.state.log import prompt_of, rollout_of
from winnow.state.logbook import read_rows
from winnow.state.rollout_files import SUFFIX, count, files_of
from winnow.tasks.rows import Record
from winnow.tasks.rows import read_rows as read_rows_of
from winnow.verify.verifiers import Verifiers
from winnow.view.text import format_percent, one_line, sanitize, shorten

TEXT = ("text", "response", "completion", "output")
GOLD = ("answer", "gold", "solution")
QUESTION = ("prompt", "question", "problem")
KINDS: tuple[Kind, ...] = get_args(Kind)

_Row = tuple[int, str, Kind | None, float | None]  # a row before its verdict: line, id, earlier kind and reward
_Task = tuple[_Row, tuple[Prompt, Rollout]]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One row with its verdict."""

    line: int  # 1-based; for a run, the number of the rollout
    id: str
    outcome: Outcome
    was: Kind | None  # the kind of outcome in the row; None where it has none
    earned: float | None  # the reward in the row; None where it has none, or had no verdict

    def row(self) -> dict[str, Any]:
        """As a row of JSON: outcome, reason and seconds; a failed reward is null."""
        o = self.outcome
        return {
            "line": self.line,
            "id": self.id,
            "kind": o.kind,
            "reward": None if o.failed else o.reward,
            "answer": o.answer,
            "parts": o.parts,
            "reason": reason(o),
            "seconds": round(o.seconds, 6),
            "was": self.was,
            "earned": self.earned,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`. Raises KeyError, TypeError or ValueError for any other object."""
        cause, _, detail = str(row["reason"]).partition(": ") if row["kind"] == "failed" else (None, "", row["reason"])
        if row["kind"] not in KINDS:
            raise ValueError(f"kind: {row['kind']!r}")
        outcome = Outcome(
            reward=math.nan if row["reward"] is None else float(row["reward"]),
            correct=None if cause else row["kind"] == "correct",
            kind=row["kind"],
            parts=row["parts"],
            answer=row["answer"],
            cause=cast(Cause | None, cause),
            detail=detail,
            seconds=row["seconds"],
        )
        return cls(line=row["line"], id=row["id"], outcome=outcome, was=row["was"], earned=row["earned"])


def build_config(sets: Sequence[str], **members: str) -> Config:
    """The configuration of `winnow score` and `winnow audit`: members by name, then the overrides of `--set`."""
    data: dict[str, Any] = {family: {"use": name} for family, name in members.items()}
    for assignment in sets:
        override(data, assignment)
    return validate(data, source="the command line")


def verifiers_for(config: Config, base: Path) -> Verifiers:
    """The configuration's reward in its workers. Raises ConfigError for a reward that cannot be made."""
    from winnow.training.resolve import reward_spec

    reward = reward_spec(config)
    make_judge(reward, base=base)
    return Verifiers(reward, **config.verify.model_dump(), base=base)


def score(path: Path, verifiers: Verifiers, *, done: int = 0) -> Iterator[Scored]:
    """The verdicts of the rows of a file, or of a run folder's rollouts, in order, without the first `done` rows.

    A row is a rollout of a run's log (rollouts without text are omitted), or a row of JSON lines or Parquet with two
    required fields: a response (`text`, `response`, `completion` or `output`) and a gold (`answer`, `gold` or
    `solution`). Optional fields are a question, an `id`, a table `meta`, how the response ended (`finish`, default
    "stop"), its `tokens` or their number (`length`), and its earlier verdict (`kind`, `reward`). All are as in the
    files of `winnow eval`, whose gold may be null, and have no log-probs. A reward that reads tokens of a row without
    them gives no verdict.

    Raises DataError with the row for another form, and for such a file if the reward reads log-probs.
    """
    waiting: deque[_Row] = deque()

    def tasks() -> Iterator[tuple[Prompt, Rollout]]:
        every = _logged(path) if _is_log(path) else _tasks(path, verifiers.reads)
        for row, task in itertools.islice(every, done, None):
            waiting.append(row)
            yield task

    for outcome in verifiers.stream(tasks()):
        line, name, was, earned = waiting.popleft()
        yield Scored(line=line, id=name, outcome=outcome, was=was, earned=earned)


def count_rows(path: Path) -> int:
    """The rollouts of a run, or the rows of a file. Raises DataError for a file that cannot be read, and for a row that
    cannot be scored: repaired after the first verdicts, the file would be another one, and no resume would accept it.
    """
    if _is_log(path):
        return sum(map(count, files_of(path)))
    return sum(1 for row in _rows(path) if _plain(row.fields, row.number, row.where))


def describe(scored: Scored) -> str:
    """A row as text: "12  wrong  0.003 s  -41  not the gold"."""
    o = scored.outcome
    answer = "" if o.answer is None else sanitize(shorten(o.answer.replace("\n", " "), 40))
    changed = f"  (was {one_line(str(scored.was))})" if scored.was not in (None, o.kind) else ""
    return f"{scored.line:>6}  {o.kind:<10}  {o.seconds:7.3f} s  {answer:<20}  {sanitize(reason(o))}{changed}"


def summary(rows: Iterable[Scored]) -> list[str]:
    """Counts, accuracy over the verdicts, failures by cause, and the number of changed verdicts."""
    rows = list(rows)
    kinds = Counter(scored.outcome.kind for scored in rows)
    causes = Counter(str(scored.outcome.cause) for scored in rows if scored.outcome.failed)
    verdicts = len(rows) - kinds["failed"]
    lines = [f"{len(rows):,} responses: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())]
    if verdicts:
        lines.append(f"accuracy {format_percent(kinds['correct'] / verdicts)} of {verdicts:,} verdicts")
    if causes:
        lines.append("failed: " + ", ".join(f"{count:,} {cause}" for cause, count in causes.most_common()))
    known = [scored for scored in rows if scored.was is not None]
    if known:
        changed = sum(scored.was != scored.outcome.kind for scored in known)
        lines.append(f"{changed:,} of {len(known):,} verdicts differ from those in the file")
    return [*lines, *_rewards_compared(rows)]


def _rewards_compared(rows: Iterable[Scored]) -> list[str]:
    """The number of rewards that changed, and both means, over the rows with two rewards."""
    two = [(s.outcome.reward, s.earned) for s in rows if s.earned is not None and not s.outcome.failed]
    if not two:
        return []
    differ = sum(not math.isclose(now, then, rel_tol=1e-9) for now, then in two)  # rewards in a file may be rounded
    now, then = np.mean(two, axis=0)
    return [f"{differ:,} of {len(two):,} rewards differ: mean {now:.3f}, in the file {then:.3f}"]


def _is_log(path: Path) -> bool:
    """Whether the rows are a run's rollouts: those of a folder, or of a Parquet file that is not one of responses."""
    return path.is_dir() or (path.suffix == SUFFIX and not _has_responses(path))


def _has_responses(path: Path) -> bool:
    try:
        import pyarrow.parquet as pq

        names = set(pq.read_schema(path).names)
    except (ImportError, OSError, ValueError):  # reading its rollouts raises with the reason
        return False
    return "prompt_id" not in names and bool(names & {*TEXT, *GOLD})


def _logged(path: Path) -> Iterator[_Task]:
    for number, row in enumerate(read_rows(path), start=1):
        if row["text"] is None or row["finish"] == "cut":  # a rollout that was cut has no verdict in training either
            continue
        foreign = row["tokens"] is None  # the log of another trainer
        if foreign and row["answer"] is None:
            raise DataError(
                f"{path}, rollout {number}: the log has no gold answer",
                remedy="write its texts with their golds as JSON lines, and score that file",
                code="data.incomplete",
            )
        task = _plain(row, number, f"{path}, rollout {number}") if foreign else (prompt_of(row), rollout_of(row))
        yield (number, row["prompt_id"], row["kind"], _earned(row)), task


def _tasks(path: Path, reads: Collection[str]) -> Iterator[_Task]:
    for row in _rows(path):
        if "logprobs" in reads:
            raise DataError(
                f"{row.where}: there are no 'logprobs', which the reward reads",
                remedy="score a run folder or a file of its rollouts, which contain them, or use a reward that does "
                "not read them",
                code="data.incomplete",
            )
        prompt, rollout = _plain(row.fields, row.number, row.where)
        yield (row.number, prompt.id, _kind(row.fields), _earned(row.fields)), (prompt, rollout)


def _rows(path: Path) -> Iterator[Record]:
    """The rows of a file that is not a run's log."""
    with errors_as(DataError, f"cannot read {path}", "name a .jsonl file or a run folder", code="data.unreadable"):
        check_kind(path, "a file", follow=True)  # opening a pipe would wait for its writer
        path.open("rb").close()
        yield from read_rows_of(path, key=None)


def _plain(row: Mapping[str, Any], number: int, where: str) -> tuple[Prompt, Rollout]:
    text = _needed(row, TEXT, where, "response")
    if not isinstance(text, str):
        raise DataError(
            f"{where}: the response is a {type(text).__name__}, and not text",
            remedy="repair or delete the line",
            code="data.malformed",
        )
    # An evaluation also writes problems without a gold, such as those whose rules are in `meta`
    gold = _first(row, GOLD) if row.keys() >= {"prompt_id", "answer"} else _needed(row, GOLD, where, "gold")
    meta = row.get("meta")
    prompt = Prompt(
        id=str(_first(row, ("id", "prompt_id"), default=number)),
        tokens=_tokens(row.get("prompt_tokens"), None),
        text=str(_first(row, QUESTION, default="")),
        answer=gold,
        task=str(row.get("task", "")),
        meta=dict(meta) if isinstance(meta, dict) else {},
    )
    tokens = _tokens(row.get("tokens"), row.get("length"))
    finish: Finish = "length" if row.get("finish") == "length" else "stop"
    return prompt, Rollout(index=0, tokens=tokens, logprobs=NOT_READ, text=text, finish=finish, version=0)


def _tokens(ids: Any, length: Any) -> IntArray:
    """The tokens of a row; without them, an array of which a reward can read only the length, if `length` is given."""
    if isinstance(ids, list) and all(_is_count(one) and one < 2**31 for one in ids):
        return np.array(ids, np.int64)
    return unsaved_tokens(length if _is_count(length) else None)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _kind(row: Mapping[str, Any]) -> Kind | None:
    """The kind of outcome in a row, if it is one of winnow's."""
    return next((kind for kind in KINDS if kind == row.get("kind")), None)


def _earned(row: Mapping[str, Any]) -> float | None:
    """The reward in a row, if it is a finite number."""
    reward = row.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        return None
    return float(reward) if math.isfinite(reward) else None


def _needed(row: Mapping[str, Any], names: tuple[str, ...], where: str, what: str) -> Any:
    value = _first(row, names)
    if value is None:
        raise DataError(
            f"{where}: there is no {what}",
            remedy=f"name it {' or '.join(map(repr, names))}",
            code="data.malformed",
        )
    return value


def _first(row: Mapping[str, Any], names: tuple[str, ...], default: Any = None) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), default)
