"""What `winnow list` prints, and the reference page that is made from it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import forked
from refusals import refused
from winnow import config_keys
from winnow.alarms.rules import ALARMS
from winnow.commands.list import catalog
from winnow.config import Config
from winnow.config_keys import format_toml, keys
from winnow.errors import ConfigError
from winnow.families import FAMILIES
from winnow.metrics import METRICS
from winnow.recipes import recipe_paths
from winnow.registry import description, members, resolve


def test_every_member_is_listed_by_name_with_a_description():
    for family in FAMILIES:
        blocks = list(catalog(family))
        assert [block.partition("(")[0] for block in blocks] == list(members(family)), family
        own = [block for block, entry in zip(blocks, members(family).values(), strict=True) if entry.origin == "winnow"]
        # Other tests of this process may have registered members of their own
        assert not [block for block in own if len(block.splitlines()) < 2 or not block.splitlines()[-1].strip()]


def test_options_defaults_and_aliases_are_shown():
    (clip,) = [block for block in catalog("losses") if block.startswith("clip(")]
    assert clip.splitlines()[:2] == ["clip(clip_low = 0.2, clip_high = 0.2, dual = None)", "    also called grpo_clip"]
    (scripted,) = [block for block in catalog("engine") if block.startswith("scripted(")]
    assert scripted.startswith("scripted(script)\n")


class Scaled:
    """Credits times a factor."""

    def __call__(self, groups, *, shift=0.0):
        return groups


def scaled(groups, *, shift=0.0):
    """Credits times a factor.

    No more than that.
    """


def test_the_description_of_any_member_is_its_docstring():
    for function in (scaled, functools.partial(scaled, shift=2.0), Scaled()):
        assert description(resolve("advantage", function)) == "Credits times a factor."


def test_metrics_come_with_their_meaning():
    assert len(list(catalog("metrics"))) == len(METRICS)
    assert next(catalog("metric")).splitlines()[0] == "reward/mean"
    assert METRICS["reward/mean"] in next(catalog("metric"))


def test_alarms_come_with_their_symptom():
    for kind in ("alarm", "alarms"):
        listed = [block.splitlines() for block in catalog(kind)]
        assert [name for name, *_ in listed] == [alarm.name for alarm in ALARMS]
        assert [" ".join(text.split()) for text in (" ".join(rest) for _, *rest in listed)] == [
            alarm.meaning for alarm in ALARMS
        ]


def test_recipes_come_with_the_first_line_of_their_comment():
    blocks = dict(block.split("\n", 1) for block in catalog("recipes"))
    assert list(blocks) == sorted(recipe_paths())
    assert " ".join(blocks["raft"].split()) == recipe_paths()["raft"].read_text().splitlines()[0].removeprefix("# ")
    assert list(catalog("recipe")) == list(catalog("recipes"))


def test_a_key_is_listed_with_its_values_and_with_what_it_does():
    blocks = {block.split()[0]: " ".join(block.split()) for block in catalog("keys")}
    assert list(blocks) == [key.name for key in keys()]
    assert all(f"[{key.type}] {key.meaning}" in blocks[key.name] for key in keys())
    assert '["constant" or "linear" or "cosine"]' in blocks["optimizer.schedule"]
    assert not [key.name for key in keys() if key.meaning.startswith("Of ")], "a meaning is a sentence with a subject"


def test_an_unknown_kind_is_refused_with_a_suggestion():
    with refused(ConfigError, "'selectrs'", "'selectors'", code="config.unknown_name"):
        list(catalog("selectrs"))


REPOSITORY = Path(__file__).parents[4]


def test_the_page_is_the_generated_one(tmp_path):
    """In another process, as other tests register members here."""
    made, committed = tmp_path / "reference.md", REPOSITORY / "docs" / "reference.md"
    done = forked.python(REPOSITORY / "scripts" / "reference.py", made)
    assert done.returncode == 0, done.stderr
    same = made.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
    assert same, "docs/reference.md differs from the code: run `python scripts/reference.py`, and commit the page"


def test_every_row_of_a_table_is_one_line():
    """Markdown reads a row of two lines as two rows, the second without a key."""
    assert {
        len(text.splitlines()) for key in keys() for text in (key.name, key.type, key.default or " ", key.meaning)
    } == {1}
    page = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    tables = [block for block in re.split(r"\n\s*\n", page) if block.startswith("| ")]
    assert len(tables) == 5
    assert [line for table in tables for line in table.splitlines() if not re.fullmatch(r"\|.*\|", line)] == []


def test_every_key_that_a_configuration_prints_is_listed():
    printed = {
        line.partition(" = ")[0] for line in format_toml(Config.model_validate({"model": {"lora": {}}})).splitlines()
    }
    known = {key.name for key in keys()} | {f"{key.name}.use" for key in keys() if key.type == "member"}
    assert printed <= known


TYPES_AND_DEFAULTS = {
    "rollout.top_p": ("number > 0, <= 1", "1.0"),
    "model.lora.targets": ('list of text or "all-linear"', '"all-linear"'),
    "optimizer.betas": ("[number >= 0, < 1, number >= 0, < 1]", "[0.9, 0.95]"),
    "terms[].coefficient": ("number", ""),
    "task": ("member", '"arithmetic"'),
    "critic.form": ('"shared" or "adapter" or "model"', '"model"'),
    "critic.epochs": ("integer > 0", "1"),
    "critic.coefficient": ("number > 0", "0.5"),
}


def test_a_key_has_type_default_and_meaning():
    listed = {key.name: key for key in keys()}
    assert {name: (listed[name].type, listed[name].default) for name in TYPES_AND_DEFAULTS} == TYPES_AND_DEFAULTS
    assert not [key.name for key in listed.values() if not key.meaning]


def test_a_key_without_a_docstring_is_refused(monkeypatch):
    class Undocumented(Config):
        patience: int = 3

    monkeypatch.setattr(config_keys, "Config", Undocumented)
    with pytest.raises(ValueError, match="patience"):
        list(keys())


def test_keys_are_listed_at_the_command_line():
    blocks = list(catalog("keys"))
    assert next(b for b in blocks if b.startswith("evaluate.every = 0\n"))
    assert next(b for b in blocks if b.startswith("terms[].coefficient")).startswith("terms[].coefficient\n")


def test_descriptions_of_members_are_whole_sentences():
    blocks = [block for kind in ("rewards", "weightings", "terms") for block in catalog(kind)]
    own = [block for block in blocks if "\n    from " not in block]  # other tests register members in this process
    assert len(own) > 15
    assert [block for block in own if block[-1] not in ".)"] == []
