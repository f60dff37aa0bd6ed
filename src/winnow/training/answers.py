"""The record of an environment's answers in a run's folder, for `environment.recorded`.

    answers/
      rollout-000003-000003.rank-0.jsonl   the request of step 3, sampled with the weights of version 3, by rank 0
      evaluate-000020.rank-0.jsonl

Each line is one answer: its prompt, rollout and turn, a digest of the request, and the outcome or the reply. A line
is synced before the answer is used, and no file is removed with later rows. So a resumed run reads the answers of the
steps that it computes again, and needs no environment for them.

A rollout without an outcome was interrupted. It begins anew, because the environment's state is lost, and nothing was
trained on it. A later first turn replaces the earlier lines of a rollout. The last line of a request marks that all of
its rollouts have their outcomes, and that they may have been trained on. From then on, every digest has to match.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from winnow import ranks
from winnow.errors import DataError
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.seeds import SeedName
from winnow.state.disk import check_kind, sync
from winnow.state.folder import ANSWERS
from winnow.state.log import append, named, refusals
from winnow.verify.codec import decode_verdict, encode_verdict

Key = tuple[str, str, int]  # task and id of the prompt, index of the rollout


class Recorded(NamedTuple):
    """A line of the record."""

    asked: str
    verdict: Outcome | Reply
    where: str  # file and line


class RequestRecord:
    """The answers of one request: those that were recorded, and new ones."""

    def __init__(self, run: Path, seed: tuple[SeedName, ...], version: int, *, greedy: bool) -> None:
        """The record of a request with this seed (of which the first part is the run's), for weights of a version.

        An evaluation has one seed at all of its steps, for sampled and for greedy rollouts.

        Raises RunFolderError if it cannot be read or written, and DataError for a line that is no answer.
        """
        parts = (*seed[1:], version, *(["greedy"] if greedy else []))
        name = "-".join(f"{part:06d}" if isinstance(part, int) else str(part) for part in parts)
        folder = run / ANSWERS
        with refusals(folder):
            check_kind(folder, "a folder")
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync(folder.parent)
        self._path = folder / f"{name}.rank-{ranks.rank()}.jsonl"
        self._known: dict[Key, list[dict[int, Recorded]]] = {}  # of each file that has the rollout, by turn
        self._new: list[bytes] = []
        self._strict = set[Key]()  # rollouts of an ended request, which may have been trained on
        self._unmarked = True  # whether this rank's file has answers since its last mark of an end, or no line
        with refusals(self._path):
            check_kind(self._path, "a file")
            files = sorted(folder.glob(f"{name}.rank-*.jsonl"))
            for file in files:
                self._read(file, own=file == self._path)
            if self._path not in files:
                append(self._path, b"")
                sync(folder)

    def find(self, prompt: Prompt, rollout: Rollout) -> Outcome | Reply | None:
        """The recorded answer to the last turn of a rollout; None where the environment has to answer.

        Raises DataError if the record of a finished request answers something else.
        """
        key, turn = _key(prompt, rollout), _turn(rollout)
        known = [turns[turn] for turns in self._known.get(key, ()) if turn in turns]
        asked = _digest(prompt, rollout) if known else ""
        for recorded in known:
            if recorded.asked == asked:
                return recorded.verdict
        if known and key in self._strict:
            where = known[-1].where
            raise DataError(
                f"{where}: the answer was recorded for another conversation than rollout {rollout.index} of "
                f"{prompt.id!r} has at its turn {turn + 1}",
                remedy=f"resume with the settings and on the machine of the record, or remove {self._path.parent.name}/"
                f"{where.rpartition(':')[0]} and the files of later steps, so that the environment answers anew",
                key="environment.recorded",
                code="data.malformed",
            )
        return None

    def add(self, prompt: Prompt, rollout: Rollout, verdict: Outcome | Reply) -> None:
        """Record an answer of the environment. It may be used after `sync`."""
        task, prompt_id, index = _key(prompt, rollout)
        head = {"task": task, "prompt": prompt_id, "rollout": index, "turn": _turn(rollout)}
        self._unmarked = True
        line = json.dumps({**head, "asked": _digest(prompt, rollout)}, ensure_ascii=True)
        self._new.append(b'%b, "answer": %b}\n' % (line[:-1].encode("ascii"), encode_verdict(verdict)))

    def sync(self) -> None:
        """Write the new answers, and wait until they are on the disk. Raises RunFolderError."""
        if self._new:
            append(self._path, b"".join(self._new))
            self._new.clear()
            with refusals(self._path):
                sync(self._path)

    def end(self) -> None:
        """Mark that all rollouts of the request have their outcomes."""
        if self._unmarked:
            self._new.append(b'{"finished": true}\n')
            self.sync()
            self._unmarked = False

    def _read(self, file: Path, *, own: bool) -> None:
        data = file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if own and len(whole) < len(data):  # this process was killed while it wrote, so nothing has used the rest
            os.truncate(file, len(whole))
        known: dict[Key, dict[int, Recorded]] = {}
        for number, line in enumerate(whole.splitlines(), start=1):
            with named(file, number, "answer"):
                row = json.loads(line)
                finished = "finished" in row
                if own:
                    self._unmarked = not finished
                if finished:
                    self._strict |= known.keys()
                else:
                    key, turn, recorded = _recorded(row, f"{file.name}:{number}")
                    known[key] = {**(known.get(key, {}) if turn else {}), turn: recorded}
        for key, turns in known.items():
            # A failure counts once its request has ended: until then it may be why the run ended
            if any(
                isinstance(each.verdict, Outcome) and (key in self._strict or not each.verdict.failed)
                for each in turns.values()
            ):
                self._known.setdefault(key, []).append(turns)


def _recorded(row: Mapping[str, Any], where: str) -> tuple[Key, int, Recorded]:
    """The rollout and the turn of a line, and its answer. Raises TypeError or ValueError for any other line."""
    missing = {"task", "prompt", "rollout", "turn", "asked", "answer"} - set(row)
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    answer = json.dumps(row["answer"], separators=(",", ":")).encode()
    key = str(row["task"]), str(row["prompt"]), int(row["rollout"])
    return key, int(row["turn"]), Recorded(str(row["asked"]), decode_verdict(answer), where)


def _key(prompt: Prompt, rollout: Rollout) -> Key:
    return prompt.task, prompt.id, rollout.index


def _turn(rollout: Rollout) -> int:
    """The place of an answer in a rollout; that of one without room for another turn follows the last reply."""
    return len(rollout.turns or ()) // 2 + (rollout.finish == "length")


def _digest(prompt: Prompt, rollout: Rollout) -> str:
    """SHA-256 of all that an environment is asked."""
    asked = [prompt.text, prompt.answer, prompt.meta, rollout.turns, rollout.finish]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
