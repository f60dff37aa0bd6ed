from __future__ import annotations

import functools

from refusals import refused
from winnow.commands.catalog import catalog, description
from winnow.commands.config_keys import keys
from winnow.errors import ConfigError
from winnow.families import FAMILIES
from winnow.metrics import METRICS
from winnow.recipes import recipe_paths
from winnow.registry import members, resolve


def test_every_member_is_listed_by_name_with_a_description():
    for family in FAMILIES:
        blocks = list(catalog(family))
        assert [block.partition("(")[0] for block in blocks] == list(members(family)), family
        assert not [block for block in blocks if len(block.splitlines()) < 2 or not block.splitlines()[-1].strip()]


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
