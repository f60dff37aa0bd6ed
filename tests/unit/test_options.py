from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from winnow import config_keys
from winnow.bounds import AboveZeroToOne, AtLeastOne
from winnow.budget import cuts, rounds, sampling
from winnow.errors import ConfigError
from winnow.options import HIDDEN, bind, hide_dotted_secrets, hide_secrets, is_secret, secret_keys
from winnow.registry import members, resolve

FAMILIES = (
    "task",
    "reward",
    "environment",
    "sampler",
    "allocator",
    "round",
    "selector",
    "advantage",
    "weighting",
    "loss",
    "correction",
    "term",
    "engine",
    "tracker",
)


NAMED_SO = ["key", "api_key", "API_KEY", "apiKey", "openaiApiKey", "token", "hf_token", "password", "db_password_2"]


@pytest.mark.parametrize("name", [*NAMED_SO, "secret", "client_secret", "secret_id"])
def test_a_text_by_such_a_name_is_a_secret(name: str) -> None:
    assert is_secret(name, "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("key_value_mb", 512), ("max_new_tokens", 64), ("token", 5), ("keyboard", "x"), ("_", "x"), ("api_key", None)],
)
def test_other_options_are_none(name: str, value: object) -> None:
    assert not is_secret(name, value)


def test_no_option_of_winnow_s_own_is_taken_for_a_secret() -> None:
    for family in FAMILIES:
        for entry in members(family).values():
            assert not [name for name in entry.options if is_secret(name, "text")], entry.name


def test_secrets_are_hidden_in_members_alone_at_any_depth() -> None:
    config = {
        "model": {"pad_token": "<pad>"},
        "reward": {"parts": [{"use": "a", "api_key": "1", "service": {"password": "2", "url": "u"}}]},
        "rollout": {"engine": {"use": "b", "token": "3"}},
    }
    assert hide_secrets(config) == {
        "model": {"pad_token": "<pad>"},
        "reward": {"parts": [{"use": "a", "api_key": HIDDEN, "service": {"password": HIDDEN, "url": "u"}}]},
        "rollout": {"engine": {"use": "b", "token": HIDDEN}},
    }
    assert dict(secret_keys(config)) == {
        "reward.parts.0.api_key": "1",
        "reward.parts.0.service.password": "2",
        "rollout.engine.token": "3",
    }


def test_dotted_keys_are_hidden_below_members_alone() -> None:
    keys = {"model.pad_token": "<pad>", "reward.api_key": "1", "select": {"use": "a", "secret": "2"}}
    hidden = {"model.pad_token": "<pad>", "reward.api_key": HIDDEN, "select": {"use": "a", "secret": HIDDEN}}
    assert hide_dotted_secrets(keys) == hidden


def shares(groups: list[float], *, parts: AtLeastOne = 2, scale: AboveZeroToOne | None = None) -> list[float]:
    """The numbers, divided."""
    return [(scale or 1.0) * number / parts for number in groups]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"parts": 0}, "greater than or equal to 1"),
        ({"parts": 1.5}, "integer"),
        ({"scale": 0.0}, "greater than 0"),
        ({"scale": 1.5}, "less than or equal to 1"),
    ],
)
def test_the_range_in_the_signature_of_a_plain_function_is_checked(options: dict[str, float], remedy: str) -> None:
    entry = resolve("advantage", shares)
    assert bind(entry, {"parts": 4, "scale": 1.0}, key="advantage")([8.0]) == [2.0]
    assert bind(entry, {"scale": None}, key="advantage")([8.0]) == [4.0]
    with pytest.raises(ConfigError) as error:
        bind(entry, options, key="advantage")
    (option,) = options
    assert (error.value.key, error.value.code) == (f"advantage.{option}", "config.value")
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (AtLeastOne, "integer >= 1"),
        (AboveZeroToOne, "number > 0, <= 1"),
        (Annotated[AtLeastOne, Field(strict=True, le=9)] | None, "integer >= 1, <= 9"),
        (Annotated[float, Field(ge=0, lt=1)], "number >= 0, < 1"),
    ],
)
def test_the_range_of_an_annotation_is_printed(annotation: object, text: str) -> None:
    assert config_keys._type(annotation) == text


def test_a_rule_of_sampling_is_the_function_of_arrays() -> None:
    library = {"sampler": sampling, "round": rounds, "cut": cuts}
    copies = {
        name
        for family, module in library.items()
        for name, entry in members(family).items()
        if entry.function is not getattr(module, name)
    }
    assert copies == {"adarft"}  # whose label is a field of the data


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("sampler", "greso", {"least": 0.0}),
        ("sampler", "mopps", {"candidates": 0}),
        ("sampler", "cures", {"prior": 0.0}),
        ("sampler", "replay", {"cooldown": -1}),
        ("sampler", "retire", {"above": 1.5}),
        ("round", "balanced", {"per_round": 0}),
        ("round", "pilot_commit", {"high": 2.0}),
        ("cut", "token_budget", {"tokens": 0}),
        ("cut", "stragglers", {"share": 0.0}),
        ("cut", "unlikely", {"least": 0.5}),
    ],
)
def test_a_rule_of_sampling_refuses_an_option_out_of_bounds(family: str, name: str, options: dict[str, float]) -> None:
    (option,) = options
    with pytest.raises(ConfigError) as error:
        bind(members(family)[name], options, key=family)
    assert (error.value.key, error.value.code) == (f"{family}.{option}", "config.value")
