"""The log of a verl run: the generations that its trainer dumps, and the metrics of its logger "file".

    RUN/rollouts/5.jsonl     of trainer.rollout_data_dir=RUN/rollouts; the folder has any name, or is RUN itself
    RUN/validation/5.jsonl   of trainer.validation_data_dir=RUN/validation; `_VALIDATION` are the folder's names
    RUN/log.jsonl            of trainer.logger=[file] with VERL_FILE_LOGGER_PATH=RUN/log.jsonl; the file has any name

A row of a dump has input, output, gts, score, step, and the keys that the trainer or its reward adds: `uid` (with which
the rows of a prompt are found), or `acc` (whether the answer is correct). Written by verl 0.9.1, whose dumps come from
`PPOTrainer._write_generations`, and its metrics from `FileLogger`.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from winnow.errors import DataError
from winnow.metrics import distinct
from winnow.records import FloatArray
from winnow.state.disk import check_kind, errors_as
from winnow.state.foreign_log import SETTINGS, ForeignGroup, ForeignLog, listed, read_settings
from winnow.state.log import ends_cut
from winnow_lab.logs.reading import digest_of, estimated_lengths, json_lines, malformed, metric, written

OWN = ("input", "output", "gts", "score", "step")
READ = (*OWN, "uid", "acc")
MEAN_LENGTH = "response_length/mean"
METRICS = {  # of a step -> winnow's
    MEAN_LENGTH: "rollout/length_mean",
    "response_length/max": "rollout/length_max",
    "response_length/clip_ratio": "rollout/truncated",
    "actor/loss": "policy/loss",
    "actor/entropy": "policy/entropy",
    "actor/grad_norm": "policy/grad_norm",
    "actor/lr": "policy/learning_rate",
    "actor/pg_clipfrac": "policy/clip_fraction",
    "actor/kl_loss": "loss/kl",
    "actor/reward_kl_penalty": "reward/kl",
    "critic/vf_loss": "critic/loss",
    "critic/vf_explained_var": "critic/explained_variance",
    "critic/values/mean": "critic/value_mean",
    "critic/grad_norm": "critic/grad_norm",
    "critic/lr": "critic/learning_rate",
    "timing_s/step": "seconds/step",
    "timing_s/gen": "seconds/generate",
    "timing_s/reward": "seconds/verify",
    "timing_s/adv": "seconds/select",
    "timing_s/values": "seconds/values",
    "timing_s/update_critic": "seconds/critic",
    "timing_s/old_log_prob": "seconds/logprobs",
    "timing_s/update_actor": "seconds/update",
    "timing_s/update_weights": "seconds/sync",
    "budget/generated_tokens": "budget/tokens_generated",  # of winnow_verl
    "budget/trained_tokens": "budget/tokens_trained",
}
SHARE_KEPT = "budget/share_kept"  # of winnow_verl
ALSO_READ = ("critic/returns/mean", "timing_s/ref", "timing_s/testing", SHARE_KEPT)
EVALUATION = re.compile(r"val-core/(.+)/(acc|reward)/mean@(\d+)")
EVALUATED = {"acc": "accuracy_sampled", "reward": "reward_mean"}
FAMILIES = (  # prefixes of metrics of verl and winnow_verl, which are not named when they are not read
    "actor/", "budget/", "critic/", "global_seqlen/", "num_turns/", "perf/", "prompt_length/", "response/",
    "response_length/", "response_length_non_aborted/", "rollout_corr/", "timing_per_token_ms/", "timing_s/",
    "tool_call_counts/", "training/", "val-aux/", "val-core/", "variance_proxy/",
)  # fmt: skip
_DUMP = re.compile(r"(\d{1,15})\.jsonl")
_LOGGED = re.compile(rb'\{"step":\s*\d+,\s*"data":\s*\{')  # the beginning of a file of the logger
_VALIDATION = re.compile(r"(?:val|valid|validation|eval|evaluation)s?(?:[_-].*)?", re.IGNORECASE)  # a folder's name
_KEY = re.compile(r"(.+)_(\d+)_(\d+)")  # of the transfer queue: prompt, session, output
_PADDING = re.compile(r"pad[0-9a-f]{32}")  # the prompt of rows that only fill a batch


class _Row(NamedTuple):
    """A row of a dump."""

    prompt: str  # its id, or its text where it has none
    session: int
    output: int  # of several in a session; the last one is the rollout
    fields: Mapping[str, Any]


class VerlLog(ForeignLog):
    """A folder with dumped generations, in itself or in one folder in it, with those of validation in another one.

    A folder of generations that is named itself is the run's, whatever is beside it. Its metrics, its settings and its
    validation are then also searched for beside it.
    """

    program = "verl"
    names = "rollouts/5.jsonl of trainer.rollout_data_dir"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._own = Path(os.path.abspath(path))
        alone = _dumps(path) and _folders(self._own.parent, training=True) == [self._own]
        self._run = self._own.parent if alone else path
        if self._run != path and not (path / SETTINGS).exists():
            self.settings = read_settings(self._run)

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return bool(_dumps(path)) or len(_folders(path, training=True)) == 1

    @classmethod
    def step_of(cls, path: Path) -> int | None:
        match = _DUMP.fullmatch(path.name)
        return int(match[1]) - 1 if match and int(match[1]) > 0 else None

    def files(self) -> dict[int, Path]:
        with errors_as(DataError, f"cannot read {self.path}", "make it readable", code="data.unreadable"):
            (folder,) = [self.path] if _dumps(self.path) else _folders(self.path, training=True)
            files: dict[int, Path] = {}
            for name in _whole(folder):
                path = folder / name
                step = self.step_of(path)
                if step is None:
                    raise malformed(path, "is of step 0, and verl trains from step 1 on")
                if step in files:
                    raise malformed(path, f"and {files[step].name} are both of step {step + 1}")
                files[step] = path
        return dict(sorted(files.items()))

    def read(self, step: int) -> list[ForeignGroup]:
        path = self.files()[step]
        rows = _rollouts_of(path, step + 1)
        mean = self._metrics().get(step + 1, {}).get(MEAN_LENGTH, math.nan)
        lengths = estimated_lengths([len(row.fields["output"]) for row in rows], mean)
        correct = _correct(path, rows)
        places: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row.prompt, []).append(place)
        self._check_sizes(path, places)
        return [_group([rows[i] for i in own], lengths[own], [correct[i] for i in own]) for own in places.values()]

    def measured(self) -> dict[int, dict[str, float]]:
        measured: dict[int, dict[str, float]] = {}
        trained = self.files()
        logged = self._metrics()
        sources = list(dict.fromkeys(match[1] for row in logged.values() for match in _evaluations(row)))
        tasks = dict(zip(sources, distinct(sources), strict=True)) if len(sources) > 1 else {}
        for step, path in self._validations().items():
            if not any(_evaluations(logged.get(step, {}))):  # the trainer's own number is by data source
                measured[step] = _validated(path, step)
        for step, row in logged.items():
            if step - 1 in trained:
                own = {METRICS[name]: value for name, value in row.items() if name in METRICS}
                own |= dict(_of_winnow_verl(trained[step - 1], step, row, own))
                if "timing_s/ref" in row:
                    own["seconds/logprobs"] = own.get("seconds/logprobs", 0.0) + row["timing_s/ref"]
                if "critic/vf_explained_var" in row and "critic/returns/mean" in row:
                    own["critic/return_mean"] = row["critic/returns/mean"]
                measured.setdefault(step - 1, {}).update(own)
            for match in _evaluations(row):
                prefix = f"eval/{tasks[match[1]]}/" if tasks else "eval/"
                measured.setdefault(step, {})[prefix + EVALUATED[match[2]]] = row[match[0]]
                if "timing_s/testing" in row:
                    measured[step]["eval/seconds"] = row["timing_s/testing"]
        return measured

    def notes(self) -> list[str]:
        files, logged = self.files(), self._metrics()
        columns = dict.fromkeys(name for path in files.values() for name in _columns(path))
        unknown = [name for row in logged.values() for name in row if not name.startswith(FAMILIES)]
        notes = [
            f"a log of verl: step {min(files)} here is its step {min(files) + 1}. It has no token ids, and does not "
            f"show which responses were cut off",
            "lengths are estimated from characters and the logged mean length"
            if self._logger_file() is not None
            else "it has no metrics: neither lengths, losses nor seconds. Set trainer.logger=[console,file] and "
            "VERL_FILE_LOGGER_PATH in this folder",
        ]
        if "uid" not in columns:
            notes.append("rows with the same input count as one prompt, as no row has a uid")
        if "acc" in columns:
            notes.append("a response is correct if its acc is 1: one with partial credit is not")
        folders = {path.parent for path in (*files.values(), *self._validations().values())}
        if cut := [f"{own.name}/{name}" for own in sorted(folders) for name in _dumps(own) if name not in _whole(own)]:
            notes.append(f"left out, because the last line is cut: {listed(cut)}")
        if extra := [name for name in columns if name not in READ]:
            notes.append(f"columns that are not read: {listed(extra)}")
        if unknown:
            notes.append(f"metrics that are not read: {listed(unknown)}")
        if lacking := [step for step in logged if step > 0 and step - 1 not in files]:
            notes.append(
                f"{len(lacking)} steps, {lacking[0]} to {lacking[-1]} of verl, have no generations: of their metrics, "
                f"only evaluations are read"
            )
        if any(SHARE_KEPT in row for row in logged.values()):
            notes.append("winnow_verl removed the rollouts that it did not keep before verl wrote its generations")
        if validated := self._validations():
            folder = next(iter(validated.values())).parent.name
            notes.append(f"{len(validated)} files in {folder} are read as evaluations, without their texts")
        if validated or any(_evaluations(row) for row in logged.values()):
            notes.append("evaluations count as sampled: the log does not show whether they were greedy")
        return notes

    def restoring(self, step: int) -> str:
        folder = next(iter(self.files().values())).parent
        return f"put {folder / f'{step + 1}.jsonl'} back"

    def _validations(self) -> dict[int, Path]:
        """verl's step -> the dump of a validation after it."""
        if _VALIDATION.fullmatch(self._own.name) and _dumps(self.path):
            return {}  # this folder was named itself
        found = [folder for folder in _folders(self._run, training=False) if folder.name != self._own.name]
        files = {int(Path(name).stem): folder / name for folder in found for name in _whole(folder)}
        if len(files) < sum(len(_whole(folder)) for folder in found):
            raise DataError(
                f"{self._run} has validations of one step twice, in {', '.join(folder.name for folder in found)}",
                remedy="keep those of one run in its folder",
                code="data.mismatch",
            )
        return dict(sorted(files.items()))

    def _check_sizes(self, path: Path, places: Mapping[str, Sequence[int]]) -> None:
        wanted = self.settings.rollouts_per_prompt
        for own in places.values():
            if wanted is not None and len(own) != wanted:
                raise DataError(
                    f"{path} has {len(own)} rollouts of a prompt, and winnow.toml names {wanted}",
                    remedy="correct rollouts_per_prompt, or restore the file",
                    key="rollouts_per_prompt",
                    code="data.mismatch",
                )

    def _metrics(self) -> Mapping[int, Mapping[str, float]]:
        """verl's step -> its metrics, NaN for those that are not read; none without a file of them."""
        path = self._logger_file()
        return {} if path is None else _logged(path, written(path))

    def _logger_file(self) -> Path | None:
        """The file of verl's file logger. Raises DataError if there are several."""
        for folder in dict.fromkeys((self.path, self._run)):
            found = [path for path in sorted(folder.glob("*.jsonl")) if not _DUMP.fullmatch(path.name)]
            found = [path for path in found if _is_of_logger(path)]
            if len(found) > 1:
                raise DataError(
                    f"{folder} has the metrics of several runs: {', '.join(path.name for path in found)}",
                    remedy="keep those of one run in its folder",
                    code="data.mismatch",
                )
            if found:
                return found[0]
        return None


@functools.lru_cache(maxsize=16)
def _logged(path: Path, when: tuple[int, ...]) -> Mapping[int, Mapping[str, float]]:
    """The rows of a file logger. Later rows of a step add to earlier ones."""
    rows: dict[int, dict[str, float]] = {}
    for number, row in json_lines(path, may_be_cut=True):
        step, data = row.get("step"), row.get("data")
        if not isinstance(step, int) or step < 0 or not isinstance(data, dict):
            raise malformed(path, f"line {number}: has no step with its metrics, 'data'")
        for name, value in data.items():
            is_read = name in METRICS or name in ALSO_READ or EVALUATION.fullmatch(name)
            rows.setdefault(step, {})[name] = metric(path, f"line {number}", name, value) if is_read else math.nan
    return rows


def _dumps(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if _DUMP.fullmatch(name))
    except OSError:
        return []


def _whole(folder: Path) -> list[str]:
    """The dumps in step order, without the newest of several if its last line is cut: verl was killed at it."""
    names = sorted(_dumps(folder), key=lambda name: int(Path(name).stem))
    return names[:-1] if len(names) > 1 and ends_cut(folder / names[-1]) else names


def _folders(path: Path, *, training: bool) -> list[Path]:
    """The folders of generations in a folder: those of training, or those of validation."""
    try:
        inner = sorted(own for own in path.iterdir() if own.is_dir())
    except OSError:
        return []
    return [own for own in inner if _dumps(own) and (_VALIDATION.fullmatch(own.name) is None) == training]


def _is_of_logger(path: Path) -> bool:
    """Whether the first line is one of the file logger, or damaged at its end and begins like one."""
    try:
        check_kind(path, "a file", follow=True)
        with path.open("rb") as file:
            return _LOGGED.match(file.read(64)) is not None
    except OSError:
        return False


def _of_winnow_verl(
    path: Path, step: int, row: Mapping[str, float], own: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Counts of all sampled rollouts: those that it did not keep have no generations, and no part in sums over rows."""
    if {"budget/tokens_generated", "budget/tokens_trained"} <= own.keys():
        yield "budget/tokens_kept", own["budget/tokens_trained"]
        yield "budget/tokens_wasted", own["budget/tokens_generated"] - own["budget/tokens_trained"]
    if 0 < row.get(SHARE_KEPT, 1.0) < 1:
        yield "budget/rollouts", float(round(len(_rollouts_of(path, step)) / row[SHARE_KEPT]))


def _rollouts_of(path: Path, step: int) -> list[_Row]:
    """The last output of every session of a step of verl, without rows that only fill the batch."""
    last: dict[tuple[str, int], _Row] = {}
    for number, fields in json_lines(path):
        _check_row(path, number, fields, step)
        row = _row(path, number, fields)
        if _PADDING.fullmatch(row.prompt) and "uid" in fields:
            continue
        key = (row.prompt, row.session)
        if key in last and last[key].output == row.output:
            raise malformed(path, f"has the uid {fields['uid']!r} twice")
        if key not in last or last[key].output < row.output:
            last[key] = row
    if not last:
        raise malformed(path, "has no rows")
    return list(last.values())


def _validated(path: Path, step: int) -> dict[str, float]:
    """The metrics of a dumped validation: the mean score, and the accuracy where each response has a verdict."""
    rows = _rollouts_of(path, step)
    scores = np.array([row.fields["score"] for row in rows if row.fields["score"] is not None], dtype=np.float64)
    found = {"eval/reward_mean": float(scores.mean())} if len(scores) else {}
    correct = _correct(path, rows)
    if None not in correct:
        found["eval/accuracy_sampled"] = correct.count(True) / len(rows)
    elif len(scores) == len(rows) and np.isin(scores, (0.0, 1.0)).all():
        found["eval/accuracy_sampled"] = float(scores.mean())
    return found


def _columns(path: Path) -> list[str]:
    try:
        return list(next(json_lines(path), (0, {}))[1])
    except DataError:  # its step is refused, or left out, where it is read
        return []


def _check_row(path: Path, number: int, fields: Mapping[str, Any], step: int) -> None:
    for name in OWN:
        if name not in fields:
            raise malformed(path, f"line {number}: has no {name!r}")
    for name in ("input", "output"):
        if not isinstance(fields[name], str):
            raise malformed(path, f"line {number}: {name!r} is no text")
    score = fields["score"]
    if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float)) or math.isinf(score)):
        raise malformed(path, f"line {number}: the score is {score!r:.40}, and not a number")
    if fields["step"] != step:
        raise malformed(path, f"line {number}: is of step {fields['step']!r:.40}")


def _row(path: Path, number: int, fields: Mapping[str, Any]) -> _Row:
    if "uid" not in fields:
        return _Row(fields["input"], number, 0, fields)
    uid = fields["uid"]
    if not isinstance(uid, str):
        raise malformed(path, f"line {number}: the uid is {uid!r:.40}, and not a text")
    match = _KEY.fullmatch(uid)
    return _Row(match[1], int(match[2]), int(match[3]), fields) if match else _Row(uid, number, 0, fields)


def _correct(path: Path, rows: Sequence[_Row]) -> list[bool | None]:
    """[rows] by the column `acc`: correct is 1, and partial credit is not. None for a row without it, whose task has
    another reward function.

    Raises DataError for what is no number between 0 and 1.
    """
    values = [row.fields.get("acc") for row in rows]
    for value in values:
        if value is not None and (not isinstance(value, (int, float)) or not 0 <= value <= 1):  # not NaN either
            raise malformed(path, f"has an 'acc' of {value!r:.40}, which is no number between 0 and 1")
    return [None if value is None else value == 1 for value in values]


def _group(rows: Sequence[_Row], lengths: FloatArray, correct: Sequence[bool | None]) -> ForeignGroup:
    first = rows[0]
    named = "uid" in first.fields
    scores = [math.nan if row.fields["score"] is None else float(row.fields["score"]) for row in rows]
    return ForeignGroup(
        prompt_id=first.prompt if named else digest_of(first.prompt),
        prompt=first.fields["input"],
        answer=first.fields["gts"],
        texts=[row.fields["output"] for row in rows],
        rewards=np.array(scores, dtype=np.float64),
        parts=[{}] * len(rows),
        kept=np.ones(len(rows), dtype=np.bool_),
        advantages=None,
        lengths=lengths,
        correct=None if None in correct else np.array(correct, dtype=np.bool_),
    )


def _evaluations(row: Mapping[str, Any]) -> list[re.Match[str]]:
    return [match for name in row if (match := EVALUATION.fullmatch(name))]
