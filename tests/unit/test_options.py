from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field

from refusals import refused
from winnow import config_keys
from winnow.bounds import AboveZeroToOne, AtLeastOne, Keep
from winnow.budget import allocators, cuts, rounds, sampling, selection
from winnow.errors import ConfigError, DataError
from winnow.families import FAMILIES, TASK
from winnow.options import HIDDEN, bind, hide_dotted_secrets, hide_secrets, is_secret, secret_keys
from winnow.records import Problem
from winnow.registry import members, register, resolve

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
        "model": {"path": "a"},
        "reward": {"parts": [{"use": "a", "api_key": "1", "service": {"password": "2", "url": "u"}}]},
        "rollout": {"engine": {"use": "b", "token": "3"}},
    }
    assert hide_secrets(config) == {
        "model": {"path": "a"},
        "reward": {"parts": [{"use": "a", "api_key": HIDDEN, "service": {"password": HIDDEN, "url": "u"}}]},
        "rollout": {"engine": {"use": "b", "token": HIDDEN}},
    }
    assert dict(secret_keys(config)) == {
        "reward.parts.0.api_key": "1",
        "reward.parts.0.service.password": "2",
        "rollout.engine.token": "3",
    }


def test_dotted_keys_are_hidden_below_members_alone() -> None:
    keys = {"model.path": "a", "reward.api_key": "1", "select": {"use": "a", "secret": "2"}}
    hidden = {"model.path": "a", "reward.api_key": HIDDEN, "select": {"use": "a", "secret": HIDDEN}}
    assert hide_dotted_secrets(keys) == hidden
    table = hide_dotted_secrets({"reward.service": {"password": "3", "url": "u"}})
    assert table == {"reward.service": {"password": HIDDEN, "url": "u"}}


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


def test_a_member_is_the_function_of_arrays() -> None:
    library = {"sampler": sampling, "allocator": allocators, "round": rounds, "cut": cuts}
    copies = {
        name
        for family, module in library.items()
        for name, entry in members(family).items()
        if entry.function is not getattr(module, name)
    }
    assert copies == set()


def test_a_selector_of_rewards_has_the_signature_of_its_rule() -> None:
    own = {"all", "finished"}  # which read rollouts
    rules = {name: entry.function for name, entry in members("selector").items() if entry.package and name not in own}
    assert set(rules) == {"max_variance", "max_reward", "random", "percentile", "threshold"}
    for name, function in rules.items():
        assert inspect.unwrap(function) is getattr(selection, name)


@pytest.mark.parametrize(
    ("family", "name", "options", "named"),
    [
        ("sampler", "replay", {"low": 0.8, "high": 0.5}, "low"),
        ("sampler", "adarft", {"lowest": 5.0, "highest": 1.0}, "lowest"),
        ("allocator", "gvm", {"minimum": 3, "maximum": 2}, "minimum"),
        ("allocator", "gvm_online", {"minimum": 3, "maximum": 2}, "minimum"),
        ("allocator", "knapsack", {"minimum": 5, "maximum": 3}, "minimum"),
        ("allocator", "vip_dr_grpo", {"maximum": 2}, "minimum"),
        ("round", "pilot_commit", {"low": 0.8, "high": 0.5}, "low"),
        ("selector", "threshold", {"low": 2.0, "high": 1.0}, "low"),
    ],
)
def test_options_that_exclude_each_other_are_refused_before_a_run(
    family: str, name: str, options: dict[str, float], named: str
) -> None:
    """Before, only a step of the run raised a ValueError for them."""
    with pytest.raises(ConfigError) as error:
        bind(resolve(family, name), options, key=family)
    assert (error.value.key, error.value.code) == (f"{family}.{named}", "config.combination")


def test_a_check_of_a_user_s_own_is_called_with_all_options() -> None:
    seen: list[dict[str, object]] = []

    def check(options: dict[str, object]) -> None:
        seen.append(options)
        if options["low"] == 2:
            raise ConfigError("2 is none", remedy="3", key="low")

    @register("weighting", "checked_together", check=check)
    def checked_together(kept: object, *, low: int = 1, high: float = 4.0) -> object:
        """A test's."""
        return low

    entry = resolve("weighting", "checked_together")
    assert bind(entry, {"high": 5}, key="weighting")(None) == 1
    with pytest.raises(ConfigError) as error:
        bind(entry, {"low": 2}, key="weighting")
    assert error.value.key == "weighting.low"
    assert seen == [{"low": 1, "high": 5.0}, {"low": 2, "high": 4.0}]


def named_like_a_model(groups: list[float], *, copy: int = 1, model_config: float = 1.0, _own: str = "a") -> object:
    """Options with names that a pydantic model has for itself."""
    return copy, model_config, _own


def test_an_option_may_have_any_name() -> None:
    entry = resolve("advantage", named_like_a_model)
    assert bind(entry, {"copy": 2, "model_config": 3, "_own": "b"}, key="advantage")([]) == (2, 3.0, "b")


def test_every_mistake_in_a_table_is_reported() -> None:
    with pytest.raises(ConfigError) as error:
        bind(resolve("advantage", shares), {"parst": 1, "parts": 0, "scale": 1.5}, key="advantage")
    assert {each.key: each.code for each in error.value.parts} == {
        "advantage.parst": "config.unknown_key",
        "advantage.parts": "config.value",
        "advantage.scale": "config.value",
    }


@pytest.mark.parametrize(
    ("annotation", "taken", "refused"),
    [
        (int, {3: 3}, [True, "3", 3.0]),
        (float, {3: 3.0, 0.5: 0.5}, [True, "0.5"]),
        (bool, {True: True}, [1, "true", 0.0]),
        (int | float, {3: 3, 2.5: 2.5}, [True, "3"]),
        (Keep, {4: 4, 1.0: 1.0}, [True, 4.0, "4", 0, 0.0]),
        (str | None, {"3": "3", None: None}, [3, True]),
        (Path, {"a/b": Path("a/b")}, [3]),
        (Literal["a", "b"], {"a": "a"}, ["c", 1]),
    ],
)
def test_a_value_of_toml_is_no_value_of_another_type(
    annotation: Any, taken: dict[Any, Any], refused: list[Any]
) -> None:
    """As in a section: an integer is a number, and nothing else is converted."""

    def given(groups: object, *, option: object) -> object:
        return option

    given.__annotations__["option"] = annotation
    entry = resolve("advantage", given)
    for value, read in taken.items():
        (found,) = bind(entry, {"option": value}, key="advantage").options.values()
        assert (found, type(found)) == (read, type(read))
    for value in refused:
        with pytest.raises(ConfigError):
            bind(entry, {"option": value}, key="advantage")


@pytest.mark.parametrize("value", [["1", 2], [1, True], [1.0, 2], 3])
@pytest.mark.parametrize("annotation", [tuple[int, ...], list[int], Sequence[int]])
def test_an_array_has_numbers_of_its_type_alone(annotation: Any, value: Any) -> None:
    def given(groups: object, *, option: object) -> object:
        return option

    given.__annotations__["option"] = annotation
    with pytest.raises(ConfigError) as caught:
        bind(resolve("advantage", given), {"option": value}, key="advantage")
    assert "list" in caught.value.remedy
    assert "Sequence" not in caught.value.remedy


def test_an_array_becomes_what_the_annotation_names() -> None:
    def given(groups: object, *, many: tuple[int, ...], some: list[float], any_: Sequence[str]) -> object:
        return many, some, any_

    entry = resolve("advantage", given)
    for array in (list, tuple):
        options = {"many": array([1, 2]), "some": array([1, 2.5]), "any_": array(["a"])}
        assert bind(entry, options, key="advantage")([]) == ((1, 2), [1.0, 2.5], array(["a"]))


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("sampler", "greso", {"least": 0.0}),
        ("sampler", "adarft", {"start": math.inf}),
        ("sampler", "mopps", {"candidates": 0}),
        ("sampler", "cures", {"prior": 0.0}),
        ("sampler", "replay", {"cooldown": -1}),
        ("sampler", "retire", {"above": 1.5}),
        ("allocator", "gvm", {"beta": math.nan}),
        ("allocator", "vip_rloo", {"minimum": 1}),
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


@pytest.mark.parametrize(("ids", "named"), [(("a", "b", "a"), "'a'"), ((0, 1), "0")])
def test_the_problems_of_a_split_have_different_texts_as_ids(ids: tuple[Any, ...], named: str) -> None:
    def made(split: str) -> list[Problem]:
        return [Problem(id=name, question="?", answer="1", task="t") for name in ids]

    with refused(ConfigError, named, key="task", code="config.member_result"):
        bind(resolve(TASK, made), {}, key="task")("train")


@pytest.mark.parametrize(
    ("field", "value"),
    [("answer", np.int64(2)), ("meta", {"days": {1, 2}}), ("meta", None), ("question", 2), ("task", len)],
    ids=str,
)
def test_a_problem_is_plain_data(field: str, value: Any) -> None:
    def made(split: str) -> list[Problem]:
        fields: dict[str, Any] = {"id": "p", "question": "?", "answer": "1", "task": "t", field: value}
        return [Problem(**fields)]

    with refused(DataError, "'p'", field, key="task", code="data.malformed"):
        bind(resolve(TASK, made), {}, key="task")("train")
