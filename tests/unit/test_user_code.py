"""A user's own file: its text is what runs, once in a process, and what it raises is said by name."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import py_compile
import sys
import threading
import traceback

import pytest

from winnow.errors import ConfigError
from winnow.user_code import being_imported, importing, load_function


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.py:f", "there is no file"),
        ("mine.py:duoble", "has no function 'duoble'; did you mean 'double'"),
        ("broken.py:f", "raised ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_loaded(tmp_path, path, message):
    (tmp_path / "mine.py").write_text("def double(groups):\n    return groups\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=message):
        load_function(path, base=tmp_path)


def test_the_text_of_a_file_is_what_runs_and_not_compiled_code_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, other = tmp_path / "mine.py", tmp_path / "other.py"
    file.write_text("def half(groups):\n    return 'as read'\n")
    other.write_text("def half(groups):\n    return 'planted'\n")
    cached = importlib.util.cache_from_source(str(file))
    py_compile.compile(str(other), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    other.unlink()
    assert load_function("mine.py:half", base=tmp_path)(()) == "as read"
    (tmp_path / "fresh.py").write_text("def half(groups):\n    return 0.5\n")
    load_function("fresh.py:half", base=tmp_path)
    assert not list((tmp_path / "__pycache__").glob("fresh*"))  # and none is made


def test_a_file_is_read_as_an_import_reads_it(tmp_path):
    (tmp_path / "mine.py").write_bytes(
        b"# -*- coding: latin-1 -*-\n"
        b"from dataclasses import dataclass\n"
        b"@dataclass\n"
        b"class Said:\n"
        b"    word: str = '\xe9'\n"
        b"def word(groups) -> Said | list[int]:\n"
        b"    return Said().word if groups else 1 / 0\n"
    )
    (tmp_path / "cut.py").write_text("x = 1\ndef f(groups:\n")
    word = load_function("mine.py:word", base=tmp_path)
    assert word([1]) == "\xe9"
    assert word.__annotations__["return"] != "Said | list[int]"  # winnow's own __future__ is not the file's
    with pytest.raises(ZeroDivisionError) as raised:
        word([])
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (
        str(tmp_path / "mine.py"), 7, "return Said().word if groups else 1 / 0",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"importing .*cut\.py raised SyntaxError: .*\(cut\.py, line 2\)"):
        load_function("cut.py:f", base=tmp_path)


def test_a_file_may_hold_a_dataclass_under_postponed_annotations(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Said:\n    word: str\ndef word(groups):\n    return Said('yes').word\n"
    )
    assert load_function("mine.py:word", base=tmp_path)([]) == "yes"
