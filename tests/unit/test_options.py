from __future__ import annotations

import pytest

from winnow.errors import ConfigError
from winnow.options import HIDDEN, AtLeastOne, bind, bounded, hide_dotted_secrets, hide_secrets, is_secret, secret_keys
from winnow.registry import members

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


def shares(numbers: list[float], *, parts: int = 2, scale: float = 1.0) -> list[float]:
    """The numbers, divided."""
    return [scale * number / parts for number in numbers]


def test_bounds_of_options_are_those_of_a_copy() -> None:
    copy = bounded(shares, parts=AtLeastOne)

    assert copy([4.0]) == shares([4.0]) == [2.0]
    assert copy([4.0], parts=4, scale=3.0) == [3.0]
    assert (copy.__name__, copy.__doc__) == ("shares", shares.__doc__)
    assert copy.__annotations__["parts"] == AtLeastOne
    assert (shares.__annotations__["parts"], copy.__annotations__["scale"]) == ("int", "float")


def test_a_copy_has_the_options_of_its_function_only() -> None:
    with pytest.raises(TypeError, match="pieces"):
        bounded(shares, pieces=AtLeastOne)


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
