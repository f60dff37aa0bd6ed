"""A user's file: its text is what runs, once in a process, and its errors are reported with the function's name."""

from __future__ import annotations

import importlib.util
import pickle
import py_compile
import sys
import threading
import traceback
from pathlib import Path

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.user_code import being_imported, importing, load_function


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("nowhere.py:f", "nowhere.py"),
        ("mine.so:f", "file.py:function"),
        ("mine.py:duoble", "'double'"),
        ("broken.py:f", "ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_loaded(tmp_path, path, named):
    (tmp_path / "mine.py").write_text("def double(groups):\n    return groups\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with refused(ConfigError, repr(path), named, code="config.user_code"):
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
        b"class Word:\n"
        b"    word: str = '\xe9'\n"
        b"def word(groups) -> Word | list[int]:\n"
        b"    return Word().word if groups else 1 / 0\n"
    )
    (tmp_path / "cut.py").write_text("x = 1\ndef f(groups:\n")
    word = load_function("mine.py:word", base=tmp_path)
    assert word([1]) == "\xe9"
    assert word.__annotations__["return"] != "Word | list[int]"  # winnow's own __future__ is not the file's
    with pytest.raises(ZeroDivisionError) as raised:
        word([])
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (
        str(tmp_path / "mine.py"), 7, "return Word().word if groups else 1 / 0",
    )  # fmt: skip
    with refused(ConfigError, "SyntaxError", "cut.py, line 2", code="config.user_code"):
        load_function("cut.py:f", base=tmp_path)


def test_a_file_may_hold_a_dataclass_under_postponed_annotations(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Word:\n    word: str\ndef word(groups):\n    return Word('yes').word\n"
    )
    assert load_function("mine.py:word", base=tmp_path)([]) == "yes"


def test_a_file_runs_once_until_its_text_changes(tmp_path):
    file = tmp_path / "mine.py"
    text = "from pathlib import Path\nwith (Path(__file__).parent / 'runs').open('a') as runs:\n    runs.write('x')\n"
    file.write_text(text + "def one(groups):\n    return 1\ndef two(groups):\n    return 2\n")
    for name in ("one", "two", "one"):
        load_function(f"mine.py:{name}", base=tmp_path)
    assert (tmp_path / "runs").read_text() == "x"
    file.write_text(text + "def one(groups):\n    return 3\n")
    assert load_function("mine.py:one", base=tmp_path)([]) == 3
    assert (tmp_path / "runs").read_text() == "xx"


COUNTED = """
from pathlib import Path
import time
with (Path(__file__).resolve().parent / "runs").open("a") as runs:
    runs.write("x")
time.sleep(0.05)  # a second thread comes meanwhile

class Kept:
    pass

def one(groups):
    return Kept()
"""


def test_every_path_to_a_file_leads_to_one_module(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.py").write_text(COUNTED)
    (tmp_path / "link.py").symlink_to(tmp_path / "a" / "mine.py")
    monkeypatch.chdir(tmp_path)
    functions = {
        load_function(f"{tmp_path}/a/mine.py:one"),
        load_function("a/../a/mine.py:one"),
        load_function("mine.py:one", base=Path("a")),
        load_function("link.py:one"),
    }
    assert len(functions) == 1
    assert (tmp_path / "a" / "runs").read_text() == "x"


def test_threads_share_one_run_of_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(COUNTED)
    functions = []
    threads = [
        threading.Thread(target=lambda: functions.append(load_function("mine.py:one", base=tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(functions) == 4
    assert len(set(functions)) == 1
    assert (tmp_path / "runs").read_text() == "x"


def test_an_import_in_one_thread_is_not_one_in_another():
    elsewhere = []
    with importing("mine.py"):
        thread = threading.Thread(target=lambda: elsewhere.append(being_imported()))
        thread.start()
        thread.join()
        assert being_imported() == "mine.py"
    assert (elsewhere, being_imported()) == ([""], "")


def test_an_object_of_a_files_own_class_is_pickled(tmp_path):
    (tmp_path / "my-file.v2.py").write_text(COUNTED)
    kept = load_function("my-file.v2.py:one", base=tmp_path)([])
    assert type(pickle.loads(pickle.dumps(kept))) is type(kept)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import sys\nsys.exit(2)\n", "SystemExit: 2"),
        ("from winnow.user_code import load_function\nload_function(__file__ + ':f')\n", "__main__"),
    ],
    ids=["exits", "requests itself"],
)
def test_a_file_whose_import_fails_is_not_kept(tmp_path, text, named):
    (tmp_path / "mine.py").write_text(text)
    before = set(sys.modules)
    with refused(ConfigError, tmp_path / "mine.py", named, code="config.user_code"):
        load_function("mine.py:f", base=tmp_path)
    assert {name for name in set(sys.modules) - before if "user" in name} == set()
    (tmp_path / "mine.py").write_text("def f(groups):\n    return 1\n")
    assert load_function("mine.py:f", base=tmp_path)([]) == 1


def test_a_file_imports_what_is_beside_it_and_nothing_else_does(tmp_path):
    (tmp_path / "beside_mine.py").write_text("ANSWER = 4\n")
    (tmp_path / "mine.py").write_text("import beside_mine\ndef f(groups):\n    return beside_mine.ANSWER\n")
    before = list(sys.path)
    assert load_function("mine.py:f", base=tmp_path)([]) == 4
    assert sys.path == before
    (tmp_path / "late.py").write_text("ANSWER = 5\n")
    (tmp_path / "mine.py").write_text("def f(groups):\n    import late\n")
    with pytest.raises(ModuleNotFoundError):
        load_function("mine.py:f", base=tmp_path)([])
