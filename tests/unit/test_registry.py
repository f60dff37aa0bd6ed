"""Names, files and functions; every refusal names its remedy."""

from __future__ import annotations

import importlib.util
import py_compile
import sys
import traceback

import numpy as np
import pytest

from winnow.errors import ConfigError
from winnow.registry import aliases, bind, members, register, resolve
from winnow.user_code import load_function


def test_a_name_an_alias_and_the_function_itself_are_one():
    by_name = resolve("loss", "clip")
    assert resolve("loss", "grpo_clip").function is by_name.function
    assert resolve("loss", by_name.function) == by_name


def test_published_names_say_what_else_they_presume():
    assert resolve("loss", "no_baseline").presumes == {"advantage": "raw"}
    assert aliases("loss") == {"grpo_clip": "clip", "no_baseline": "reinforce", "reinforce_with_baseline": "reinforce"}
    assert "no_baseline" not in members("loss")


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match="no loss is called 'clp'; did you mean 'clip'"):
        resolve("loss", "clp")


def test_an_unknown_option_gets_a_suggestion():
    with pytest.raises(ConfigError, match=r"loss\.clip_hgih.*no such option; did you mean 'clip_high'"):
        bind(resolve("loss", "clip"), {"clip_hgih": 0.3}, key="loss")


def test_an_option_of_the_wrong_type_names_its_key():
    with pytest.raises(ConfigError, match=r"select\.keep_per_prompt is 'four'"):
        bind(resolve("selector", "max_variance"), {"keep_per_prompt": "four"}, key="select")


def test_an_option_without_default_must_be_given():
    def mine(kept, *, scale: float):
        return np.full(len(kept.lengths), scale)

    with pytest.raises(ConfigError, match=r"weighting\.scale is missing"):
        bind(resolve("weighting", mine), {}, key="weighting")


def test_a_function_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def double(groups, *, by: float = 2.0):\n    return [g.rewards * by for g in groups]\n"
    )
    entry = resolve("advantage", "mine.py:double", base=tmp_path)
    assert list(entry.options) == ["by"]
    assert bind(entry, {"by": 3.0}, key="advantage")([]) == []


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


def test_a_wrong_signature_is_refused():
    def too_many(groups, extra):
        return groups

    def open_ended(groups, **anything):
        return groups

    for function in (too_many, open_ended):
        with pytest.raises(ConfigError, match=r"must take exactly \(groups\) by position"):
            resolve("advantage", function)


def test_a_taken_name_is_refused():
    with pytest.raises(ConfigError, match="already registered"):

        @register("loss", "clip")
        def other(out, mb):
            return out.logprobs, {}


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"basline": "none"}, "the family advantage has no trait 'basline'; did you mean 'baseline'"),
        ({"baseline": "gruop"}, "the trait 'baseline' of the family advantage is 'gruop': input should be 'group'"),
        ({"needs": ("value",)}, r"the trait 'needs.0' of the family advantage is 'value'"),
    ],
)
def test_a_misspelt_trait_is_refused_at_registration(traits, message):
    with pytest.raises(ConfigError, match=message):
        register("advantage", **traits)


def test_an_unknown_family_is_refused():
    with pytest.raises(ConfigError, match="there is no family 'advantages'; did you mean 'advantage'"):
        register("advantages")


def test_a_function_without_a_name_has_the_traits_that_its_family_has_by_default():
    entry = resolve("advantage", lambda groups: [])
    assert entry.traits.baseline == "group"
    assert resolve("allocator", lambda stats, budget: []).traits.source == "history"


def test_a_file_runs_once_until_its_text_changes(tmp_path):
    file = tmp_path / "mine.py"
    text = "from pathlib import Path\nwith (Path(__file__).parent / 'runs').open('a') as runs:\n    runs.write('x')\n"
    file.write_text(text + "def one(groups):\n    return 1\ndef two(groups):\n    return 2\n")
    for name in ("one", "two", "one"):
        resolve("advantage", f"mine.py:{name}", base=tmp_path)
    assert (tmp_path / "runs").read_text() == "x"
    file.write_text(text + "def one(groups):\n    return 3\n")
    assert resolve("advantage", "mine.py:one", base=tmp_path).function([]) == 3
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_file_may_hold_a_dataclass_under_postponed_annotations(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Said:\n    word: str\ndef word(groups):\n    return Said('yes').word\n"
    )
    assert load_function("mine.py:word", base=tmp_path)([]) == "yes"
