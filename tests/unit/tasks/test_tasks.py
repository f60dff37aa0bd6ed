from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.records import Problem
from winnow.registry import members
from winnow.tasks.jsonl import jsonl
from winnow.tasks.mathematics import gsm8k, math, math500
from winnow.tasks.problems import SPLITS, split_of, train_or_validation
from winnow.tasks.rows import read_rows

REPOSITORY = Path(__file__).parents[3]
DATA = Path(os.environ.get("WINNOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
real_data = pytest.mark.skipif(not DATA.is_dir(), reason="no real problems: set WINNOW_TEST_DATA to their folder")


def write(file: Path, rows: Iterable[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def ids(problems: list[Problem]) -> set[str]:
    return {problem.id for problem in problems}


def questions(problems: list[Problem]) -> list[str]:
    return [problem.question for problem in problems]


def word(split: str, *, of: Callable[[str], str] = split_of) -> str:
    """A question whose hash is in a split."""
    return next(text for text in map(str, range(1000)) if of(text) == split)


def test_importing_the_room_registers_the_tasks() -> None:
    assert {"arithmetic", "gsm8k", "jsonl", "math", "math500", "reasoning_gym"} <= set(members("task"))


# splits


def test_splits_follow_the_text_in_the_promised_shares() -> None:
    drawn = [split_of(str(i)) for i in range(20_000)]
    assert [drawn.count(split) / 20_000 for split in SPLITS] == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    held_out = [train_or_validation(str(i)) for i in range(20_000)]
    assert [held_out.count(split) / 20_000 for split in SPLITS] == pytest.approx([0.9, 0.1, 0.0], abs=0.01)


def test_splits_never_move() -> None:
    assert [i for i in range(40) if split_of(str(i)) == "validation"] == [13, 24, 28, 31, 38]
    assert [i for i in range(40) if split_of(str(i)) == "test"] == [4, 20, 37]
    assert [i for i in range(40) if train_or_validation(str(i)) == "validation"] == [19, 20, 33]


@pytest.mark.parametrize("task", [gsm8k, jsonl, math, math500])
def test_an_unknown_split(task: Callable[..., Any], tmp_path: Path) -> None:
    with refused(ConfigError, "'valid'", "'validation'", code="config.value"):
        task("valid", path=str(tmp_path))


# gsm8k


def test_gsm8k_takes_the_gold_and_its_validation_from_train(tmp_path: Path) -> None:
    learn, check = word("train", of=train_or_validation), word("validation", of=train_or_validation)
    write(
        tmp_path / "gsm8k_train.jsonl",
        [
            {"question": learn, "answer": "4 * 270 = <<4*270=1080>>1,080\n#### 1,080"},
            {"question": check, "answer": "2 - 5\n#### -3"},
        ],
    )
    write(tmp_path / "gsm8k_test.jsonl", [{"question": "q", "answer": "#### 2,520,000"}])
    made = {split: gsm8k(split, path=str(tmp_path)) for split in SPLITS}
    assert {split: [(p.question, p.answer) for p in problems] for split, problems in made.items()} == {
        "train": [(learn, "1080")],
        "validation": [(check, "-3")],
        "test": [("q", "2520000")],
    }
    assert made["train"][0].meta == {"solution": "4 * 270 = <<4*270=1080>>1,080\n#### 1,080"}
    assert made["train"][0].task == "gsm8k"


def test_the_files_of_the_hub_are_read_by_their_own_names(tmp_path: Path) -> None:
    for split in ("train", "test"):
        rows = [{"question": f"{split} {i}", "answer": "#### 2"} for i in range(30)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}-00000-of-00001.parquet")
    made = {split: questions(gsm8k(split, path=str(tmp_path))) for split in SPLITS}
    assert made["test"] == [f"test {i}" for i in range(30)]
    assert sorted(made["train"] + made["validation"]) == sorted(f"train {i}" for i in range(30))
    assert questions(gsm8k("test", path=str(tmp_path / "test-00000-of-00001.parquet"))) == made["test"]
    with refused(DataError, "train.parquet", key="task.path", code="data.missing"):
        gsm8k("train", path=str(tmp_path / "test-00000-of-00001.parquet"))


def test_gsm8k_from_a_single_file_follows_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "small_test.jsonl", [{"question": "q", "answer": "#### 2"}])
    assert questions(gsm8k("test", path=path)) == ["q"]
    with refused(DataError, path, "train.jsonl", key="task.path", code="data.missing"):
        gsm8k("validation", path=path)


def test_gsm8k_names_the_line_without_a_gold(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", [{"question": "q", "answer": "#### 2"}, {"question": "r", "answer": "2"}])
    with refused(DataError, f"{path}:2", "'answer'", code="data.malformed"):
        gsm8k("test", path=path)


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    for path in ("nowhere", "some/test.jsonl"):
        with refused(DataError, path, "winnow fetch", key="task.path", code="data.missing"):
            gsm8k("test", path=path)
    with refused(DataError, tmp_path, "gsm8k_test.jsonl", "test.jsonl", key="task.path", code="data.missing"):
        gsm8k("test", path=str(tmp_path))


def test_a_split_without_problems_is_an_error(tmp_path: Path) -> None:
    question = word("train", of=train_or_validation)
    path = write(tmp_path / "train.jsonl", [{"question": question, "answer": "#### 2"}])
    with refused(DataError, "validation", path, code="data.empty"):
        gsm8k("validation", path=path)


@real_data
def test_real_gsm8k() -> None:
    made = {split: gsm8k(split, path=str(DATA)) for split in SPLITS}
    assert len(made["train"]) + len(made["validation"]) == 7473
    assert 650 < len(made["validation"]) < 850
    assert len(made["test"]) == 1319
    assert len(set().union(*map(ids, made.values()))) == 7473 + 1319
    golds = [p.answer for problems in made.values() for p in problems]
    assert all(gold.lstrip("-").isdigit() for gold in golds)
    assert "109200000" in golds
    assert made["test"] == gsm8k("test", path=str(DATA / "gsm8k_test.jsonl"))


# the hub


def test_a_hub_id_reads_the_published_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, name: str | None, *, split: str) -> list[dict[str, str]]:
        return [{"question": f"{path} {name} {split}", "answer": "#### 1"}, {"question": "r", "answer": "none"}][:rows]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    rows = 1
    assert questions(gsm8k("test")) == ["openai/gsm8k main test"]
    rows = 2
    with refused(DataError, "openai/gsm8k main test:2", code="data.malformed"):
        gsm8k("test")


def test_the_hub_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused(DataError, "'winnow-rl[hub]'", key="task.path", code="data.not_installed"):
        gsm8k("train")


def test_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, name: str | None, *, split: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with refused(DataError, "HuggingFaceH4/MATH-500", "no route", key="task.path", code="data.unreadable"):
        math500("test")


# math


def test_math_takes_the_last_box_with_its_braces_balanced(tmp_path: Path) -> None:
    write(
        tmp_path / "math_test.jsonl",
        [
            {
                "problem": "a",
                "solution": r"\boxed{1}, no: \boxed{\frac{1}{\sqrt{2}}}",
                "level": 3,
                "subject": "Algebra",
            },
            {"problem": "b", "solution": r"\boxed{\left\{ x : x^{2} \right\}}"},
            {"problem": "c", "solution": r"so \boxed 7", "answer": "7"},
        ],
    )
    made = math("test", path=str(tmp_path))
    assert [p.answer for p in made] == [r"\frac{1}{\sqrt{2}}", r"\left\{ x : x^{2} \right\}", "7"]
    assert made[0].meta["level"] == 3
    assert made[0].meta["subject"] == "Algebra"
    assert "problem" not in made[0].meta


def test_math_names_the_line_without_a_box(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", [{"problem": "a", "solution": r"\boxed{1"}])
    with refused(DataError, f"{path}:1", "\\boxed", code="data.malformed"):
        math("test", path=path)


def test_math_takes_the_answer_where_there_is_no_solution(tmp_path: Path) -> None:
    lacking: list[dict[str, object]] = [{}, {"solution": None}, {"solution": ""}]
    rows = [{"problem": str(number), "answer": "x^{2}", **more} for number, more in enumerate(lacking)]
    assert [p.answer for p in math("test", path=write(tmp_path / "test.jsonl", rows))] == ["x^{2}"] * 3


def test_math_is_read_by_its_published_halves_and_tested_on_other_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 subsets, one per subject, are one data set; the test problems come from a folder with MATH-500 in it."""
    loaded = []

    def load_dataset(path: str, name: str | None, *, split: str) -> list[dict[str, str]]:
        loaded.append((path, name, split))
        return [{"problem": f"{name} {number}", "solution": r"\boxed{1}"} for number in range(10)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    hub_id = "EleutherAI/hendrycks_math"
    made = [p for split in ("train", "validation") for p in math(split, path=hub_id)]
    assert len(ids(made)) == 7 * 10
    assert {p for p, _, _ in loaded} == {hub_id}
    assert {split for _, _, split in loaded} == {"train"}
    assert len({name for _, name, _ in loaded}) == 7

    loaded.clear()
    path = write(tmp_path / "math500.jsonl", [{"problem": "a", "solution": r"\boxed{2}"}])
    assert [p.answer for p in math("test", path=hub_id, test_path=path)] == ["2"]
    assert [p.answer for p in math("test", path=hub_id, test_path=str(tmp_path))] == ["2"]
    assert not loaded
    with refused(DataError, "nowhere.jsonl", key="task.test_path", code="data.missing"):
        math("test", path=hub_id, test_path=str(tmp_path / "nowhere.jsonl"))


def test_math500_is_for_evaluation(tmp_path: Path) -> None:
    path = write(tmp_path / "any.jsonl", [{"problem": "a", "answer": "x^{2}", "solution": "s", "level": 1}])
    made = math500("test", path=path)
    assert [(p.answer, p.meta) for p in made] == [("x^{2}", {"answer": "x^{2}", "solution": "s", "level": 1})]
    with refused(ConfigError, "math500", "train", code="config.unsupported"):
        math500("train", path=path)


@real_data
def test_real_solutions_box_their_answers(tmp_path: Path) -> None:
    made = math500("test", path=str(DATA))
    (tmp_path / "math_test.jsonl").write_bytes((DATA / "math500.jsonl").read_bytes())
    assert len(ids(made)) == 500
    assert [p.answer for p in math("test", path=str(tmp_path))] == [p.answer for p in made]


# jsonl


def test_jsonl_maps_fields_and_keeps_the_rest(tmp_path: Path) -> None:
    rows = [{"q": "x", "gold": ["1", "1.0"], "key": 7, "unit": "m"}, {"q": "y", "gold": 0, "key": 8}]
    made = jsonl("test", test=write(tmp_path / "t.jsonl", rows), question="q", answer="gold", id="key")
    assert made == [
        Problem(id="7", question="x", answer=["1", "1.0"], task="jsonl", meta={"unit": "m"}),
        Problem(id="8", question="y", answer=0, task="jsonl"),
    ]


@pytest.mark.parametrize(
    ("row", "given", "named", "not_named"),
    [
        (
            {"problem": "1 + 1?", "solution": "2"},
            {},
            ['task.question = "problem"', 'task.answer = "solution"'],
            ["boxed"],
        ),
        ({"problem": "1 + 1?", "solution": r"so \boxed{2}", "answer": "2"}, {}, ['"problem"'], ['"solution"', "boxed"]),
        ({"problem": "1 + 1?", "solution": r"so \boxed{2}"}, {}, ['"problem"', '"solution"', "task.extract"], []),
        ({"problem": "1?", "solution": "1"}, {"question": "problem"}, ['task.answer = "solution"'], ["task.question"]),
        ({"frage": "1?", "antwort": "1"}, {}, ["frage", "antwort", "task.question"], []),
        ({}, {}, ["task.question"], []),
    ],
)
def test_jsonl_names_the_fields_that_hold_question_and_answer(tmp_path, row, given, named, not_named) -> None:
    path = write(tmp_path / "mine.jsonl", [row])
    with refused(DataError, f"{path}:1", *row, *named, code="data.malformed") as caught:
        jsonl("train", path=path, **given)
    assert caught.value.key in ("task.question", "task.answer")
    assert not any(name in caught.value.remedy for name in not_named)


def test_ids_follow_the_question_not_the_place(tmp_path: Path) -> None:
    rows = [{"question": text, "answer": "a"} for text in ("x", "y", "x")]
    made = jsonl("train", train=write(tmp_path / "a.jsonl", rows))
    turned = jsonl("train", train=write(tmp_path / "b.jsonl", rows[:0:-1]))
    assert made[2].id == f"{made[0].id}-2"
    assert ids(turned) == {made[0].id, made[1].id}


def test_jsonl_can_take_the_gold_from_a_box(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"question": "x", "answer": r"hence \boxed{a^{b}}"}])
    assert jsonl("test", test=path, extract="boxed")[0].answer == "a^{b}"
    path = write(tmp_path / "u.jsonl", [{"question": "x", "answer": r"hence \boxed{a"}])
    with refused(DataError, f"{path}:1", "'answer'", key="task.extract", code="data.malformed"):
        jsonl("test", test=path, extract="boxed")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b'{"question": "x", "answer"', ("JSON",)),
        (b'{"question": "\xff", "answer": "a"}', ("UTF-8",)),
        (b"[" * 100_000, ("JSON",)),
        (b'{"question": "x", "answer": ' + b"[" * 900 + b"]" * 900 + b"}", (100,)),
        (b'{"question": "x", "answer": "a", "m": ' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}", (100,)),
        (b'["x", "a"]', ("list", "JSON")),
        (b'{"question": "x"}', ("'answer'", "'question'")),
        (b'{"question": "x", "answer": null}', ("'answer'",)),
        (b'{"question": "x", "answer": " "}', ("'answer'",)),
        (b'{"question": "x", "answer": []}', ("'answer'",)),
        (b'{"qestion": "x", "answer": "a"}', ("'question'", "'qestion'")),
        (b'{"question": 3, "answer": "a"}', ("'question'", "int")),
        (b'{"question": "\\ud800", "answer": "a"}', ("'question'", "UTF-8")),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, named: tuple[object, ...]) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b'{"question": "good", "answer": "a"}\r\n\n' + line + b"\n")
    with refused(DataError, f"{file}:3", *named, code="data.malformed"):
        jsonl("train", train=str(file))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path, encoding: str, newline: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(f'{{"question": "é", "answer": "1"}}{newline}{{"question": "e", "answer": "1"}}'.encode(encoding))
    with refused(DataError, file, code="data.malformed") as caught:
        jsonl("train", train=str(file))
    assert "UTF-8" in caught.value.remedy


@pytest.mark.parametrize("role", ["question", "answer"])
@pytest.mark.parametrize("place", [1, 3])
def test_a_field_that_other_lines_have_is_the_fault_of_the_line(tmp_path: Path, role: str, place: int) -> None:
    rows = [{"question": f"q{i}", "answer": "1", "solution": "1"} for i in range(3)]
    del rows[place - 1][role]
    path = write(tmp_path / "a.jsonl", rows)
    with refused(DataError, f"{path}:{place}", repr(role), key=f"task.{role}", code="data.malformed") as caught:
        jsonl("train", train=path)
    assert "task." not in caught.value.remedy


def test_lines_end_at_line_breaks_of_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "u.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + '{"question": "a\u2028b \u0085😀"}\r\n\n{"question": "c"}'.encode())
    read = [(record.fields["question"], record.where) for record in read_rows(file)]
    assert read == [("a\u2028b \u0085😀", f"{file}:1"), ("c", f"{file}:3")]


def test_jsonl_refuses_a_question_in_two_splits(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", [{"question": "x", "answer": "1"}, {"question": "y", "answer": "1"}])
    test = write(tmp_path / "b.jsonl", [{"question": "z", "answer": "1"}, {"question": "y", "answer": "1"}])
    for split in ("train", "test"):
        with refused(DataError, f"{train}:2", f"{test}:2", key=f"task.{split}", code="data.malformed"):
            jsonl(split, train=train, test=test)


def test_jsonl_refuses_a_repeated_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": q, "answer": "1", "key": 7} for q in "xy"])
    with refused(DataError, f"{path}:2", "'7'", f"{path}:1", key="task.id", code="data.malformed"):
        jsonl("train", train=path, id="key")


def test_jsonl_wants_one_way_of_naming_files(tmp_path: Path) -> None:
    for code, options in (
        ("config.missing_key", {}),
        ("config.combination", {"path": "a.jsonl", "test": "b.jsonl"}),
    ):
        with refused(ConfigError, "task.train", key="task.path", code=code):
            jsonl("test", **options)
    with refused(ConfigError, key="task.validation", code="config.missing_key"):
        jsonl("validation", train="a.jsonl")
    with refused(DataError, "a.jsonl", Path.cwd(), key="task.train", code="data.missing"):
        jsonl("train", train="a.jsonl")
    empty = write(tmp_path / "empty.jsonl", [])
    with refused(DataError, "train", empty, code="data.empty"):
        jsonl("train", path=empty)


@real_data
@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("aime24", 30, {"id": "id"}),
        ("amc23", 40, {"id": "id"}),
        ("minerva_math", 272, {"extract": "boxed"}),
        ("olympiad_bench", 675, {"id": "id"}),
    ],
)
def test_real_evaluation_sets(name: str, count: int, options: dict[str, Any]) -> None:
    made = jsonl("test", test=str(DATA / f"{name}.jsonl"), question="problem", **options)
    assert len(ids(made)) == count


def test_a_single_file_of_another_ending_follows_its_name_too(tmp_path: Path) -> None:
    path = write(tmp_path / "train.json", [{"question": "q", "answer": "#### 2"}])
    with refused(DataError, path, "test.json", key="task.path", code="data.missing"):
        gsm8k("test", path=path)
