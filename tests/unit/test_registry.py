"""Names, files and functions; every refusal names its remedy."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.errors import ConfigError
from winnow.registry import aliases, bind, members, register, resolve


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


