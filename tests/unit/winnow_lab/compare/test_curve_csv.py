from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from refusals import refused
from winnow.errors import DataError
from winnow_lab.compare.inputs import read_curves


@pytest.fixture
def read(tmp_path):
    def from_text(text, encoding="utf-8"):
        file = tmp_path / "curves.csv"
        file.write_text(text, encoding=encoding)
        return read_curves(file)

    return from_text


def test_hours_become_seconds_and_a_value_above_1_means_percent(read):
    curves, notes = read("group,seed,hours,accuracy,formatted\nGRPO,0,0.5,79.1,40\nGRPO,0,0,0.8,0.1\nGRPO,1,1,80,1\n")
    (one, first), (two, second) = curves
    assert (one, two, first.seed, second.seed) == ("GRPO", "GRPO", "0", "1")
    assert first.x["seconds"].tolist() == [0, 1800]  # sorted, unlike the rows
    assert first.y["accuracy"] == pytest.approx([0.008, 0.791])  # 0.8 percent, as the column contains 79.1
    assert first.y["formatted"] == pytest.approx([0.001, 0.4])
    assert second.y["accuracy"] == pytest.approx([0.8])
    assert ("accuracy, formatted" in notes[0], "percent" in notes[0]) == (True, True)


def test_a_column_that_may_be_in_percent_or_of_shares_is_refused(read):
    with refused(DataError, "formatted", "accuracy", "percent", code="data.malformed"):
        read("steps,accuracy,formatted\n1,0.4,70\n2,0.9,95\n")


def test_shares_stay_shares_and_lengths_lengths(read):
    curves, notes = read("steps,accuracy,length\n0,0.2,250\n10,1.0,260\n", encoding="utf-8-sig")  # as of spreadsheets
    ((group, curve),) = curves
    assert (group, curve.seed, notes) == (None, None, [])
    assert curve.y["accuracy"].tolist() == [0.2, 1.0]
    assert curve.y["length"].tolist() == [250, 260]


def test_a_group_may_lack_an_axis_or_a_measure_that_another_has(read):
    ((_, a), (_, b)), _ = read("group,minutes,steps,accuracy,length\nA,1,,0.1,\nA,2,,0.2,\nB,1,5,0.1,30\nB,2,9,0.2,\n")
    assert (set(a.x), set(a.y)) == ({"seconds"}, {"accuracy"})
    assert (set(b.x), set(b.y)) == ({"seconds", "steps"}, {"accuracy", "length"})
    assert np.array_equal(b.y["length"], [30, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ["line 1", "seconds", "minutes", "hours", "tokens_generated"]),
        ("steps,acuracy\n1,2\n", ["line 1", "'acuracy'", "'accuracy'"]),
        ("steps,steps,accuracy\n1,1,2\n", ["line 1", "'steps'"]),
        ("hours,seconds,accuracy\n1,1,2\n", ["line 1", "hours", "seconds"]),
        ("group,accuracy\nA,2\n", ["line 1", "seconds", "steps"]),
        ("steps,length\n1,2\n", ["line 1", "'accuracy'"]),
        ("steps,accuracy\n1,0.5\n\n2\n", ["line 4", "1", "2"]),
        ("steps,accuracy\n1,many\n", ["line 2", "accuracy", "'many'"]),
        ("steps,accuracy\n-1,0.5\n", ["line 2", "steps", "'-1'"]),
        ("steps,accuracy\nnan,0.5\n", ["line 2", "steps", "'nan'"]),
        ("steps,accuracy\n1,\n", ["line 2", "accuracy"]),
        ("steps,accuracy\n1,50\n2,150\n", ["line 3", "accuracy", "150", "100"]),
        ("group,steps,accuracy\n,1,50\n", ["line 2", "group"]),
        ("steps,accuracy\n1,0.5\n,0.6\n", ["line 3", "steps"]),
        ("steps,accuracy\n,0.6\n", ["line 2", "seconds", "steps"]),
        ("steps,accuracy\n1,0.5\n2,0.6\n1,0.7\n", ["line 4", "line 2", "seed"]),
        ("hours,steps,accuracy\n1,5,0.5\n2,4,0.6\n", ["line 2", "seconds"]),
        ("seed,steps,accuracy\n1,5,0.5\n,4,0.6\n", ["line 3", "seed"]),
        ('steps,accuracy\n1,"0.5\n', ["line 2", "CSV"]),
    ],
)
def test_a_bad_file_is_refused_with_its_line(read, text, named):
    with refused(DataError, "curves.csv", code="data.malformed") as caught:
        read(text)
    assert [name for name in named if name not in str(caught.value)] == []


def test_a_file_without_rows_text_or_at_all_is_refused(read, tmp_path):
    with refused(DataError, "curves.csv", code="data.empty"):
        read("steps,accuracy\n")
    (tmp_path / "model.csv").write_bytes(b"steps,accuracy\n\xff\xfe,1\n")
    with refused(DataError, "model.csv", "UTF-8", code="data.malformed"):
        read_curves(tmp_path / "model.csv")
    with refused(DataError, "none.csv", code="data.unreadable"):
        read_curves(tmp_path / "none.csv")


@pytest.mark.timeout(20)
def test_a_pipe_and_a_device_are_refused_without_reading_them(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.csv", Path("/dev/zero"), tmp_path / "link.csv"):
        with refused(DataError, path.name):
            read_curves(path)
