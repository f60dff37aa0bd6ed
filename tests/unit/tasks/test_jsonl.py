"""The task `jsonl` on rows as others publish them; its splits, ids and errors are in test_tasks.py."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.models.load import load_tokenizer
from winnow.records import Problem
from winnow.tasks.jsonl import jsonl
from winnow.tasks.problems import SPLITS, split_of
from winnow.tasks.templates import render

CASES = Path(os.environ.get("WINNOW_TEST_CASES", Path(__file__).parents[4] / "shared" / "cases")) / "data"
cases = pytest.mark.skipif(not CASES.is_dir(), reason="no cases: set WINNOW_TEST_CASES to their folder")


def write(file: Path, rows: Iterable[dict[str, Any]]) -> str:
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def load(folder: Path, *rows: dict[str, Any], name: str = "rows.jsonl", **options: Any) -> list[Problem]:
    return jsonl("train", train=write(folder / name, rows), **options)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_verl_rows_are_problems(tmp_path: Path, name: str) -> None:
    row = {
        "data_source": "mine",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}],
        "reward_model": {"style": "rule", "ground_truth": ["4", "4.0"]},
        "extra_info": {"index": 7},
    }
    keys = {"question": "prompt", "answer": "reward_model.ground_truth", "id": "extra_info.index"}
    (made,) = load(tmp_path, row, name=name, **keys)
    assert (made.id, made.question, made.answer) == ("7", "2 + 2?", ["4", "4.0"])
    assert [tuple(message) for message in made.earlier] == [("system", "Be brief.")]
    assert made.meta["extra_info"] == {"index": 7}
    assert made.where == f"{tmp_path / name}{':1' if name.endswith('l') else ', row 1'}"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_one_file_of_any_form_is_divided_in_the_same_way(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [{"question": f"q{i}", "answer": str(i)} for i in range(200)])
    made = {split: [p.question for p in jsonl(split, path=path)] for split in SPLITS}
    assert made == {split: [f"q{i}" for i in range(200) if split_of(f"q{i}") == split] for split in SPLITS}


WHITE_SPACE = ["What is  1+1?", "What is 1+1? ", "What is\n1+1?", "What is\r\n1+1?", "What\u00a0is 1+1?"]


@pytest.mark.parametrize("other", WHITE_SPACE)
def test_a_question_in_other_white_space_is_in_the_same_split(tmp_path: Path, other: str) -> None:
    rows = [{"question": question, "answer": "2"} for question in ("What is 1+1?", other)]
    path = write(tmp_path / "rows.jsonl", rows)
    assert sorted(len(_of(split, path)) for split in SPLITS) == [0, 0, 2]
    train, test = (write(tmp_path / f"{i}.jsonl", [row]) for i, row in enumerate(rows))
    with refused(DataError, f"{train}:1", f"{test}:1", key="task.train", code="data.malformed"):
        jsonl("train", train=train, test=test)
    assert jsonl(
        "train", train=train, test=write(tmp_path / "c.jsonl", [{"question": "What is 1+11?", "answer": "12"}])
    )


def _of(split: str, path: str) -> list[Problem]:
    try:
        return jsonl(split, path=path)
    except DataError:
        return []


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "It's 1?"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(MESSAGES),
        json.dumps(MESSAGES, indent=2),
        f" {json.dumps(MESSAGES)}\n",
        json.dumps([{"from": m["role"], "value": m["content"]} for m in MESSAGES]),
    ],
)
def test_the_json_of_messages_is_messages(tmp_path: Path, text: str) -> None:
    (made,) = load(tmp_path, {"question": text, "answer": "1"})
    assert (made.question, [tuple(message) for message in made.earlier]) == ("It's 1?", [("system", "Be brief.")])


@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[1:], [{"content": "1?", "role": "user"}]])
def test_messages_as_python_prints_them_are_refused(tmp_path: Path, messages: Any) -> None:
    with refused(DataError, f"{tmp_path}/rows.jsonl:1", "'question'", code="data.malformed"):
        load(tmp_path, {"question": str(messages), "answer": "1"})


@pytest.mark.parametrize(
    "text", ["[{'a': 1}] has how many keys?", '[{"value": 3}, {"value": 4}] has which sum?', "[1, 2]"]
)
def test_a_question_that_begins_with_a_list_is_text(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, {"question": text, "answer": "1"})[0].question == text


def test_problems_of_several_messages_differ_by_all_of_them(tmp_path: Path) -> None:
    def row(*texts: str, system: str = "Be brief.") -> dict[str, Any]:
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), texts)]  # noqa: B905
        return {"question": [{"role": "system", "content": system}, *turns], "answer": "1"}

    first, second, same, single = load(
        tmp_path, row("1?", "1", "Why?"), row("2?", "2", "Why?"), row("1?", "1", "Why?", system="Be long."), row("Why?")
    )
    assert first.asked == "1?\n\n1\n\nWhy?"
    assert len({first.id, second.id, single.id}) == 3
    assert same.id == f"{first.id}-2"
    assert single.id == load(tmp_path, {"question": "Why?", "answer": "1"})[0].id


@pytest.mark.parametrize(
    ("answer", "extract", "gold"),
    [
        ('["4", "4.0"]', None, ["4", "4.0"]),
        ('[ "4", "4.0" ]', None, ["4", "4.0"]),
        ('\n[\n "34"\n]', None, ["34"]),
        ('["34"]', None, ["34"]),
        ('["34"]', "whole", '["34"]'),
        ("[1, 2]", None, "[1, 2]"),  # an interval or a list
        ('["a", 1]', None, '["a", 1]'),
        ('["a"', None, '["a"'),
        (["1", "2"], None, ["1", "2"]),
        (7, None, 7),
        (72.0, None, 72),
        ([72.0, 0.5, 1e16], None, [72, 0.5, 10**16]),
        (True, None, True),
        ({"tests": [{"args": [1], "result": None}]}, None, {"tests": [{"args": [1], "result": None}]}),
        (r"so \boxed{a^{b}}", "boxed", "a^{b}"),
        ([r"\boxed{1}", r"\boxed{2}"], "boxed", ["1", "2"]),
        ("6 * 7 = <<6*7=42>>42\n#### 42", "hashes", "42"),
        ("#### 1,080", "hashes", "1080"),
        ("#### -1,234.50", "hashes", "-1234.50"),
        ("#### (1,2)", "hashes", "(1,2)"),
        ("#### 1,08", "hashes", "1,08"),
        ("['2']", "whole", "['2']"),
    ],
)
def test_golds(tmp_path: Path, answer: Any, extract: Any, gold: Any) -> None:
    (made,) = load(tmp_path, {"question": "q", "answer": answer}, extract=extract)
    assert (made.answer, str(made.answer)) == (gold, str(gold))


@pytest.mark.parametrize(
    ("answer", "extract"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ([1.0, float("nan")], None),
        (["1", None], None),
        (["1", " "], None),
        ('["1", ""]', None),
        ({}, None),
        ("", None),
        (None, None),
        ("42", "hashes"),
        (42, "hashes"),
        ("#### ", "hashes"),
        (r"\boxed{1", "boxed"),
        (r"\boxed{ }", "boxed"),
        ("['2', '3']", None),
    ],
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_gold_that_no_answer_equals_is_refused_with_its_row(tmp_path, name, answer, extract) -> None:
    kind = type(answer) if type(answer) is not dict else None
    if name.endswith("parquet") and kind not in (str, float):
        pytest.skip("a column has one type")
    first = {float: 1.0, str: r"#### 1 is \boxed{1}"}.get(kind, "#### 1")
    rows = [{"question": "good", "answer": first}, {"question": "bad", "answer": answer}]
    where = f"{tmp_path / name}{':2' if name.endswith('l') else ', row 2'}"
    with refused(DataError, where, "'answer'", code="data.malformed"):
        load(tmp_path, *rows, name=name, extract=extract)


def test_numbers_that_are_missing_in_other_fields_are_no_fault(tmp_path: Path) -> None:
    rates = pa.table(
        {"question": ["a", "b"], "answer": ["1", "2"], "rate": pa.array([float("nan"), None], pa.float64())}
    )
    pq.write_table(rates, tmp_path / "rows.parquet")
    made = jsonl("train", train=str(tmp_path / "rows.parquet"))
    assert [problem.answer for problem in made] == ["1", "2"]
    assert made[1].meta == {"rate": None}


@pytest.mark.parametrize("field", ["images", "image", "videos", "audio"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_row_with_an_image_is_refused_and_the_remedy_reads_it_without(tmp_path: Path, field: str, name: str) -> None:
    rows = [{"question": "a", "answer": "1", field: []}, {"question": "b", "answer": "2", field: ["b.png"]}]
    where = f"{tmp_path / name}{':2' if name.endswith('l') else ', row 2'}"
    with refused(DataError, where, field, "task.meta = []", key="task.meta", code="data.malformed"):
        load(tmp_path, *rows, name=name)
    assert [p.meta for p in load(tmp_path, *rows, name=name, meta=[])] == [{}, {}]
    assert len(load(tmp_path, rows[0], name=name)) == 1


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_meta_has_the_named_fields_alone(tmp_path: Path, name: str) -> None:
    row = {"question": "a", "answer": "1", "info": {"level": 3, "long": "text"}, "other": 1}
    (made,) = load(tmp_path, row, name=name, meta=["info.level", "none"])
    assert made.meta == {"info.level": 3, "none": None}


LAYOUTS = {
    "verl": {"prompt": [{"role": "user", "content": "1?"}], "reward_model": {"style": "rule", "ground_truth": "1"}},
    "TRL": {"prompt": "1?", "solution": "1"},
    "TRL with a solution": {"problem": "1?", "solution": r"It is \boxed{1}"},
    "open-instruct": {"messages": [{"role": "user", "content": "1?"}], "ground_truth": "1", "dataset": "math"},
    "SYNTHETIC-2": {"prompt": "1?", "verification_info": '{"ground_truth": "1"}'},
    "OpenRLHF": {"input": "1?", "label": "1"},
    "ShareGPT": {"conversations": [{"from": "human", "value": "1?"}], "target": "1"},
    "GSM8K under other names": {"problem": "1?", "output": "One.\n#### 1"},
}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize("row", LAYOUTS.values(), ids=LAYOUTS)
def test_the_remedy_for_unknown_fields_is_followed(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    """The first remedy leads to problems with the right question and gold."""
    with pytest.raises(DataError) as caught:
        load(tmp_path, row, name=name)
    options = dict(re.findall(r'task\.(\w+) = "([^"]+)"', caught.value.remedy))
    (made,) = load(tmp_path, row, name=name, **options)
    assert (made.question, made.answer) == ("1?", "1")


def test_a_field_of_some_rows_alone_is_the_fault_of_the_row(tmp_path: Path) -> None:
    rows = [{"question": "a", "m": {"gold": "1"}}, {"question": "b", "m": {"silver": "1"}}]
    with refused(DataError, f"{tmp_path}/rows.jsonl:2", "'m.gold'", key="task.answer", code="data.malformed") as caught:
        load(tmp_path, *rows, answer="m.gold")
    assert "task." not in caught.value.remedy


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    row = {"question": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1?"}], "answer": "1"}
    problems, tokenizer = load(tmp_path, row), load_tokenizer("bundled")
    with refused(ConfigError, "'chat'", "rows.jsonl:1", key="prompt.template", code="config.combination"):
        render(problems, tokenizer, template="r1_zero", max_prompt_tokens=512)
    (own,) = render(problems, tokenizer, template="chat", max_prompt_tokens=512).prompts
    (other,) = render(problems, tokenizer, template="chat", system="Reason.", max_prompt_tokens=512).prompts
    assert "Be brief." in own.text
    assert "Reason." in other.text
    assert "Be brief." not in other.text
    assert all("1?" in prompt.text for prompt in (own, other))


@cases
@pytest.mark.parametrize(
    ("name", "options", "golds"),
    [
        ("verl_rows", {"question": "prompt", "answer": "reward_model.ground_truth"}, ["0", "2", "4"]),
        ("chat_messages", {"question": "prompt"}, ["0", "2", "4"]),
        ("gsm_raw", {"extract": "hashes"}, ["0", "1001", "2004"]),
    ],
)
def test_cases_are_read(name: str, options: dict[str, Any], golds: list[str]) -> None:
    made = jsonl("train", train=str(CASES / f"{name}.jsonl"), **options)
    assert [problem.answer for problem in made[:3]] == golds


@cases
def test_the_case_with_nan_is_refused_with_its_first_row() -> None:
    rows = [json.loads(line) for line in (CASES / "nan_answers.jsonl").read_text().splitlines()]
    first = next(place for place, row in enumerate(rows, start=1) if row["answer"] != row["answer"])
    with refused(DataError, f"nan_answers.jsonl:{first}:", "nan", code="data.malformed"):
        jsonl("train", train=str(CASES / "nan_answers.jsonl"))


def test_a_named_column_of_bytes_is_read_beside_all_others(tmp_path: Path) -> None:
    columns = {"question": pa.array([b"1?"]), "answer": ["1"], "raw": pa.array([b"\0"]), "level": [3]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    (made,) = jsonl("train", train=str(tmp_path / "rows.parquet"))
    assert (made.question, made.answer, made.meta) == ("1?", "1", {"level": 3})


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_row_with_rules_needs_no_gold(tmp_path: Path, name: str) -> None:
    rules = [{"rule": "length_constraints:number_words", "arguments": {"num_words": 9}}]
    test = write(tmp_path / f"test-{name}", [{"question": "Describe salt.", "rules": rules}])
    (made,) = load(tmp_path, {"question": "Describe bread.", "rules": rules}, name=name, test=test)
    assert (made.answer, made.meta["rules"]) == (None, rules)
    with refused(DataError, "'answer'", key="task.answer"):
        load(tmp_path, {"question": "Describe bread.", "rules": rules}, name=name, meta=[])
