from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from winnow.errors import DataError
from winnow.report.comparison.curve_csv import read_curves


@pytest.fixture
def read(tmp_path):
    def from_text(text, encoding="utf-8"):
        file = tmp_path / "curves.csv"
        file.write_text(text, encoding=encoding)
        return read_curves(file)

    return from_text


def test_hours_are_seconds_and_a_value_above_one_means_percent(read):
    found = read("group,seed,hours,accuracy,formatted\nGRPO,0,0.5,79.1,40\nGRPO,0,0,0.8,0.1\nGRPO,1,1,80,1\n")
    (one, first), (two, second) = found.curves
    assert (one, two, first.seed, second.seed) == ("GRPO", "GRPO", "0", "1")
    assert first.x["seconds"].tolist() == [0, 1800]  # in order, whatever that of the rows
    assert first.y["accuracy"] == pytest.approx([0.008, 0.791])  # 0.8 percent, as the column holds 79.1
    assert first.y["formatted"] == pytest.approx([0.001, 0.4])
    assert second.y["accuracy"] == pytest.approx([0.8])
    assert "accuracy, formatted taken as percent, as a value is above 1" in found.notes[0]


def test_a_column_that_may_be_in_percent_or_of_shares_is_refused(read):
    with pytest.raises(
        DataError, match="formatted is in percent, and accuracy, which is nowhere above 1, may be either"
    ):
        read("steps,accuracy,formatted\n1,0.4,70\n2,0.9,95\n")


def test_shares_stay_shares_and_lengths_lengths(read):
    found = read("steps,accuracy,length\n0,0.2,250\n10,1.0,260\n", encoding="utf-8-sig")  # as spreadsheets write it
    ((group, curve),) = found.curves
    assert (group, curve.seed, found.notes) == (None, None, ())
    assert curve.y["accuracy"].tolist() == [0.2, 1.0]
    assert curve.y["length"].tolist() == [250, 260]


def test_a_group_may_lack_an_axis_or_a_measure_that_another_has(read):
    found = read("group,minutes,steps,accuracy,length\nA,1,,0.1,\nA,2,,0.2,\nB,1,5,0.1,30\nB,2,9,0.2,\n")
    (_, a), (_, b) = found.curves
    assert (set(a.x), set(a.y)) == ({"seconds"}, {"accuracy"})
    assert (set(b.x), set(b.y)) == ({"seconds", "steps"}, {"accuracy", "length"})
    assert np.array_equal(b.y["length"], [30, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no column to draw over; give one of seconds, minutes, hours, tokens_generated"),
        ("steps,accuracy\n", "there is no row below the header"),
        ("steps,acuracy\n1,2\n", "line 1: there is no column 'acuracy'; did you mean 'accuracy'?"),
        ("steps,steps,accuracy\n1,1,2\n", "line 1: two columns are called 'steps'"),
        ("hours,seconds,accuracy\n1,1,2\n", "line 1: hours and seconds are one axis"),
        ("group,accuracy\nA,2\n", "line 1: no column to draw over"),
        ("steps,length\n1,2\n", "line 1: there is no column 'accuracy'"),
        ("steps,accuracy\n1,0.5\n\n2\n", "line 4: 1 values under 2 columns"),
        ("steps,accuracy\n1,many\n", "line 2, accuracy: 'many' is no number of 0 or more"),
        ("steps,accuracy\n-1,0.5\n", "line 2, steps: '-1' is no number"),
        ("steps,accuracy\nnan,0.5\n", "line 2, steps: 'nan' is no number"),
        ("steps,accuracy\n1,\n", "line 2: the accuracy is empty"),
        ("steps,accuracy\n1,50\n2,150\n", "line 3, accuracy: 150 is above 100 percent"),
        ("group,steps,accuracy\n,1,50\n", "line 2: the group is empty"),
        ("steps,accuracy\n1,0.5\n,0.6\n", "line 3: steps is empty, where other points of the curve have it"),
        ("steps,accuracy\n,0.6\n", "line 2: no value to draw over"),
        ("steps,accuracy\n1,0.5\n2,0.6\n1,0.7\n", "line 4: the same group, seed and place as line 2"),
        ("hours,steps,accuracy\n1,5,0.5\n2,4,0.6\n", "falls while another axis grows"),
        ("seed,steps,accuracy\n1,5,0.5\n,4,0.6\n", "line 3: no seed, where other rows of the group have one"),
        ('steps,accuracy\n1,"0.5\n', "not CSV"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(read, text, said):
    with pytest.raises(DataError) as error:
        read(text)
    assert said in str(error.value)
    assert "curves.csv" in str(error.value)


def test_what_is_no_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "model.csv").write_bytes(b"steps,accuracy\n\xff\xfe,1\n")
    with pytest.raises(DataError, match="is not text in UTF-8"):
        read_curves(tmp_path / "model.csv")
    with pytest.raises(DataError, match="cannot read"):
        read_curves(tmp_path / "none.csv")


@pytest.mark.timeout(20)
def test_a_pipe_and_a_device_are_refused_and_neither_waited_for_nor_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.csv", Path("/dev/zero"), tmp_path / "link.csv"):
        with pytest.raises(DataError, match=path.name):
            read_curves(path)
