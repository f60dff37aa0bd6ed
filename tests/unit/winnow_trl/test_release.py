"""A TRL that lacks what PODSTrainer builds on is named, with the release that has it."""

from __future__ import annotations

import functools
import sys
import types
from types import SimpleNamespace

import pytest

import winnow_trl
from refusals import refused
from winnow import installed
from winnow.errors import ConfigError
from winnow_trl import release


class Methods:
    def _generate(self, prompts): ...

    def _generate_and_score_completions(self, inputs): ...

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list): ...


def that_sets(attributes, logs=release.LOGS, methods=Methods):
    """A class whose instances have these attributes, and these lists in `_logs`."""
    lines = [f"    self.{name} = {dict.fromkeys(logs) if name == '_logs' else None}" for name in attributes]
    made = {}
    exec("\n".join(["def __init__(self):", "    pass", *lines]), made)  # the names are those above
    return type("Trainer", (methods,), {"__init__": made["__init__"]})


def test_a_class_with_every_seam_fits():
    whole = that_sets(release.ATTRIBUTES)
    release.check_class(whole)
    release.check_logs(whole())
    release.check_class(type("OfABase", (whole,), {"__init__": lambda self: None}))


@pytest.mark.parametrize("method", release.METHODS)
def test_a_class_without_a_method_or_with_other_parameters_is_refused(method):
    fewer = type("Fewer", (), {name: value for name, value in vars(Methods).items() if name in release.METHODS})
    setattr(fewer, method, lambda self, batch: None)
    with refused(ConfigError, method, "batch", release.TRL.tested, code="config.not_installed"):
        release.check_class(that_sets(release.ATTRIBUTES, methods=fewer))
    delattr(fewer, method)
    with refused(ConfigError, method, release.TRL.tested, code="config.not_installed"):
        release.check_class(that_sets(release.ATTRIBUTES, methods=fewer))


def test_a_decorated_method_is_read():
    def decorated(function):
        @functools.wraps(function)
        def outer(*given, **named):
            return function(*given, **named)

        return outer

    init = decorated(that_sets(release.ATTRIBUTES).__init__)
    release.check_class(type("Decorated", (Methods,), {"__init__": init}))


@pytest.mark.parametrize("name", release.ATTRIBUTES)
def test_an_attribute_that_no_method_sets_is_refused_before_an_instance_is_made(name):
    others = [other for other in release.ATTRIBUTES if other != name]
    with refused(ConfigError, name, release.TRL.tested, code="config.not_installed"):
        release.check_class(that_sets(others))
    if name != "_logs":
        release.check_class(type("Property", (that_sets(others),), {name: property(lambda self: None)}))


@pytest.mark.parametrize("name", release.LOGS)
def test_each_log_is_needed(name):
    lacking = that_sets(release.ATTRIBUTES, [other for other in release.LOGS if other != name])
    with refused(ConfigError, name, code="config.not_installed"):
        release.check_class(lacking)
    with refused(ConfigError, name, code="config.not_installed"):
        release.check_logs(lacking())


def test_a_completion_ends_at_the_tokens_of_the_model_or_of_an_older_release_at_that_of_the_tokenizer():
    newer = SimpleNamespace(eos_token_ids=[7, 9], processing_class=SimpleNamespace(eos_token_id=9))
    assert release.end_tokens(newer) == [7, 9]
    older = SimpleNamespace(processing_class=SimpleNamespace(eos_token_id=9))
    assert release.end_tokens(older) == [9]
    processor = SimpleNamespace(processing_class=SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=3)))
    assert release.end_tokens(processor) == [3]


def vllm_in(monkeypatch, **names):
    """A module with these names, and a class that is defined in it."""
    module = types.ModuleType("of_trl")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "of_trl", module)
    return module, type("Trainer", (), {"__module__": "of_trl"})


@pytest.mark.parametrize(("sampled", "room"), [(16, 32), (4, 8), (5, 10), (6, 12), (7, 14)])
def test_vllm_gets_room_for_the_sampled_rows(monkeypatch, sampled, room):
    asked = []
    module, trainer = vllm_in(monkeypatch, VLLMGeneration=lambda **options: asked.append(options))
    made = module.VLLMGeneration
    with release.room_in_vllm(trainer, sampled=sampled, trained=4):
        module.VLLMGeneration(max_num_seqs=8, mode="colocate")
    assert asked == [{"max_num_seqs": room, "mode": "colocate"}]
    assert module.VLLMGeneration is made


def test_the_name_is_put_back_after_an_error(monkeypatch):
    module, trainer = vllm_in(monkeypatch, VLLMGeneration=int)
    with pytest.raises(KeyError), release.room_in_vllm(trainer, sampled=8, trained=4):
        raise KeyError
    assert module.VLLMGeneration is int


def test_a_release_that_makes_its_vllm_in_another_way_is_refused(monkeypatch):
    _, trainer = vllm_in(monkeypatch)
    with (
        refused(ConfigError, "VLLMGeneration", code="config.not_installed"),
        release.room_in_vllm(trainer, sampled=8, trained=4),
    ):
        pass
    module, trainer = vllm_in(monkeypatch, VLLMGeneration=dict)
    with (
        refused(ConfigError, "max_num_seqs", code="config.not_installed"),
        release.room_in_vllm(trainer, sampled=8, trained=4),
    ):
        module.VLLMGeneration(mode="colocate")


def test_without_trl_the_package_is_named(monkeypatch):
    monkeypatch.setattr(installed, "is_installed", lambda package: False)
    with refused(ConfigError, "trl", code="config.not_installed"):
        release.TRL.check_installed()


def test_the_package_has_no_other_names():
    assert winnow_trl.__all__ == ["PODSTrainer"]
    with pytest.raises(AttributeError):
        winnow_trl.GRPOTrainer  # noqa: B018
