from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import json
import lzma
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from refusals import refused
from winnow.errors import DataError
from winnow.tasks.rows import BATCH, MISSING, Record, read_rows

NESTED = {
    "reward_model": {"style": "rule", "ground_truth": ["4", "4.0"]},
    "metadata": '{"answer": {"value": 7}, "a.b": 1}',
    "extra.info": {"answer": "literal"},
    "extra": {"info": {"answer": "nested"}, "info.answer": "half"},
    "empty": None,
    "text": "no JSON",
    "list": [{"a": 1}],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reward_model.ground_truth", ["4", "4.0"]),
        ("reward_model.style", "rule"),
        ("metadata.answer", {"value": 7}),
        ("metadata.answer.value", 7),
        ("metadata.a.b", 1),  # the text's own field "a.b"
        ("extra.info", {"answer": "literal"}),
        ("extra.info.answer", "literal"),  # the longest name of a field comes first
        ("extra.other", MISSING),
        ("reward_model.gold", MISSING),
        ("nothing.at.all", MISSING),
        ("empty", None),
        ("empty.inside", MISSING),
        ("list.a", MISSING),
    ],
)
def test_a_key_names_a_field_or_one_inside_a_field(key: str, value: Any) -> None:
    assert Record(NESTED, "here").find(key) == value


def test_a_field_with_the_whole_name_comes_before_one_inside() -> None:
    assert Record({"a.b": 1, "a": {"b": 2}}, "here").find("a.b") == 1
    assert Record({"a": {"b.c": 1, "b": {"c": 2}}}, "here").find("a.b.c") == 1


def test_text_that_is_not_json_has_no_fields() -> None:
    with refused(DataError, "rows:3", "'text'", "'answer'", code="data.malformed"):
        Record(NESTED, "rows:3").find("text.answer")


@pytest.mark.parametrize("value", [None, "", " \n", [], {}])
def test_an_empty_field_is_refused_with_its_row(value: Any) -> None:
    with refused(DataError, "rows:3", "'a.b'", code="data.malformed"):
        Record({"a": {"b": value}}, "rows:3").value("a.b")


def test_a_parquet_file_and_json_lines_give_the_same_rows(tmp_path: Path) -> None:
    rows = [
        {"q": f"q{i}", "m": {"gold": str(i), "n": [i, i + 1]}, "f": i / 2, "b": i % 2 == 0} for i in range(BATCH + 5)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.data")  # known by its content
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read = {name: list(read_rows(tmp_path / name)) for name in ("rows.data", "rows.jsonl")}
    assert [row.fields for row in read["rows.data"]] == [row.fields for row in read["rows.jsonl"]] == rows
    assert read["rows.data"][-1].where == f"{tmp_path / 'rows.data'}, row {len(rows)}"
    assert read["rows.jsonl"][-1].where == f"{tmp_path / 'rows.jsonl'}:{len(rows)}"


def test_values_of_arrow_are_json(tmp_path: Path) -> None:
    struct = pa.struct([("day", pa.date32()), ("name", pa.string())])
    table = pa.table(
        {
            "gold": pa.array([decimal.Decimal("3.10")], pa.decimal128(5, 2)),
            "seen": pa.array([datetime.datetime(2026, 11, 27)], pa.timestamp("s")),
            "kind": pa.array(["math"]).dictionary_encode(),
            "deep": pa.array([{"day": datetime.date(2026, 1, 2), "name": None}], struct),
            "view": pa.array(["text"], pa.string_view()),
            "bytes": pa.array([b"\0"]),
            "inside": pa.array([{"bytes": b"\0"}]),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path / "rows.parquet")
    assert row.fields == {
        "gold": "3.10", "seen": "2026-11-27 00:00:00", "kind": "math", "view": "text",
        "deep": {"day": "2026-01-02", "name": None},
    }  # fmt: skip
    assert json.loads(json.dumps(row.fields)) == row.fields


def test_only_the_named_columns_of_parquet_are_read(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "b": [{"c": 2}], "b.c": [3], "d": [4], "bb": [5]})
    pq.write_table(table, tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path / "rows.parquet", keys=["a", "b.c"])
    assert row.fields == {"a": 1, "b": {"c": 2}, "b.c": 3}


PICTURE = {"bytes": b"\x89PNG", "path": None}
NO_PICTURE = {"bytes": None, "path": None}


@pytest.mark.parametrize(
    ("values", "has"),
    [
        ([None], None),
        ([[]], None),
        ([[NO_PICTURE]], None),
        ([[PICTURE]], True),
        ([PICTURE], True),
        ([NO_PICTURE], None),
        ([""], None),
        (["a.png"], True),
    ],
)
def test_pictures_are_noticed_and_not_read(tmp_path: Path, values: list[Any], has: bool | None) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    first = values[0]
    column = pa.array(
        values, pa.list_(kind) if isinstance(first, list) else kind if isinstance(first, dict) else pa.string()
    )
    pq.write_table(pa.table({"q": ["q"], "images": column}), tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path / "rows.parquet")
    assert row.fields == {"q": "q", "images": has}


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"q": ["text"] * 1000}), tmp_path / "rows.parquet")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    with refused(DataError, "Parquet", tmp_path / "rows.parquet", key="task.train", code="data.unreadable"):
        list(read_rows(tmp_path / "rows.parquet", key="task.train"))


ROWS = [{"question": "1?", "answer": "1"}, {"question": "2?", "answer": "2"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def _zipped() -> bytes:
    with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
        archive.writestr("rows.jsonl", LINES)
    return whole.getvalue()


def _arrow(*, stream: bool) -> bytes:
    table, sink = pa.Table.from_pylist(ROWS), io.BytesIO()
    if not stream:
        pa.feather.write_feather(table, sink)
        return sink.getvalue()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


OTHER_FORMS = {
    "rows.jsonl.gz": (gzip.compress(LINES), "decompress"),
    "rows.jsonl.bz2": (bz2.compress(LINES), "decompress"),
    "rows.jsonl.xz": (lzma.compress(LINES), "decompress"),
    "rows.jsonl.zst": (b"\x28\xb5\x2f\xfd\x20", "decompress"),
    "rows.zip": (_zipped(), "decompress"),
    "rows.feather": (_arrow(stream=False), "pyarrow.feather"),
    "rows.arrow": (_arrow(stream=True), "pyarrow.ipc"),
    "rows.json": (json.dumps(ROWS).encode(), "json.load"),
    "pretty.json": (b"\xef\xbb\xbf" + json.dumps(ROWS, indent=2).encode(), "json.load"),
    "lines.json": (b"[\r\n{}\r\n]", "json.load"),
    "objects.json": ("\n".join(json.dumps(row, indent=2) for row in ROWS).encode(), "jq"),
    "rows.csv": (b"question,answer\n1?,1\n2?,2\n", "csv.DictReader"),
    "windows.csv": (b"\xef\xbb\xbfquestion,answer\r\n1?,1\r\n2?,2\r\n", "csv.DictReader"),
    "rows.jsonl": (json.dumps(ROWS).encode(), "json.load"),
    "pandas.csv": (b",question,answer\n0,1?,1\n1,2?,2\n", "csv.DictReader"),
    "semicolons.csv": (b";question;answer\r\n0;1?;1\r\n1;2?;2\r\n", "csv.DictReader"),
    "rows.tsv": (b"question\tanswer\n1?\t1\n2?\t2\n", "csv.DictReader"),
    "Ann's rows.csv": (b"question,answer\n1?,1\n2?,2\n", "csv.DictReader"),
    "Ann's rows.feather": (_arrow(stream=False), "pyarrow.feather"),
    "quoted.csv": (b'"question","answer"\n"1?","1"\n"2?","2"\n', "csv.DictReader"),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_file_in_another_form_is_refused_with_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    content, command = OTHER_FORMS[name]
    (tmp_path / name).write_bytes(content)
    with refused(DataError, tmp_path / name, key="task.train", code="data.unreadable") as caught:
        list(read_rows(tmp_path / name, key="task.train"))
    assert command in caught.value.remedy
    program = caught.value.remedy.partition("python -c ")[2]
    if program and name != "lines.json":  # the remedy is followed
        subprocess.run(["sh", "-c", f"{shlex.quote(sys.executable)} -c {program}"], check=True)
        (made,) = {*tmp_path.iterdir()} - {tmp_path / name}  # never the file itself
        assert [{key: str(value) for key, value in row.fields.items() if key} for row in read_rows(made)] == ROWS
        assert (tmp_path / name).read_bytes() == content


def test_a_converted_table_keeps_its_texts(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('question,answer\n"two\nlines?",007\n"a, b?",1.50\n', encoding="utf-8")
    with refused(DataError, file, code="data.unreadable") as caught:
        list(read_rows(file))
    program = re.search(r"python -c '(.*)' <", caught.value.remedy)
    assert program is not None
    done = subprocess.run([sys.executable, "-c", program[1]], input=file.read_bytes(), stdout=-1, check=True)
    made = tmp_path / "made.jsonl"
    made.write_bytes(done.stdout)
    assert [list(row.fields.values()) for row in read_rows(made)] == [["two\nlines?", "007"], ["a, b?", "1.50"]]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with refused(DataError, tmp_path, "folder", key="task.path", code="data.missing"):
        list(read_rows(tmp_path))


def test_a_named_column_of_bytes_is_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": pa.array(["é?".encode()]), "n": [1]}), tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path / "rows.parquet", keys=["question"])
    assert row.fields == {"question": "é?"}


def test_a_number_of_32_bits_is_the_shortest_that_rounds_to_it(tmp_path: Path) -> None:
    kind = pa.struct([("gold", pa.float32()), ("golds", pa.list_(pa.float32())), ("rate", pa.float64())])
    nested = [{"gold": 0.1, "golds": [0.1, None], "rate": 0.1}, None]
    columns = {"answer": pa.array([0.1, None], pa.float32()), "nested": pa.array(nested, kind)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    rows = [row.fields for row in read_rows(tmp_path / "rows.parquet")]
    assert rows == [{"answer": 0.1, "nested": nested[0]}, {"answer": None, "nested": None}]


def test_a_value_that_python_cannot_hold_is_refused_with_its_column(tmp_path: Path) -> None:
    far = pa.array([2**40], pa.timestamp("s"))  # the year 36812
    pq.write_table(pa.table({"question": ["q"], "seen": far}), tmp_path / "rows.parquet")
    with refused(DataError, tmp_path / "rows.parquet", "'seen'", key="task.path", code="data.unreadable"):
        list(read_rows(tmp_path / "rows.parquet"))
