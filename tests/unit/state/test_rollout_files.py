"""One file per step: bounded in memory while it is written and read, small, and readable by other programs."""

from __future__ import annotations

import dataclasses
import os
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

from logged_groups import read_rollouts
from refusals import refused
from synthetic_run import RIGHT, WRONG, group
from winnow.errors import DataError, RunFolderError
from winnow.state import rollout_columns, rollout_files
from winnow.state.logbook import Logbook, read_rows
from winnow.state.rollout_columns import SCHEMA
from winnow.state.rollout_files import StepFile, files_by_step, path_of


def long_group(name="p0", *, rollouts=8, prompt=5, tokens=20, seed=0):
    rng = np.random.default_rng(seed)
    made = group(name, (RIGHT, WRONG) * (rollouts // 2), question="".join(map(chr, rng.integers(97, 122, 4 * prompt))))
    return dataclasses.replace(
        made,
        prompt=dataclasses.replace(made.prompt, tokens=rng.integers(0, 150_000, prompt)),
        rollouts=tuple(
            dataclasses.replace(r, tokens=rng.integers(0, 150_000, tokens), logprobs=-rng.exponential(1.0, tokens))
            for r in made.rollouts
        ),
    )


def test_a_row_group_is_bounded_in_tokens_and_a_group_may_span_several(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_files, "TOKENS_AT_ONCE", 80)  # three rollouts of 25
    groups = [long_group(f"p{i}", seed=i) for i in range(3)]
    Logbook(tmp_path, seed=0).write(0, {}, groups, [])
    file = pq.ParquetFile(tmp_path / "rollouts" / "step-000000.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [3] * 8
    read = list(read_rollouts(tmp_path))
    assert [entry.group.prompt.id for entry in read] == ["p0", "p1", "p2"]
    for entry, original in zip(read, groups, strict=True):
        for a, b in zip(entry.group.rollouts, original.rollouts, strict=True):
            np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(entry.group.rollouts[0].logprobs, original.rollouts[0].logprobs.astype("f4"))
    step = StepFile(tmp_path / "rollouts" / "step-000000.parquet")
    assert [row["index"] for row in step.rows(2, 10, ["index"])] == [2, 3, 4, 5, 6, 7, 0, 1]


def test_a_row_group_is_bounded_in_bytes_of_texts(tmp_path, monkeypatch):
    """The metadata of a prompt may be larger than all of its tokens. Each row group contains it once more."""
    monkeypatch.setattr(rollout_files, "BYTES_AT_ONCE", 10_500)
    made = long_group()
    tests = {"tests": "a" * 3_000}
    Logbook(tmp_path, seed=0).write(
        0, {}, [dataclasses.replace(made, prompt=dataclasses.replace(made.prompt, meta=tests))], []
    )
    step = StepFile(tmp_path / "rollouts" / "step-000000.parquet")
    assert step.parts == [(0, 3), (3, 6), (6, 8)]
    assert [row["meta"] for row in step.rows(0, 8, ["meta"])] == [tests] * 8


def test_bytes_of_texts_are_never_fewer_than_utf_8_takes():
    made = long_group(rollouts=2)
    for word in ("a", "\u00e9", "\u20ac", "\U0001f600"):
        changed = dataclasses.replace(made, prompt=dataclasses.replace(made.prompt, text=word * 5_000))
        (row, _) = rollout_columns.rows_of(changed, 0, {})
        assert len(word.encode()) * 5_000 <= row.text_bytes <= 20_300


def test_a_step_is_written_again_where_its_folder_was_moved_away_meanwhile(tmp_path):
    log = Logbook(tmp_path, seed=0)
    log.begin(0, [long_group(rollouts=2)], [])
    log._rollouts._draft[1].wait()
    (tmp_path / "rollouts").rename(tmp_path / "moved")
    log.finish(0, {})

    assert [row["index"] for row in read_rows(tmp_path)] == [0, 1]


def test_a_draft_whose_start_was_interrupted_is_removed(tmp_path, monkeypatch):
    threads, start = [], threading.Thread.start

    def interrupted(thread):
        start(thread)
        threads.append(thread)
        raise KeyboardInterrupt

    log = Logbook(tmp_path, seed=0)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.begin(0, [long_group()], [])
    log.close()
    threads[0].join()

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_rollout_above_the_bound_has_a_separate_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_files, "TOKENS_AT_ONCE", 10)
    Logbook(tmp_path, seed=0).write(0, {}, [long_group(rollouts=2)], [])
    assert StepFile(tmp_path / "rollouts" / "step-000000.parquet").parts == [(0, 1), (1, 2)]


def test_no_more_rows_are_made_than_are_written_at_once(tmp_path, monkeypatch):
    """A step is never in memory a second time as columns."""
    monkeypatch.setattr(rollout_files, "TOKENS_AT_ONCE", 80)
    made, sizes = [], []

    def rows():
        for of_prompt in (long_group(f"p{i}", seed=i) for i in range(3)):
            for row in rollout_columns.rows_of(of_prompt, 0, {}):
                made.append(row)
                yield row

    table = rollout_columns.table
    monkeypatch.setattr(
        rollout_columns, "table", lambda *a, **k: sizes.append((len(made), len(a[2]))) or table(*a, **k)
    )
    rollout_files.write_draft(tmp_path / "a.parquet", 0, 0, rows(), only_kept=False)
    assert sizes[:3] == [(4, 3), (7, 3), (10, 3)]


def test_a_prompt_is_stored_once_for_all_its_rollouts(tmp_path):
    """300 tokens and their text for 64 rollouts: the bytes of 2 rollouts, and a few for each of the others."""
    sizes = {}
    for rollouts in (2, 64):
        for prompt in (1, 300):
            folder = tmp_path / f"{rollouts}-{prompt}"
            Logbook(folder, seed=0).write(0, {}, [long_group(rollouts=rollouts, prompt=prompt, tokens=1)], [])
            sizes[rollouts, prompt] = (folder / "rollouts" / "step-000000.parquet").stat().st_size
    for_2, for_64 = (sizes[rollouts, 300] - sizes[rollouts, 1] for rollouts in (2, 64))
    assert for_2 > 300 * 2
    assert for_64 < for_2 + 62 * 8


def test_rounded_log_probs_need_16_bits(tmp_path):
    kept = long_group(rollouts=64, tokens=200)
    kept = dataclasses.replace(kept, keep=np.full(64, True))
    sizes = {}
    for name, g in {"kept": kept, "not": dataclasses.replace(kept, keep=np.full(64, False))}.items():
        Logbook(tmp_path / name, seed=0).write(0, {}, [g], [])
        file = pq.ParquetFile(tmp_path / name / "rollouts" / "step-000000.parquet")
        part = file.metadata.row_group(0)
        columns = [part.column(i) for i in range(part.num_columns)]
        sizes[name] = next(c.total_compressed_size for c in columns if c.path_in_schema.startswith("logprobs"))
    assert sizes["not"] < 2.1 * 64 * 200 < 3 * 64 * 200 < sizes["kept"]


@pytest.fixture
def run(tmp_path):
    log = Logbook(tmp_path, seed=3)
    for step in range(3):
        log.write(step, {"reward/mean": 0.5}, [long_group("p0"), long_group("p1", seed=1)], [])
    return tmp_path


def test_a_column_that_does_not_exist_is_refused_with_a_near_one(run):
    with refused(DataError, "'rewrd'", "'reward'", code="data.missing"):
        list(read_rows(run, columns=["step", "rewrd"]))


def test_a_step_without_a_file_is_refused_with_the_logged_steps(run):
    with refused(DataError, run, "step 7", 3, "0 to 2", "log.every", code="data.missing"):
        list(read_rows(run, step=7))
    for step in (0, 1):
        (run / "rollouts" / f"step-00000{step}.parquet").unlink()
    with refused(DataError, "step 0", "step 2", code="data.missing"):
        list(read_rows(run, step=0))


def test_a_file_has_exactly_one_name_for_its_step(run):
    folder = run / "rollouts"
    (folder / "step-0000002.parquet").write_bytes(b"another")
    path_of(folder, 1_234_567).write_bytes(b"")
    assert files_by_step(folder) == {step: path_of(folder, step) for step in (0, 1, 2, 1_234_567)}


def test_pandas_reads_the_folder(run):
    pandas = pytest.importorskip("pandas", reason="no dependency of winnow; installed beside it where it is tested")
    frame = pandas.read_parquet(run / "rollouts")
    assert list(frame.columns) == SCHEMA.names
    assert len(frame) == 3 * 16
    ours = list(read_rows(run))
    assert frame["reward"].tolist() == [row["reward"] for row in ours]
    assert frame["prompt"].tolist() == [row["prompt"] for row in ours]
    assert frame["tokens"].iloc[5].tolist() == ours[5]["tokens"].tolist()
    assert len(pandas.read_parquet(run / "rollouts", columns=["step", "reward"], filters=[("step", "==", 2)])) == 16


def test_datasets_reads_the_folder_and_its_files(run, tmp_path):
    datasets = pytest.importorskip("datasets", reason="of the extra hub")
    ours = list(read_rows(run))
    for where in ({"data_files": str(run / "rollouts" / "*.parquet")}, {"data_dir": str(run / "rollouts")}):
        rows = datasets.load_dataset("parquet", **where, split="train", cache_dir=str(tmp_path / "cache"))
        assert rows.column_names == SCHEMA.names
        assert rows["text"][:] == [row["text"] for row in ours]
        assert rows[5]["tokens"] == ours[5]["tokens"].tolist()
        assert rows[5]["logprobs"] == ours[5]["logprobs"].tolist()


def test_a_file_that_the_index_cannot_list_is_not_left(tmp_path):
    log = Logbook(tmp_path, seed=0)
    (tmp_path / "rollouts" / ".index.jsonl").mkdir(parents=True)
    with refused(RunFolderError, ".index.jsonl is a folder", code="run_folder.unwritable"):
        log.write(0, {}, [long_group(rollouts=2)], [])
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == [".index.jsonl"]


def test_missing_files_are_counted_and_three_of_them_named(tmp_path):
    log = Logbook(tmp_path, seed=0)
    for step in range(5):
        log.write(step, {}, [long_group(rollouts=2)], [])
    marks = log.sync(5)
    for path in files_by_step(tmp_path / "rollouts").values():
        path.unlink()
    three = [f"step-00000{step}.parquet" for step in range(3)]
    with refused(RunFolderError, *three, "2 more", code="run_folder.damaged") as error:
        Logbook(tmp_path, seed=0, marks=marks).check(tmp_path)
    assert "step-000003" not in str(error.value)


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts", "rollouts/.index.jsonl"])
def test_a_log_that_cannot_be_written_is_refused_before_training(run, monkeypatch, name):
    Logbook(run, seed=0).check()
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode, **more: path != run / name and access(path, mode, **more)
    )  # root may write all
    with refused(RunFolderError, run / name, code="run_folder.unwritable"):
        Logbook(run, seed=0).check()
